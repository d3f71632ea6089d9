"""Snapshots as tables for people and as strict JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grpo_sentinel.catalog import LAYERS
from grpo_sentinel.history.codec import plain
from grpo_sentinel.records import Finding, HaltState, Liveness, Severity
from grpo_sentinel.views import HaltStatus, RankStatus, Snapshot, chains, layers_seen

_COLOURS = {Severity.NOTE: "dim", Severity.WARNING: "yellow", Severity.CRITICAL: "bold red"}
_KEY_VALUES = (
    ("reward", "reward.mean"), ("loss", "policy.loss"), ("kl", "policy.kl_k3_nats"), ("entropy", "policy.entropy_nats"),
    ("grad norm", "gradient.norm_preclip"), ("lr", "optimizer.learning_rate"), ("skipped", "optimizer.skipped_updates"),
    ("rss", "memory.rss_bytes"), ("step s", "time.step_seconds"),
)  # fmt: skip
_SPARED = ("host", "pid", "rss", "lr", "skipped", "entropy", "kl")  # left out of a narrow table, in this order


def print_json(body: Any) -> None:
    """Print strict JSON: NaN and infinities are the strings "NaN", "Infinity", "-Infinity"."""
    click.echo(json.dumps(plain(body), allow_nan=False, indent=2))


def print_snapshot(snapshot: Snapshot, source: str, console: Console | None = None) -> None:
    """Print one run: ranks, layers, findings with their chains, the request, what is off."""
    console = console or plain_console()
    now = time.time_ns()
    console.print(Text(f"run {snapshot.run_id or '-'} on {snapshot.node or '-'}", style="bold"), Text(f"({source})"))
    if not snapshot.ranks:
        console.print("no rank has attached yet: nothing is known")
        return
    console.print(_ranks(snapshot.ranks, now, console.width))
    console.print(_layers(snapshot))
    for line in _findings(snapshot.findings):
        console.print(line)
    console.print(halt_line(snapshot.halt))
    for note in snapshot.notes:
        console.print(Text(f"off: {note}", style="yellow"))


def plain_console() -> Console:
    """A console for stdout; wide enough for every column where there is no terminal to fit."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 240)


def _ranks(ranks: Mapping[int, RankStatus], now: int, width: int) -> Table:
    """A line a rank; columns that do not fit the width are left out, the least needed first."""
    keys = [(title, name) for title, name in _KEY_VALUES if any(name in status.values for status in ranks.values())]
    titles = ["rank", "host", "pid", "state", "step", "phase", "since", *(title for title, _ in keys)]
    rows = [dict(zip(titles, _rank(rank, status, keys, now), strict=True)) for rank, status in sorted(ranks.items())]
    needed = {title: max(len(title), *(len(row[title]) for row in rows)) + 2 for title in titles}
    for title in (*_SPARED, *reversed(titles)):
        if sum(needed.values()) - 2 <= width or len(needed) == 1:
            break
        needed.pop(title, None)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in needed:
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(*(row[title] for title in needed))
    return table


def _rank(rank: int, status: RankStatus, keys: list[tuple[str, str]], now: int) -> list[Text]:
    beat = status.heartbeat
    state = status.liveness.value + (f" ({status.closed_detail})" if status.closed_detail else "")
    style = {Liveness.DEAD: "bold red", Liveness.UNKNOWN: "yellow"}.get(status.liveness, "")
    cells = (
        str(rank), status.identity.host, str(status.identity.pid), state, str(status.last_step),
        beat.phase.name.lower().replace("_", "-"), ago(now - beat.phase_since_wall_ns),
        *(short(status.values.get(name), name) for _, name in keys),
    )  # fmt: skip
    return [Text(cell, style=style if cell is state else "") for cell in cells]


def _layers(snapshot: Snapshot) -> Text:
    """One word per layer: its gravest finding, or ok, or nothing known."""
    line = Text("layers: ")
    seen = layers_seen(snapshot)
    for layer in LAYERS:
        worst = max((finding.severity for finding in snapshot.findings if finding.layer == layer), default=None)
        known = layer in seen
        if worst is not None:
            line.append(f"{layer} {worst.name.lower()}  ", style=_COLOURS[worst])
        else:
            line.append(f"{layer} {'ok' if known else '-'}  ", style="green" if known else "dim")
    return line


def _findings(findings: tuple[Finding, ...]) -> list[Text]:
    """Roots first, what follows from each beneath it."""
    if not findings:
        return [Text("no finding is firing", style="green")]
    lines = []
    for root, chain in chains(findings):
        lines.append(_finding(root, "  "))
        if root.remedies:
            lines.append(Text(f"      try: {root.remedies[0]}", style="dim"))
        lines += [_finding(one, "    └ ") for one in chain]
    return [Text("findings:"), *lines]


def _finding(finding: Finding, indent: str) -> Text:
    where = f"rank {', '.join(map(str, finding.ranks))}" if finding.ranks else "rank not known"
    return Text.assemble(
        indent,
        (finding.severity.name.lower(), _COLOURS[finding.severity]),
        f" {finding.layer}, {where}, since step {finding.onset_step}: {finding.message} [{finding.rule}]",
    )


def halt_line(halt: HaltStatus) -> Text:
    """Say where the newest request stands."""
    pinned = f"; kept checkpoint {halt.pinned_checkpoint}" if halt.pinned_checkpoint else ""
    if halt.dry_run:
        return Text(f"request: {halt.detail} ({halt.reason}){pinned}", style="yellow")
    if halt.state is HaltState.NONE:
        return Text(f"request: none{pinned}")
    step = f" at step {halt.step}" if halt.step else ""
    detail = f", {halt.detail}" if halt.detail else ""
    action = halt.action.name.lower().replace("_", "-")
    style = "green" if halt.state is HaltState.DONE else "yellow"
    return Text(
        f"request {halt.request_id}: {action} by {halt.requested_by}: {halt.state.name.lower()}{step}{detail}{pinned}"
        + (f"; {halt.gave_way}" if halt.gave_way else ""),
        style=style,
    )


def short(value: float | None, name: str = "") -> str:
    """Write a number in few characters; bytes in MiB or GiB."""
    if value is None:
        return "-"
    if name.endswith("_bytes"):
        return f"{value / 2**30:.1f}G" if value >= 2**30 else f"{value / 2**20:.0f}M"
    return f"{value:.4g}"


def ago(nanoseconds: int) -> str:
    """Write a span of time in few characters."""
    seconds = max(0.0, nanoseconds / 1e9)
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
