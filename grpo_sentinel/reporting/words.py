"""The sentences and rows of a report that Markdown and HTML both show: everything is told once, here."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from grpo_sentinel import views
from grpo_sentinel.incidents.report import finding_line
from grpo_sentinel.records import Finding, HaltState, Severity
from grpo_sentinel.reporting.gather import Plot, RunReport
from grpo_sentinel.reporting.sparkline import sparkline, thinned
from grpo_sentinel.wording import counted

VALUE_HEAD = ("signal", "unit", "first", "last", "lowest", "highest", "not finite")
RANK_HEAD = ("rank", "host", "state", "newest step", "phase")
_MOST_FINDINGS = 50
_MOST_SETTINGS = 60
_BLOCKS_WIDE = 32


def headline(report: RunReport) -> str:
    """What came of the run, in one sentence."""
    told = chains(report)
    grave = [root for root, chain in told if any(one.severity is Severity.CRITICAL for one in (root, *chain))]
    steps = counted(max((status.last_step for status in report.ranks.values()), default=0), "step")
    if grave:
        first = grave[0]
        return f"{steps}; wrong first in the {first.layer} layer, from step {first.onset_step}: {first.message}."
    if told:
        return f"{steps}; {counted(len(told), 'warning')}, nothing critical."
    if report.unjudged:
        return f"{steps}; whether anything was wrong is unknown: {report.unjudged}."
    return f"{steps}; nothing above a note was found."


def facts(report: RunReport) -> list[tuple[str, str]]:
    """The head of the report."""
    parent = f", resumed from {report.parent_run_id}" if report.parent_run_id else ""
    rows = [
        ("run", f"{report.run_id} on {report.node}{parent}"),
        ("time", f"{_when(report.started_wall_ns)} to {_when(report.seen_wall_ns)} ({_span(report)})"),
        ("ranks on this node", str(len(report.ranks))),
    ]
    rows += [("request", _request(one)) for one in report.requests if one.state is not HaltState.NONE]
    if report.kept_checkpoint:
        rows.append(("kept from before the onset", report.kept_checkpoint))
    rows += [("incident", path) for path in report.incidents]
    return rows


def _request(one: Any) -> str:
    action = one.action.name.lower().replace("_", "-")
    at = f" at step {one.step}" if one.step else ""
    return f"{action} by {one.requested_by}: {one.state.name.lower()}{at}" + (f", {one.detail}" if one.detail else "")


def chains(report: RunReport) -> list[tuple[Finding, tuple[Finding, ...]]]:
    """Roots above a note with what followed from each, in order of onset; at most fifty."""
    told = [one for one in report.findings if one.severity > Severity.NOTE]
    return views.chains(told)[:_MOST_FINDINGS]


def notes(report: RunReport) -> list[str]:
    """What was only noted, a line each."""
    told = [finding_line(one) for one in report.findings if one.severity is Severity.NOTE]
    return told[:_MOST_FINDINGS] + ([f"and {len(told) - _MOST_FINDINGS} more"] if len(told) > _MOST_FINDINGS else [])


def value_rows(report: RunReport) -> list[tuple[str, ...]]:
    """One row per plotted signal over all ranks drawn, by `VALUE_HEAD`."""
    return [row for plot in report.plots if (row := _values(plot)) is not None]


def drawn_rows(report: RunReport) -> list[tuple[str, ...]]:
    """The same with a line of blocks: that of the rank whose values part furthest, as its name says."""
    return [(*row, _blocks(plot)) for plot in report.plots if (row := _values(plot)) is not None]


def _blocks(plot: Plot) -> str:
    lines = {rank: [value for _, value in line] for rank, line in plot.lines.items() if line}
    rank = max(lines, key=lambda one: _spread(lines[one]))
    drawn = sparkline(thinned(lines[rank], _BLOCKS_WIDE)).replace("!", "×")  # "!" means something in Markdown
    return f"{drawn} rank {rank}" if len(lines) > 1 else drawn


def _spread(values: list[float]) -> float:
    return max(values) - min(values) if all(map(math.isfinite, values)) else math.inf


def _values(plot: Plot) -> tuple[str, ...] | None:
    points = sorted(point for line in plot.lines.values() for point in line)
    finite = [(step, value) for step, value in points if math.isfinite(value)]
    bad = len(points) - len(finite)
    if not points:
        return None
    if not finite:
        return (plot.signal, plot.unit, "-", "-", "-", "-", str(bad))
    values = [value for _, value in finite]
    numbers = (finite[0][1], finite[-1][1], min(values), max(values))
    return (plot.signal, plot.unit, *(f"{number:.6g}" for number in numbers), str(bad))


def rank_rows(report: RunReport) -> list[tuple[str, ...]]:
    """The ranks as last seen."""
    rows: list[tuple[str, ...]] = []
    for rank, status in sorted(report.ranks.items()):
        state = status.liveness.value + (f" ({status.closed_detail})" if status.closed_detail else "")
        phase = status.heartbeat.phase.name.lower().replace("_", "-")
        rows.append((str(rank), status.identity.host, state, str(status.last_step), phase))
    return rows


def setting_rows(report: RunReport) -> list[tuple[str, str]]:
    """The trainer's configuration as the agent saw it, flat; nested values by dotted name."""
    rows = [(name, str(value)) for name, value in _flat("", report.context)]
    return rows[:_MOST_SETTINGS] + ([("…", f"{len(rows) - _MOST_SETTINGS} more")] if len(rows) > _MOST_SETTINGS else [])


def _flat(prefix: str, body: Mapping[str, Any]) -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for name, value in body.items():
        if isinstance(value, Mapping):
            out += _flat(f"{prefix}{name}.", value)
        else:
            out.append((f"{prefix}{name}", value))
    return out


def _when(wall_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(wall_ns / 1e9)) if wall_ns else "not known"


def _span(report: RunReport) -> str:
    minutes = max(0.0, (report.seen_wall_ns - report.started_wall_ns) / 60e9)
    if minutes < 2:
        return f"{60 * minutes:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


__all__ = [
    "RANK_HEAD",
    "VALUE_HEAD",
    "chains",
    "drawn_rows",
    "facts",
    "headline",
    "notes",
    "rank_rows",
    "setting_rows",
    "value_rows",
]
