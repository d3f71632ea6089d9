"""`grpo-sentinel status`: one run as a table or as JSON, with or without a daemon."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grpo_sentinel.cli.launches import Launch, waiting, words
from grpo_sentinel.cli.runs import NoRun, find_run, is_alive, read_ranks, run_choice, settings_of
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.claim import is_claimed, read_note
from grpo_sentinel.daemon.past import last_sign_ns
from grpo_sentinel.daemon.places import ring_roots, run_directories, state_dir
from grpo_sentinel.errors import DaemonUnavailable, HistoryError, SentinelError
from grpo_sentinel.halting import progress
from grpo_sentinel.halting.journal import load
from grpo_sentinel.history import HistoryReader, history_path
from grpo_sentinel.protocol import ControlReader, sanitise_run_id
from grpo_sentinel.records import Action, HaltState
from grpo_sentinel.views import HaltStatus, RankStatus, Snapshot

if TYPE_CHECKING:
    from grpo_sentinel.rules.walk import Walk


@click.command()
@run_choice
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--wide", is_flag=True, help="Show every column of the ranks, whatever the width.")
@click.option("--watch", is_flag=True, help="Stay and show it anew every second, until Ctrl-C.")
@click.option("--walk", "with_walk", is_flag=True, help="Add the walk backwards: what each layer shows, and what not.")
@click.option("--config", "config_path", metavar="FILE", help="Settings of the sidecar, for its directories.")
@click.option("--root", metavar="DIR", help="Where rings live; default: ring_dir, $GRPO_SENTINEL_DIR, /dev/shm, ...")
def status(
    run_id: str | None,
    as_json: bool,
    wide: bool,
    watch: bool,
    with_walk: bool,
    config_path: str | None,
    root: str | None,
) -> int:
    """Show a run: its ranks, layers, firing findings with their root cause, and the newest request.

    Without RUN: the run that is alive, else a launched command that waits for its trainer, else the newest run. Works
    without a daemon, from rings and history, and says so.
    """
    from grpo_sentinel.cli.rendering import plain_console, print_json, print_snapshot
    from grpo_sentinel.rules.walk import as_json as as_json_walk
    from grpo_sentinel.rules.walk import as_lines

    config = settings_of(config_path, run_id, root)
    if not watch:
        snapshot, source = look(config, run_id)
        walked = walk_of(config, snapshot) if with_walk else None
        if as_json:
            extra: dict[str, object] = {} if walked is None else {"walk": as_json_walk(walked)}
            extra["waiting"] = waiting_now(config)
            print_json({**vars_of(snapshot), "daemon": source == WITH_DAEMON, **extra})
        else:
            print_snapshot(snapshot, source + ended_ago(snapshot), plain_console(wide=wide))
            page = page_of(config, snapshot.run_id) if sys.stdout.isatty() else ""
            if page:
                click.echo(f"page: {page}")
            for one in waiting_now(config):
                if one.run_id != snapshot.run_id:
                    click.echo(f"also launched: {one.run_id}: {words(one)}")
            for line in as_lines(walked) if walked is not None else ():
                click.echo(line)
        return 0
    return _watch(config, run_id, as_json)


WITH_DAEMON = "a daemon watches it"
WITHOUT_DAEMON = "no daemon watches it: ranks read from the rings, findings from the history"
ONLY_RINGS = "no daemon watches it: ranks read from the rings"
ONLY_HISTORY = "from the history alone: its rings are gone"


def ended_ago(snapshot: Snapshot) -> str:
    """Say how long ago the last sign of life of a run was that has ended; "" for one that may be alive."""
    from grpo_sentinel.cli.rendering import ago

    if not snapshot.ranks or is_alive(snapshot.ranks):
        return ""
    return f"; ended {ago(time.time_ns() - last_sign_ns(snapshot.ranks))} ago"


def vars_of(snapshot: Snapshot) -> dict[str, object]:
    """Give a snapshot's fields by name."""
    return {name: getattr(snapshot, name) for name in Snapshot.__dataclass_fields__}


def walk_of(config: Config, snapshot: Snapshot) -> Walk:
    """Walk backwards through a run as its history shows it: what could be judged is found by playing it again."""
    from grpo_sentinel.daemon.resume import resume
    from grpo_sentinel.rules import Engine, load_rules
    from grpo_sentinel.rules.walk import walk

    engine = Engine(load_rules(config.rules, halting=config.halting, strict=False), run_id=snapshot.run_id)
    resume(engine, history_path(state_dir(config), socket.gethostname()), snapshot.run_id)
    abstaining = {
        name: reason
        for name, reason in engine.abstaining().items()
        if engine.rules[name].scope not in ("tick", "event")
    }  # heartbeats and events are seen live, not in the history
    return walk(engine.rules, snapshot.findings, abstaining, engine.checkpoints)


def look(config: Config, run_id: str | None) -> tuple[Snapshot, str]:
    """Read a run as it is now and say from where: a launched one that waits for its trainer too. Raises `NoRun`."""
    launched = _waits(config, run_id)
    if launched is not None:
        return Snapshot(run_id=launched.run_id, node=socket.gethostname(), wall_ns=time.time_ns()), words(launched)
    stored = _from_history(config, run_id)
    try:
        directory = find_run(config, run_id)
    except NoRun:
        stored = stored or (_newest_stored(config) if run_id is None else None)
        if stored is None:
            raise
        return stored, ONLY_HISTORY
    if stored is None or stored.run_id != directory.name:
        stored = _from_history(config, directory.name) or Snapshot(
            run_id=directory.name, node=socket.gethostname(), unjudged=_why_unjudged(config, directory.name)
        )
    ranks = read_ranks(directory)
    notes = tuple(dict.fromkeys((*stored.notes, *_off(directory))))
    halt = _halt(directory, ranks, stored.halt)
    snapshot = replace(stored, ranks=ranks, wall_ns=time.time_ns(), halt=halt, notes=notes)
    return snapshot, WITH_DAEMON if is_claimed(directory) else ONLY_RINGS if stored.unjudged else WITHOUT_DAEMON


def _why_unjudged(config: Config, run_id: str) -> str:
    """Say why the history tells nothing of a run."""
    path = history_path(state_dir(config), socket.gethostname())
    try:
        HistoryReader(path).close()
    except HistoryError as error:
        why = str(error) if path.exists() else f"there is no history in {path.parent}"
    else:
        why = f"the history {path} does not know run {run_id}"
    return f"{why}; if its sidecar has another one, give --config FILE of that sidecar"


def _off(directory: Path) -> list[str]:
    """Ask the daemon of a run what of it is off or broken; [] where nobody can be asked."""
    from grpo_sentinel.cli.client import call

    note = read_note(directory)
    if note is None or not note.url:
        return []
    try:
        return [str(text) for text in call(note, "/healthz", timeout_s=1.0)["problems"]]
    except DaemonUnavailable as error:
        return [str(error)]
    except SentinelError:
        return ["the daemon's loop stands still"]


def page_of(config: Config, run_id: str) -> str:
    """Give the address that opens the page of a run; "" where it has none. It holds the token: for terminals only."""
    try:
        note = read_note(find_run(config, run_id))
    except NoRun:
        return ""
    return "" if note is None else note.page


def _waits(config: Config, run_id: str | None) -> Launch | None:
    """Give the launched command that is meant and has recorded nothing; a run that is alive goes before it."""
    launched = waiting_now(config)
    if run_id is not None:
        return next((one for one in launched if one.run_id == sanitise_run_id(run_id)), None)
    if not launched or any(is_alive(read_ranks(directory)) for directory in run_directories(ring_roots(config))):
        return None
    return launched[0]


def waiting_now(config: Config) -> list[Launch]:
    """List the launched commands that wait for their trainer, the newest first."""
    roots = ring_roots(config)
    return waiting(roots, run_directories(roots))


def _from_history(config: Config, run_id: str | None) -> Snapshot | None:
    if run_id is None:
        return None
    try:
        with HistoryReader(history_path(state_dir(config), socket.gethostname())) as reader:
            return reader.latest(run_id) if reader.run(run_id) is not None else None
    except HistoryError:
        return None


def _newest_stored(config: Config) -> Snapshot | None:
    try:
        with HistoryReader(history_path(state_dir(config), socket.gethostname())) as reader:
            return next((reader.latest(run.run_id) for run in reader.runs(1)), None)
    except HistoryError:
        return None


def _halt(directory: Path, ranks: Mapping[int, RankStatus], stored: HaltStatus) -> HaltStatus:
    """Take the request from the control file and the ranks' own words, where the history is behind."""
    reader = ControlReader(directory)
    word = reader.read()
    reader.close()
    if word is None or not word.request_id or word.request_id < stored.request_id:
        return stored
    entry = next((one for one in reversed(load(directory)) if one.request_id == word.request_id), None)
    made = 0 if entry is None else entry.wall_ns
    found = progress.progress_of(word.request_id, made, ranks)
    if stored.request_id == word.request_id and stored.state in progress.TERMINAL - {HaltState.FAILED}:
        return stored
    asked = entry or word  # once a request has ended the word holds its number alone
    if asked.action is Action.NOTE:
        return stored
    return HaltStatus(
        request_id=word.request_id, state=found.state, action=asked.action, reason=asked.reason,
        requested_by=asked.requested_by, step=found.step, detail=found.detail, requested_wall_ns=made,
        updated_wall_ns=found.wall_ns or made, pinned_checkpoint=stored.pinned_checkpoint,
        gave_way=stored.gave_way if stored.request_id == word.request_id else "",
    )  # fmt: skip


def _watch(config: Config, run_id: str | None, as_json: bool) -> int:
    from rich.console import Console

    from grpo_sentinel.cli.rendering import print_json, print_snapshot

    console = Console(highlight=False)
    while True:
        snapshot, source = look(config, run_id)
        if as_json:
            print_json({**vars_of(snapshot), "daemon": source == WITH_DAEMON})
        else:
            console.clear()
            print_snapshot(snapshot, source + ended_ago(snapshot), console)
        time.sleep(1.0)
