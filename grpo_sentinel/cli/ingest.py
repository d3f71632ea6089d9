"""`grpo-sentinel ingest`: the sidecar's rules, history and metrics for a run that has only a log."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.wording import counted

if TYPE_CHECKING:
    from grpo_sentinel.cli.log_watch import LogWatch
    from grpo_sentinel.config import Config
    from grpo_sentinel.daemon.parts import Sinks
    from grpo_sentinel.history.logs.lines import Line
    from grpo_sentinel.records import Action, Finding
    from grpo_sentinel.web.server import WebServer

_PAUSE_SECONDS = 0.2
_DRAIN_SECONDS = 5.0


@click.command()
@click.argument("log", metavar="LOG")
@click.option("--run-id", metavar="ID", help="Name of the run in history and metrics; default: the log's name.")
@click.option("--until-end", is_flag=True, help="Stop at the end of the log instead of waiting for more.")
@click.option("--rules", "rule_files", multiple=True, metavar="FILE", help="Further rules (YAML); may be repeated.")
@click.option("--profile", metavar="NAMES", help="Profiles, by name or file.")
@click.option("--config", "config_path", metavar="FILE", help="Settings of the sidecar.")
@click.option("--serve", is_flag=True, help="Also serve page, API and /metrics, as `run` does.")
@click.option("--no-history", is_flag=True, help="Keep nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print each finding as one line of JSON.")
def ingest(
    log: str,
    run_id: str | None,
    until_end: bool,
    rule_files: tuple[str, ...],
    profile: str | None,
    config_path: str | None,
    serve: bool,
    no_history: bool,
    as_json: bool,
) -> int:
    """Follow the log of a run that has no agent (- for standard input) and say what the rules find.

    Findings go to standard output, the history and the other sinks. Nothing can be asked of such a run: it is not
    halted. Exit code 0: no warning or worse, 1: some, 2: usage, or a log that ends without a step that was recognised.
    """
    from grpo_sentinel.cli.log_watch import LogWatch
    from grpo_sentinel.cli.run import _end_on_signals
    from grpo_sentinel.cli.runs import settings
    from grpo_sentinel.clock import SystemClock
    from grpo_sentinel.protocol import sanitise_run_id
    from grpo_sentinel.records import Severity
    from grpo_sentinel.rules import Engine, load_rules

    config = _without_history(settings(config_path)) if no_history else settings(config_path)
    rules = config.rules if profile is None else config.rules.model_copy(update={"profile": profile})
    name = sanitise_run_id(run_id or Path(log).name.split(".")[0] or "log")
    found = load_rules(rules, rule_files, halting=config.halting, strict=False)
    for problem in found.problems:
        click.echo(f"grpo-sentinel: {problem}; this is left out, the other rules work", err=True)
    engine = Engine(found, run_id=name, anonymous=True)
    logging.basicConfig(level=logging.WARNING, format="grpo-sentinel: %(message)s", stream=sys.stderr, force=True)
    stop = threading.Event()
    _end_on_signals(stop)
    with _sinks(config) as sinks:
        watch = LogWatch(name, engine, SystemClock(), sinks.publish)
        server = _serve(config, watch, sinks) if serve else None
        worst = Severity.NOTE
        try:
            for told in _findings(watch, log, until_end, stop):
                _print(told, as_json)
                worst = max([worst, *(one.severity for one in told)])
        finally:
            if server is not None:
                server.stop()
    if not watch.steps and worst is Severity.NOTE and not stop.is_set():
        raise SentinelError(f"no step in {log}: nothing was judged; give the log that holds the trainer's metrics")
    if not as_json:
        click.echo(f"{counted(watch.steps, 'step')} read", err=True)
    return 1 if worst > Severity.NOTE else 0


def _findings(watch: LogWatch, log: str, until_end: bool, stop: threading.Event) -> Iterator[list[Finding]]:
    """Feed the log until it ends, or the stop; gives what the rules say, piece by piece."""
    for line in _lines(log, until_end):
        if stop.is_set():
            break
        yield watch.idle() if line is None else watch.take(line)
        if line is None:
            stop.wait(_PAUSE_SECONDS)
    yield watch.finish()


def _lines(log: str, until_end: bool) -> Iterator[Line | None]:
    from grpo_sentinel.history.logs.lines import follow, read_lines

    if log == "-" or until_end:
        return iter(read_lines(log))
    return follow(log)


class _Opened:
    """The sinks for the time of a `with`; closed with a limit."""

    def __init__(self, sinks: Sinks) -> None:
        self._sinks = sinks

    def __enter__(self) -> Sinks:
        return self._sinks

    def __exit__(self, *_: object) -> None:
        for problem in self._sinks.problems():
            click.echo(f"grpo-sentinel: {problem}", err=True)
        self._sinks.close(_DRAIN_SECONDS)


def _sinks(config: Config) -> _Opened:
    import socket

    from grpo_sentinel.clock import SystemClock
    from grpo_sentinel.daemon.parts import Sinks
    from grpo_sentinel.daemon.places import state_dir

    state = state_dir(config)
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    return _Opened(Sinks(config, state, socket.gethostname(), SystemClock()))


def _without_history(config: Config) -> Config:
    history = config.sinks.history.model_copy(update={"enabled": False})
    return config.model_copy(update={"sinks": config.sinks.model_copy(update={"history": history})})


def _serve(config: Config, watch: LogWatch, sinks: Sinks) -> WebServer | None:
    import secrets
    from functools import partial

    from grpo_sentinel.cli.run import show_link
    from grpo_sentinel.daemon.parts import serve
    from grpo_sentinel.daemon.places import state_dir
    from grpo_sentinel.daemon.reading import page_link, read_token
    from grpo_sentinel.history import HistoryReader
    from grpo_sentinel.web.state import WebState

    def refuse(run_id: str, action: Action, reason: str) -> int:
        raise SentinelError(f"run {run_id} is read from a log: there is no agent that could be asked")

    def said(_: str, text: str) -> None:
        click.echo(f"grpo-sentinel: {text}", err=True)

    token = read_token(config, state_dir(config), said)
    state = WebState(
        snapshots=lambda: {watch.run_id: watch.snapshot},
        problems=sinks.problems,
        act=refuse,
        act_token=secrets.token_urlsafe(24),
        metrics=sinks.metrics.render if sinks.metrics is not None else None,
        history=partial(HistoryReader, sinks.history_path) if config.sinks.history.enabled else None,
        read_token=token,
    )
    server = serve(config, state, said)
    if server is not None:
        click.echo(f"grpo-sentinel: page and /metrics at {server.url}", err=True)
        show_link(page_link(server.url, token))
    return server


def _print(told: list[Finding], as_json: bool) -> None:
    from grpo_sentinel.history.codec import plain
    from grpo_sentinel.records import FindingState

    for finding in told:
        if as_json:
            click.echo(json.dumps(plain(finding), allow_nan=False))
            continue
        state = "resolved " if finding.state is FindingState.RESOLVED else ""
        click.echo(
            f"step {finding.step}: {state}{finding.severity.name.lower()}, {finding.layer}, since step "
            f"{finding.onset_step}: {finding.message} [{finding.rule}]"
        )


__all__ = ["ingest"]
