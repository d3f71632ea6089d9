"""`grpo-sentinel halt`, `checkpoint`, `capture`: ask a run, through its daemon or, where none watches it, directly."""

from __future__ import annotations

import getpass
import json
import time
from dataclasses import replace
from pathlib import Path

import click

from grpo_sentinel.cli.client import call
from grpo_sentinel.cli.runs import NoRun, find_run, is_alive, read_ranks, run_choice, settings_of
from grpo_sentinel.clock import SystemClock
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.claim import Claim, read_note
from grpo_sentinel.errors import DaemonUnavailable, SentinelError
from grpo_sentinel.halting import HaltController
from grpo_sentinel.halting.evidence import EVIDENCE
from grpo_sentinel.halting.journal import load
from grpo_sentinel.halting.progress import TERMINAL, Progress, progress_of
from grpo_sentinel.records import Action, HaltState

_CLAIM_SECONDS = 5.0


def _options(command: click.Command) -> click.Command:
    """Give all commands the same options."""
    for option in (
        click.Option(["--reason"], default="", metavar="TEXT", help="Why; goes to the log and the history."),
        click.Option(["--wait"], type=float, metavar="SECONDS", help="Wait so long for the outcome; 1 if it failed."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON for programs."),
        click.Option(["--config", "config_path"], metavar="FILE", help="Settings of the sidecar, for its directories."),
        click.Option(["--root"], metavar="DIR", help="Where rings live."),
    ):
        command.params.append(option)
    return command


@click.command()
@run_choice
@click.option("--now", is_flag=True, help="Stop at the next step boundary without saving a checkpoint.")
def halt(
    run_id: str | None,
    now: bool,
    reason: str,
    wait: float | None,
    as_json: bool,
    config_path: str | None,
    root: str | None,
) -> int:
    """Ask a run to save a checkpoint and stop, all ranks at the same step.

    Without RUN: the one that is alive.
    """
    action = Action.HALT_NOW if now else Action.CHECKPOINT_AND_HALT
    return ask(settings_of(config_path, run_id, root), run_id, action, reason, wait, as_json)


@click.command()
@run_choice
def checkpoint(
    run_id: str | None, reason: str, wait: float | None, as_json: bool, config_path: str | None, root: str | None
) -> int:
    """Ask a run to save a checkpoint at the next step boundary and go on.

    Without RUN: the one that is alive.
    """
    return ask(settings_of(config_path, run_id, root), run_id, Action.CHECKPOINT, reason, wait, as_json)


_KINDS = {"step": Action.CAPTURE, "stacks": Action.STACKS, "memory-snapshot": Action.MEMORY_SNAPSHOT,
          "anomaly-trace": Action.ANOMALY_TRACE}  # fmt: skip


@click.command()
@run_choice
@click.option("--kind", type=click.Choice(list(_KINDS)), default="step", show_default=True, help="What to take.")
def capture(
    run_id: str | None,
    kind: str,
    reason: str,
    wait: float | None,
    as_json: bool,
    config_path: str | None,
    root: str | None,
) -> int:
    """Take evidence of a run that goes on: tensors and batch of its next step, stacks, live memory, the first NaN.

    It opens an incident, whose bundle holds what was taken. Without RUN: the one that is alive.
    """
    return ask(settings_of(config_path, run_id, root), run_id, _KINDS[kind], reason, wait, as_json)


_options(halt)
_options(checkpoint)
_options(capture)


def ask(
    config: Config, run_id: str | None, action: Action, reason: str, wait: float | None, as_json: bool = False
) -> int:
    """Make the request, say its number, wait for its outcome if wanted; gives the exit code."""
    directory = _alive(config, run_id)
    word = action.name.lower().replace("_", "-")
    reason = reason or f"asked by {_user()} on the command line"
    request_id = _make(config, directory, action, reason)
    told: dict[str, object] = {"request_id": request_id, "action": word, "run_id": directory.name}
    if not as_json:
        click.echo(f"request {request_id}: {word} of run {directory.name}")
    if wait is None or action is Action.STACKS:  # stacks are the sidecar's own work: no rank acknowledges them
        if as_json:
            click.echo(json.dumps(told))
        return 0
    outcome = await_outcome(directory, request_id, wait)
    if as_json:
        told.update(state=outcome.state.name.lower(), step=outcome.step, detail=outcome.detail)
        click.echo(json.dumps(told))
        return 0 if outcome.state is HaltState.DONE else 1
    detail = f": {outcome.detail}" if outcome.detail else ""
    click.echo(
        f"request {request_id}: {outcome.state.name.lower()}"
        + (f" at step {outcome.step}" if outcome.step else "")
        + detail
    )
    return 0 if outcome.state is HaltState.DONE else 1


def make_request(config: Config, run_id: str | None, action: Action, reason: str) -> int:
    """Make the request and give its number. Raises `SentinelError` when nobody can be asked."""
    return _make(config, _alive(config, run_id), action, reason)


def _alive(config: Config, run_id: str | None) -> Path:
    directory = find_run(config, run_id, alive_only=True)
    if not is_alive(read_ranks(directory)):
        raise NoRun(f"run {directory.name} has ended: there is nobody to ask")
    return directory


def _make(config: Config, directory: Path, action: Action, reason: str) -> int:
    """Ask the daemon; where none holds the run, write the control file in its place."""
    limit = time.monotonic() + _CLAIM_SECONDS
    while True:
        note = read_note(directory)
        if note is not None:
            body = {"run_id": directory.name, "action": action.name.lower().replace("_", "-"), "reason": reason}
            return int(call(note, "/api/v1/requests", body)["request_id"])
        claim = Claim.take(directory)
        if claim is not None:
            try:
                controller = HaltController(directory, config.halting, SystemClock())
                request_id = controller.request(action, reason)
                if controller.status.gave_way:
                    said = controller.status.gave_way.partition(";")[0]
                    click.echo(f"{said}; no sidecar is there to ask for it again", err=True)
                return request_id
            finally:
                claim.release()
        if time.monotonic() > limit:  # held, and no note: it is starting, or could not write one
            raise DaemonUnavailable(f"a daemon holds run {directory.name} and says not where it answers; try again")
        time.sleep(0.1)


def await_outcome(directory: Path, request_id: int, seconds: float) -> Progress:
    """Follow a request in the rings until it has ended. Raises `SentinelError` when the time is up."""
    limit = time.monotonic() + seconds
    while True:
        entries = load(directory)
        made = next((entry for entry in entries if entry.request_id == request_id), None)
        found = progress_of(request_id, made.wall_ns if made else 0, read_ranks(directory))
        if found.state in TERMINAL:
            return found
        after = next((one for one in entries if one.request_id > request_id and one.action not in EVIDENCE), None)
        if made is not None and made.action in EVIDENCE and after is not None:
            word = after.action.name.lower().replace("_", "-")
            return replace(found, state=HaltState.FAILED, detail=f"gave way to request {after.request_id} ({word})")
        if time.monotonic() > limit:
            raise SentinelError(
                f"request {request_id} is {found.state.name.lower()} after {seconds:g} s; see `grpo-sentinel status`"
            )
        time.sleep(0.1)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "user"
