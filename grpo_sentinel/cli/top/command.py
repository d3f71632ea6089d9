"""The command and its loop: look, draw, take a key, until the person leaves."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import click
from rich.console import Console, Group
from rich.live import Live

from grpo_sentinel.cli.halt import make_request
from grpo_sentinel.cli.runs import run_choice, settings_of
from grpo_sentinel.cli.status import look
from grpo_sentinel.cli.top.keyboard import Keyboard
from grpo_sentinel.cli.top.screen import screen, selectable
from grpo_sentinel.cli.top.state import Ask, State, press
from grpo_sentinel.cli.top.trend import SHOWN, Trends
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.places import state_dir
from grpo_sentinel.errors import HistoryError, SentinelError
from grpo_sentinel.history import HistoryReader, history_path
from grpo_sentinel.records import Action
from grpo_sentinel.views import Snapshot

_PREFILL_STEPS = 200


@click.command()
@run_choice
@click.option(
    "--interval", type=click.FloatRange(0.2, 60), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option("--config", "config_path", metavar="FILE", help="Settings of the sidecar, for its directories.")
@click.option("--root", metavar="DIR", help="Where rings live.")
def top(run_id: str | None, interval: float, config_path: str | None, root: str | None) -> int:
    """Watch a run live in the terminal: layers, ranks, findings, devices; ask for a checkpoint or a halt with a key.

    Without RUN: the one that is alive, else the newest. Keys: tab, arrows, c, h, ? and q. Fits 80 columns.
    """
    config = settings_of(config_path, run_id, root)
    try:
        with Keyboard() as keyboard:
            return _loop(config, run_id, interval, keyboard)
    except OSError as error:
        raise SentinelError(
            f"top needs a terminal ({error}); use `grpo-sentinel status`, or --json in scripts"
        ) from error


def _loop(config: Config, run_id: str | None, interval: float, keyboard: Keyboard) -> int:
    snapshot, source = look(config, run_id)
    state, trends = State(), Trends()
    _prefill(config, snapshot, trends)
    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        due = 0.0
        while True:
            now = time.monotonic()
            if now >= due:
                snapshot, source = look(config, run_id or snapshot.run_id or None)
                trends.add(snapshot.ranks)
                due = now + interval
            live.update(Group(*screen(snapshot, source, state, trends, *console.size)), refresh=True)
            key = keyboard.key(due - time.monotonic())
            if key is None:
                continue
            state, ask = press(state, key, selectable(snapshot, state))
            if ask is Ask.QUIT:
                return 0
            if ask is Ask.REQUEST and state.question is not None:
                state = replace(state, question=None, said=_request(config, snapshot.run_id, state.question))
                due = 0.0


def _request(config: Config, run_id: str, action: Action) -> str:
    """Make the request as `halt` and `checkpoint` do; gives what to say."""
    try:
        return f"request {make_request(config, run_id, action, 'asked in top')} is made"
    except SentinelError as error:
        return str(error)


def _prefill(config: Config, snapshot: Snapshot, trends: Trends) -> None:
    """Begin the trends with the last steps of the lowest rank in the history; without a history they begin empty."""
    rank = min(snapshot.ranks, default=None)
    if rank is None:
        return
    since = max(0, snapshot.ranks[rank].last_step - _PREFILL_STEPS)
    try:
        with HistoryReader(history_path(state_dir(config), socket.gethostname())) as reader:
            for _, name in SHOWN:
                series = reader.series(snapshot.run_id, rank, name, since_step=since)
                bad = zip(series.high, series.nonfinite, strict=True)
                trends.fill(name, (float("nan") if count else value for value, count in bad))
    except HistoryError:
        return
