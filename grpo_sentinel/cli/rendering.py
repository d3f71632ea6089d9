"""Snapshots as tables for people and as strict JSON for programs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
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
_PIPED_COLUMNS = 100
_WIDE = 100_000
_SHORTEST = 40  # columns of a text that may be cut


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
    for line in (*_ranks(snapshot.ranks, now, console.width), *_layers(snapshot, console.width)):
        console.print(line)
    for line in _findings(snapshot):
        console.print(line)
    console.print(halt_line(snapshot.halt))
    for note in snapshot.notes:
        console.print(Text(f"off: {note}", style="yellow"))


def plain_console(*, wide: bool = False) -> Console:
    """A console for stdout, as wide as its terminal; in a pipe or a file as wide as COLUMNS says, else 100 columns."""
    given = os.environ.get("COLUMNS", "")
    piped = int(given) if given.isdigit() and int(given) else _PIPED_COLUMNS
    return Console(highlight=False, soft_wrap=True, width=_WIDE if wide else None if sys.stdout.isatty() else piped)


def fitted(
    titles: Sequence[str], rows: Sequence[Sequence[Text]], width: int, spared: Sequence[str] = (), *, cut: bool = False
) -> tuple[list[Text], list[str]]:
    """Give a table as a head and one line a row of at most `width` columns, and the titles that found no room.

    Columns are left out in the order of `spared`, then from the right; with `cut` the last one is shortened instead,
    and named, once there is nothing left to spare.
    """
    sizes = [max([cell_len(title), *(row[at].cell_len for row in rows)]) for at, title in enumerate(titles)]
    kept = list(range(len(titles)))
    order = [*spared] if cut else [*spared, *reversed(titles)]

    def needed() -> int:
        tail = min(sizes[kept[-1]], _SHORTEST) if cut else sizes[kept[-1]]
        return sum(sizes[at] + 2 for at in kept[:-1]) + tail

    left_out = []
    for title in order:
        if needed() <= width or len(kept) == 1:
            break
        if (at := list(titles).index(title)) in kept:
            kept.remove(at)
            left_out.append(title)
    lines = []
    for cells in ([Text(title, style="dim") for title in titles], *rows):
        line = Text(no_wrap=True)
        for at in kept:
            line.append_text(cells[at])
            line.append(" " * (sizes[at] - cells[at].cell_len + 2) if at != kept[-1] else "")
        if cut and line.cell_len > width:
            line.truncate(width, overflow="ellipsis")
            left_out = [*left_out, titles[-1]] if titles[-1] not in left_out else left_out
        line.rstrip()
        lines.append(line)
    return lines, left_out


def room_note(left_out: Sequence[str], console: Console) -> list[Text]:
    """Say in a line what a table had no room for; none when it shows all."""
    told = f"  no room for all of: {', '.join(left_out)} ({console.width} columns); --wide shows it"
    return [Text(told, style="dim")] if left_out else []


def _ranks(ranks: Mapping[int, RankStatus], now: int, width: int) -> list[Text]:
    """A line a rank; columns that do not fit the width are left out, the least needed first."""
    keys = [(title, name) for title, name in _KEY_VALUES if any(name in status.values for status in ranks.values())]
    titles = ["rank", "host", "pid", "state", "step", "phase", "since", *(title for title, _ in keys)]
    rows = [_rank(rank, status, keys, now) for rank, status in sorted(ranks.items())]
    return fitted(titles, rows, width, [title for title in _SPARED if title in titles])[0]


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


def _layers(snapshot: Snapshot, width: int) -> list[Text]:
    """One word per layer: its gravest finding, or ok, or nothing known; in as many lines as they need."""
    lines = [Text("layers: ")]
    seen = layers_seen(snapshot)
    for layer in LAYERS:
        worst = max((finding.severity for finding in snapshot.findings if finding.layer == layer), default=None)
        known = layer in seen
        word = worst.name.lower() if worst is not None else "ok" if known else "unknown" if snapshot.unjudged else "-"
        style = _COLOURS[worst] if worst is not None else "green" if known else "dim"
        if lines[-1].cell_len + len(f"{layer} {word}") > width:
            lines.append(Text("        "))
        lines[-1].append(f"{layer} {word}  ", style=style)
    for line in lines:
        line.rstrip()
    return lines


def _findings(snapshot: Snapshot) -> list[Text]:
    """Roots first, what follows from each beneath it."""
    findings = snapshot.findings
    if snapshot.unjudged:
        return [Text(f"findings: unknown: {snapshot.unjudged}", style="yellow")]
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
    pinned = f"; kept from before the onset: {halt.pinned_checkpoint}" if halt.pinned_checkpoint else ""
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
