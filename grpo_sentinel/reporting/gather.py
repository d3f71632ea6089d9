"""Reads what a report of a run tells from the history, thinned: a week-long run takes a bounded time and size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_sentinel.catalog import LAYERS, SIGNALS, layer_of, split_name
from grpo_sentinel.errors import HistoryError
from grpo_sentinel.history import HistoryReader
from grpo_sentinel.history.series import Series
from grpo_sentinel.records import Finding, FindingState, Severity
from grpo_sentinel.views import HaltStatus, RankStatus

PLOTTED = (
    "data.completion_length_mean", "data.truncated_share", "reward.mean", "reward.std", "reward.zero_variance_share",
    "policy.loss", "policy.kl_k3_nats", "policy.entropy_nats", "policy.ratio_max", "policy.clip_fraction",
    "gradient.norm_preclip", "optimizer.learning_rate", "optimizer.update_ratio", "optimizer.skipped_updates",
    "memory.rss_bytes", "memory.cuda_reserved_bytes", "time.step_seconds",
)  # fmt: skip
"""Drawn of every run that has them; signals that findings speak of come first."""

_MOST_PLOTS = 24
_MOST_RANKS = 8  # lines in one plot: more cannot be told apart
_MOST_POINTS = 400

Point = tuple[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One signal over the steps: `lines[rank]` holds (step, value) with the peaks kept; NaN marks non-finite values."""

    signal: str
    unit: str
    lines: Mapping[int, tuple[Point, ...]]
    marks: tuple[tuple[int, str], ...] = ()  # onset of findings that speak of this signal, and their message


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Everything that a report says; times are nanoseconds since the epoch."""

    run_id: str
    node: str
    parent_run_id: str
    started_wall_ns: int
    seen_wall_ns: int
    context: Mapping[str, Any]
    ranks: Mapping[int, RankStatus]
    findings: tuple[Finding, ...]  # every one that ever fired, in order of onset
    requests: tuple[HaltStatus, ...]  # newest state of each
    layers: Mapping[str, str]  # layer -> what is to be said of it in a sentence
    plots: tuple[Plot, ...]
    undrawn_ranks: int = 0  # ranks that the plots leave out
    incidents: tuple[str, ...] = ()  # bundles, by path
    kept_checkpoint: str = ""  # the newest copy from before the onset
    unjudged: str = ""  # why nothing is known of findings


def gather(
    reader: HistoryReader, run_id: str, *, signals: Sequence[str] = (), incidents: Sequence[str] = ()
) -> RunReport:
    """Read run `run_id`; `signals` are drawn besides the usual ones.

    Raises `HistoryError` when the run or one of `signals` is not in the history.
    """
    info = reader.run(run_id)
    if info is None:
        known = ", ".join(one.run_id for one in reader.runs(5)) or "none"
        raise HistoryError(f"there is no run {run_id} in the history {reader.path}; the newest there: {known}")
    recorded = set(reader.signals(run_id))
    for name in signals:
        if name not in recorded:
            raise HistoryError(f"run {run_id} recorded no signal {name}; `docs/signals.md` lists the names")
    latest = reader.latest(run_id)
    findings = tuple(sorted(reader.findings(run_id), key=lambda one: (one.onset_step, one.wall_ns)))
    last_by_request = {one.request_id: one for one in reader.requests(run_id)}
    accused = {rank for finding in findings for rank in finding.ranks if rank in latest.ranks}
    shown = sorted(sorted(latest.ranks, key=lambda rank: (rank not in accused, rank))[:_MOST_RANKS])
    names = _chosen(recorded, signals, findings)
    return RunReport(
        run_id=run_id,
        node=info.node,
        parent_run_id=info.parent_run_id,
        started_wall_ns=info.started_wall_ns,
        seen_wall_ns=info.seen_wall_ns,
        context=info.context,
        ranks=latest.ranks,
        findings=findings,
        requests=tuple(last_by_request.values()),
        layers={layer: _said(layer, recorded, findings, judged=not latest.unjudged) for layer in LAYERS},
        plots=tuple(_plot(reader, run_id, name, shown, findings) for name in names),
        undrawn_ranks=len(latest.ranks) - len(shown),
        incidents=tuple(incidents),
        kept_checkpoint=latest.halt.pinned_checkpoint,
        unjudged=latest.unjudged,
    )


def _chosen(recorded: set[str], asked: Sequence[str], findings: Sequence[Finding]) -> list[str]:
    """What was asked for, then what findings speak of, the gravest first, then the usual."""
    spoken = [one.signal for one in sorted(findings, key=lambda one: -one.severity) if one.signal in recorded]
    usual = [name for name in PLOTTED if name in recorded]
    kept = list(dict.fromkeys([*asked, *spoken, *usual]))[:_MOST_PLOTS]
    order = {layer: index for index, layer in enumerate(LAYERS)}
    return sorted(kept, key=lambda name: (order.get(layer_of(name), len(order)), kept.index(name)))


def _plot(reader: HistoryReader, run_id: str, name: str, ranks: Sequence[int], findings: Sequence[Finding]) -> Plot:
    known = SIGNALS.get(split_name(name)[0])
    lines = {rank: _points(reader.series(run_id, rank, name, max_points=_MOST_POINTS)) for rank in ranks}
    marks = {one.onset_step: one.message for one in findings if one.signal == name and one.severity > Severity.NOTE}
    return Plot(
        signal=name,
        unit=known.unit if known else "",
        lines={rank: line for rank, line in lines.items() if line},
        marks=tuple(sorted(marks.items())[:40]),
    )


def _points(series: Series) -> tuple[Point, ...]:
    """Both ends of every group, and a NaN where something in it was not finite."""
    out: list[Point] = []
    for step, low, high, bad in zip(series.steps, series.low, series.high, series.nonfinite, strict=True):
        if bad:
            out.append((step, float("nan")))
        if low == low:
            out.append((step, low))
        if high == high and high != low:
            out.append((step, high))
    return tuple(out)


def _said(layer: str, recorded: set[str], findings: Sequence[Finding], *, judged: bool) -> str:
    here = [one for one in findings if one.layer == layer and one.severity > Severity.NOTE]
    watched = sum(layer_of(name) == layer for name in recorded)
    if here:
        firing = sum(one.state is FindingState.FIRING for one in here)
        more = f", and {len(here) - 1} more" if len(here) > 1 else ""
        state = f"; {firing} still firing" if firing else "; all resolved"
        return f"wrong from step {here[0].onset_step}: {here[0].message}{more}{state}"
    found = "nothing above a note" if judged else "not judged"
    return f"{found} (signals watched: {watched})" if watched else "not watched by the agent"


__all__ = ["PLOTTED", "Plot", "RunReport", "gather"]
