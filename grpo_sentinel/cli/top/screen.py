"""A snapshot as lines that fit 80 columns or more: header, layers, one view, trends, the request, keys."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.text import Text

from grpo_sentinel.catalog import LAYERS
from grpo_sentinel.cli.rendering import ago, halt_line, short
from grpo_sentinel.cli.top.state import HELP, KEYS, State, View
from grpo_sentinel.cli.top.trend import Trends
from grpo_sentinel.records import Finding, Liveness, Severity
from grpo_sentinel.views import RankStatus, Snapshot, chains, layers_seen
from grpo_sentinel.wording import counted

_COLOURS = {Severity.NOTE: "dim", Severity.WARNING: "yellow", Severity.CRITICAL: "bold red"}
_MARKS = {Severity.NOTE: "note", Severity.WARNING: "WARN", Severity.CRITICAL: "CRIT"}
_RANK_COLUMNS = (
    ("rank", 4), ("state", 8), ("step", 7), ("phase", 11), ("since", 7), ("reward", 8), ("loss", 9),
    ("norm", 8), ("rss", 6),
)  # fmt: skip
_RANK_SIGNALS = ("reward.mean", "policy.loss", "gradient.norm_preclip", "memory.rss_bytes")
_MOST_TRENDS = 5


def screen(snapshot: Snapshot, source: str, state: State, trends: Trends, width: int, height: int) -> list[Text]:
    """Give exactly `height` lines of at most `width` columns."""
    top = [_header(snapshot, width), _source(source, snapshot), _verdict(snapshot), *_layers(snapshot, width)]
    bottom = [halt_line(snapshot.halt), _keys(state)]
    told = trends.lines(max(10, width - 24))[:_MOST_TRENDS] if height >= 20 else []
    charts = [Text(f"{title:>9} {short(value):>10}  {blocks}", style="cyan") for title, value, blocks in told]
    room = max(1, height - len(top) - len(bottom) - len(charts) - 1)
    middle = _view(snapshot, state, width, room)
    lines = [*top, Text(""), *middle[:room], *[Text("")] * (room - len(middle)), *charts, *bottom]
    return [_cut(line, width) for line in lines[:height]]


def selectable(snapshot: Snapshot, state: State) -> int:
    """How many lines of the view can be selected."""
    return {
        View.RANKS: len(snapshot.ranks), View.FINDINGS: len(snapshot.findings), View.DEVICES: len(_devices(snapshot)),
        View.HEALTH: len(_health(snapshot)),
    }[state.view]  # fmt: skip


def _header(snapshot: Snapshot, width: int) -> Text:
    step = max((status.last_step for status in snapshot.ranks.values()), default=0)
    left = f"{snapshot.run_id or 'no run'}  step {step}  {counted(len(snapshot.ranks), 'rank')}"
    return Text(f"{left}  {time.strftime('%H:%M:%S')}", style="bold")


def _source(source: str, snapshot: Snapshot) -> Text:
    off = f"; off: {snapshot.notes[0]}" if snapshot.notes else ""
    return Text(source + off, style="yellow" if off or "no daemon" in source else "dim")


def _verdict(snapshot: Snapshot) -> Text:
    """The first cause of the worst that fires: what, where, since when."""
    if snapshot.unjudged:
        return Text(f"whether anything is wrong is unknown: {snapshot.unjudged}", style="yellow")
    worst = next((one for one, _ in _chained(snapshot.findings)), None)
    if worst is None or worst.severity is Severity.NOTE:
        return Text("nothing is wrong in what is watched", style="green") if snapshot.ranks else Text("")
    return _line(worst)


def _chained(findings: Sequence[Finding]) -> list[tuple[Finding, int]]:
    """The worst cause first, each with what followed from it below: `(finding, 0 or 1)`."""
    order = sorted(findings, key=lambda one: (-one.severity, one.onset_step))
    return [pair for root, chain in chains(order) for pair in ((root, 0), *((one, 1) for one in chain))]


def _layers(snapshot: Snapshot, width: int) -> list[Text]:
    """The layers in as many lines as they need: worst finding, ok, or - for not watched."""
    lines = [Text()]
    watched = layers_seen(snapshot)
    for layer in LAYERS:
        worst = max((one.severity for one in snapshot.findings if one.layer == layer), default=None)
        word = _MARKS[worst] if worst is not None else ("ok" if layer in watched else "-")
        style = _COLOURS[worst] if worst is not None else ("green" if layer in watched else "dim")
        piece = f"{layer} {word}  "
        if lines[-1].cell_len + len(piece) > width:
            lines.append(Text())
        lines[-1].append(piece, style=style)
    return lines


def _view(snapshot: Snapshot, state: State, width: int, room: int) -> list[Text]:
    if state.helping:
        return [Text(f"{keys:>8}  {what}") for keys, what in HELP]
    if state.view is View.RANKS:
        return _ranks(snapshot, state, room)
    if state.view is View.FINDINGS:
        return _findings(snapshot, state, width, room)
    rows = _devices(snapshot) if state.view is View.DEVICES else _health(snapshot)
    title = "devices and host" if state.view is View.DEVICES else "the sentinel itself"
    return [Text(title, style="dim"), *_window([Text(row) for row in rows or ["nothing known"]], state.line, room - 1)]


def _ranks(snapshot: Snapshot, state: State, room: int) -> list[Text]:
    """Ranks in trouble first: with hundreds of them the healthy ones are the ones to scroll to."""
    accused = {rank for finding in snapshot.findings for rank in finding.ranks if finding.severity > Severity.NOTE}
    order = sorted(snapshot.ranks, key=lambda rank: (_is_well(snapshot.ranks[rank]) and rank not in accused, rank))
    now = time.time_ns()
    rows = [_rank(rank, snapshot.ranks[rank], rank in accused, now) for rank in order]
    head = Text(" ".join(f"{title:<{size}}" for title, size in _RANK_COLUMNS), style="dim")
    return [head, *_window(rows or [Text("no rank has attached yet")], state.line, room - 1)]


def _is_well(status: RankStatus) -> bool:
    return status.liveness not in (Liveness.DEAD, Liveness.UNKNOWN)


def _rank(rank: int, status: RankStatus, accused: bool, now: int) -> Text:
    beat = status.heartbeat
    since = ago(now - beat.phase_since_wall_ns).replace(" ", "")
    phase = beat.phase.name.lower().replace("_", "-")
    numbers = [short(status.values.get(name), name) for name in _RANK_SIGNALS]
    cells = (str(rank), status.liveness.value, str(status.last_step), phase, since, *numbers)
    style = "bold red" if status.liveness is Liveness.DEAD else ("yellow" if accused else "")
    sizes = (size for _, size in _RANK_COLUMNS)
    return Text(" ".join(f"{cell:<{size}.{size}}" for cell, size in zip(cells, sizes, strict=True)), style=style)


def _findings(snapshot: Snapshot, state: State, width: int, room: int) -> list[Text]:
    """The list, and under it what the selected one means and what to try."""
    findings = snapshot.findings
    if snapshot.unjudged:
        return _wrapped(f"findings: unknown: {snapshot.unjudged}", width)
    if not findings:
        return [Text("no finding is firing", style="green")]
    chained = _chained(findings)
    chosen, _ = chained[min(state.line, len(chained) - 1)]
    detail = [Text(""), *_wrapped(f"why: {chosen.why}", width)] if chosen.why else []
    detail += [line for remedy in chosen.remedies for line in _wrapped(f"try: {remedy}", width)]
    share = max(1, room - min(len(detail), room // 2))
    rows = [Text.assemble("  └ " * depth, _line(one)) for one, depth in chained]
    return [*_window(rows, state.line, share), *detail[: room - min(share, len(rows))]]


def _line(finding: Finding) -> Text:
    told = f" {finding.layer} {_where(finding)} step {finding.onset_step}: {finding.message}"
    return Text.assemble((_MARKS[finding.severity], _COLOURS[finding.severity]), told)


def _where(finding: Finding) -> str:
    if not finding.ranks:
        return "rank ?"
    named = ",".join(map(str, finding.ranks[:4]))
    return f"rank {named}{'…' if len(finding.ranks) > 4 else ''}"


def _devices(snapshot: Snapshot) -> list[str]:
    rows = []
    for entity, sample in sorted(snapshot.samples.items()):
        name = sample.labels.get("gpu", entity)
        numbers = ((signal, short(value, signal)) for signal, value in sample.values.items())
        rows += [
            f"{signal.split('.', 1)[-1]:<30} {word:<10} {name}" for signal, word in (*numbers, *sample.failed.items())
        ]
    return rows


def _health(snapshot: Snapshot) -> list[str]:
    numbers = [f"{name} {short(value, name)}" for name, value in sorted(snapshot.health.items())]
    silent = [f"cannot judge: {rule}: {why}" for rule, why in sorted(snapshot.abstaining.items())]
    return [*(f"off: {note}" for note in snapshot.notes), *numbers, *silent]


def _window(rows: list[Text], line: int, room: int) -> list[Text]:
    """The rows around the selected one, which is shown reversed."""
    line = min(line, len(rows) - 1)
    first = max(0, min(line - room // 2, len(rows) - room))
    shown = rows[first : first + max(1, room)]
    shown[line - first] = shown[line - first].copy()
    shown[line - first].stylize("reverse")
    return shown


def _wrapped(text: str, width: int) -> list[Text]:
    import textwrap

    return [Text(line, style="dim") for line in textwrap.wrap(text, width, subsequent_indent="     ")]


def _keys(state: State) -> Text:
    if state.question is not None:
        word = state.question.name.lower().replace("_", "-")
        return Text(f"ask the run for {word}? y to ask, any other key not to", style="reverse")
    if state.said:
        return Text(state.said, style="bold")
    return Text(f"[{state.view.value}]  " + "  ".join(f"{keys} {what}" for keys, what in KEYS), style="dim")


def _cut(line: Text, width: int) -> Text:
    line = line.copy()
    line.no_wrap = True
    line.truncate(width, overflow="ellipsis")
    return line


__all__ = ["screen", "selectable"]
