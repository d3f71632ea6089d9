"""What /metrics serves: the newest snapshots as Prometheus text or OpenMetrics, from cached line prefixes.

    snapshot.ranks[r].values ─┐  plan of the rank (made once per set of names):
                              ├─ [(metric, 'grpo_sentinel_policy_loss{run_id="r",...} '), ...] + repr(value) ─▶ lines
    snapshot.samples ─────────┘

Series per rank and signal are many; formatting names and labels anew at every scrape costs ten times the numbers. The
`prometheus_client` package only reads the Accept header here.
"""

from __future__ import annotations

import math
import operator
import platform
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from prometheus_client.exposition import choose_encoder

from grpo_sentinel._version import __version__
from grpo_sentinel.clock import Clock, SystemClock
from grpo_sentinel.config import PrometheusConfig
from grpo_sentinel.sinks.exposition import (
    OPENMETRICS_TYPE,
    PREFIX,
    TEXT_TYPE,
    Family,
    escape,
    family_and_labels,
    labels_text,
    number_text,
)
from grpo_sentinel.sinks.run_metrics import Row, health_rows, run_rows, sample_rows
from grpo_sentinel.views import RankStatus, SinkBatch, Snapshot

MAX_SERIES_PER_RANK = 2000  # signal names come from the trainer: a runaway dimension must not swell every scrape
MAX_NONFINITE_SERIES = 5000

NONFINITE = Family(PREFIX + "nonfinite", "gauge", "1 while the newest value of a signal is NaN or infinite")
NONFINITE_VALUES = Family(PREFIX + "nonfinite_values", "counter", "NaN and infinite values of a signal seen so far")
BUILD = Family(PREFIX + "build", "info", "version of grpo-sentinel and of the Python it runs on")
RENDER_SECONDS = Family(PREFIX + "scrape_render_seconds", "gauge", "time the previous scrape took to be rendered")
SERIES_DROPPED = Family(PREFIX + "scrape_series_dropped", "gauge", "series left out because a rank has too many")

Lines = defaultdict[Family, list[str]]


@dataclass(frozen=True, slots=True)
class _Plan:
    """Line prefixes of one rank, in the order of its values. Ranks with the same names share `families`."""

    names: tuple[str, ...]
    labels: str  # inside of the braces, without a dimension
    families: tuple[Family, ...]
    prefixes: tuple[str, ...]
    left_out: tuple[int, ...]

    @property
    def dropped(self) -> int:
        return len(self.left_out)


class MetricsRenderer:
    """Serve /metrics, and as a sink count the non-finite values that a scrape would miss. Safe from any thread."""

    def __init__(self, config: PrometheusConfig | None = None, clock: Clock | None = None) -> None:
        self._config = config or PrometheusConfig()
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._snapshots: dict[str, Snapshot] = {}
        self._plans: dict[tuple[str, int], _Plan] = {}
        self._nonfinite: dict[tuple[str, int, str], int] = {}
        self._render_seconds = 0.0

    # ---- as a sink

    def write(self, batch: SinkBatch) -> None:
        """Keep the snapshot and count NaN and infinities in the records."""
        with self._lock:
            self._snapshots[batch.run_id] = batch.snapshot
            for record in batch.records:
                for name, value in record.values.items():
                    if value - value != 0.0:
                        self._count((record.run_id, record.rank, name))

    def _count(self, key: tuple[str, int, str]) -> None:
        if key in self._nonfinite or len(self._nonfinite) < MAX_NONFINITE_SERIES:
            self._nonfinite[key] = self._nonfinite.get(key, 0) + 1

    def close(self) -> None:
        """Nothing to let go of."""

    # ---- as a page

    def render(self, accept: str = "", snapshots: Iterable[Snapshot] | None = None) -> tuple[bytes, str]:
        """Give the body and its content type, negotiated by an Accept header.

        `snapshots` are the runs to show, newest first; without them the newest that came through `write`.
        """
        started = time.perf_counter()
        openmetrics = choose_encoder(accept)[1].startswith("application/openmetrics-text")
        with self._lock:
            shown = list(self._snapshots.values()) if snapshots is None else list(snapshots)
            lines = self._collect(shown)
            self._forget(shown)
            body = _join(lines, openmetrics)
            self._render_seconds = time.perf_counter() - started
        return body, OPENMETRICS_TYPE if openmetrics else TEXT_TYPE

    def _collect(self, snapshots: list[Snapshot]) -> Lines:
        lines: Lines = defaultdict(list)
        oldest = self._clock.wall_ns() - round(self._config.stale_seconds * 1e9)
        _add(lines, [(BUILD, {"version": __version__, "python": platform.python_version()}, 1.0)])
        for snapshot in snapshots:
            _add(lines, run_rows(snapshot))
        dropped = self._add_ranks(
            lines,
            (
                (snapshot, rank, status)
                for snapshot in snapshots
                for rank, status in snapshot.ranks.items()
                if max(status.updated_wall_ns, status.heartbeat.updated_wall_ns) >= oldest
            ),
        )
        _add(lines, sample_rows(snapshots, oldest, gpus=self._config.gpu_metrics))
        _add(lines, health_rows(snapshots[0]) if snapshots else [])
        self._add_counts(lines, snapshots)
        own: list[Row] = [(RENDER_SECONDS, {}, self._render_seconds), (SERIES_DROPPED, {}, float(dropped))]
        _add(lines, own)
        return lines

    def _add_ranks(self, lines: Lines, fresh: Iterable[tuple[Snapshot, int, RankStatus]]) -> int:
        """Add the series of all ranks; gives how many were left out. Every line passes here: keep it lean."""
        groups: defaultdict[int, list[tuple[_Plan, list[str]]]] = defaultdict(list)
        for snapshot, rank, status in fresh:
            plan = self._plan(snapshot, rank, status)
            groups[id(plan.families)].append((plan, self._rows(lines, plan, list(status.values.values()))))
        dropped = 0
        for group in groups.values():
            plan = group[0][0]
            whole = all("" not in rows for _, rows in group)
            for family, *column in zip(plan.families, *(rows for _, rows in group), strict=True):
                lines[family] += column if whole else filter(None, column)
            dropped += sum(plan.dropped for plan, _ in group)
        return dropped

    def _rows(self, lines: Lines, plan: _Plan, values: list[float]) -> list[str]:
        rows = list(map(operator.add, plan.prefixes, map(repr, values)))
        if not math.isfinite(sum(values)):
            for index, value in enumerate(values):
                if value - value != 0.0:
                    rows[index] = self._nonfinite_row(lines, plan, index, value)
        for index in plan.left_out:
            rows[index] = ""
        return rows

    def _nonfinite_row(self, lines: Lines, plan: _Plan, index: int, value: float) -> str:
        name = plan.names[index]
        lines[NONFINITE].append(f'{NONFINITE.name}{{{plan.labels},signal="{escape(name)}"}} 1.0')
        if plan.families[index].kind == "counter":  # OpenMetrics refuses a scrape with such a counter
            return ""
        return plan.prefixes[index] + number_text(value)

    def _plan(self, snapshot: Snapshot, rank: int, status: RankStatus) -> _Plan:
        names, labels = tuple(status.values), _rank_labels(snapshot, status)
        known = self._plans.get((snapshot.run_id, rank))
        if known is not None and known.names == names and known.labels == labels:
            return known
        families = _families(names)
        prefixes, left_out = _prefixes(names, labels)
        plan = _Plan(names, labels, families, prefixes, left_out)
        self._plans[snapshot.run_id, rank] = plan
        return plan

    def _add_counts(self, lines: Lines, snapshots: list[Snapshot]) -> None:
        by_run = {snapshot.run_id: snapshot for snapshot in snapshots}
        for (run_id, rank, name), count in self._nonfinite.items():
            status = by_run[run_id].ranks.get(rank) if run_id in by_run else None
            if status is not None:
                labels = _rank_labels(by_run[run_id], status)
                text = f'{NONFINITE_VALUES.sample_name}{{{labels},signal="{escape(name)}"}} {float(count)!r}'
                lines[NONFINITE_VALUES].append(text)

    def _forget(self, shown: list[Snapshot]) -> None:
        """Drop what belongs to runs that are gone, so that a sidecar of many runs does not grow."""
        live = {snapshot.run_id for snapshot in shown}
        if len(self._plans) > sum(len(snapshot.ranks) for snapshot in shown):
            self._plans = {key: plan for key, plan in self._plans.items() if key[0] in live}
        if any(key[0] not in live for key in self._nonfinite):
            self._nonfinite = {key: count for key, count in self._nonfinite.items() if key[0] in live}
        self._snapshots = {run: snapshot for run, snapshot in self._snapshots.items() if run in live}


def _rank_labels(snapshot: Snapshot, status: RankStatus) -> str:
    identity = status.identity
    pairs = (
        ("run_id", snapshot.run_id),
        ("node", snapshot.node or identity.host),
        ("rank", str(identity.rank)),
        ("role", identity.role),
    )
    return labels_text(pairs)[1:-1]


@lru_cache(maxsize=64)
def _families(names: tuple[str, ...]) -> tuple[Family, ...]:
    return tuple(family_and_labels(name)[0] for name in names)


def _prefixes(names: Iterable[str], labels: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Write the prefix of every name; a duplicate or one too many is left out (one would void the whole scrape)."""
    prefixes: list[str] = []
    left_out: list[int] = []
    seen: set[str] = set()
    for index, name in enumerate(names):
        family, extra = family_and_labels(name)
        more = labels_text(extra)
        inside = f"{labels},{more[1:-1]}" if more else labels
        prefix = f"{family.sample_name}{{{inside}}} "
        if prefix in seen or len(seen) >= MAX_SERIES_PER_RANK:
            left_out.append(index)
        seen.add(prefix)
        prefixes.append(prefix)
    return tuple(prefixes), tuple(left_out)


def _add(lines: Lines, rows: Iterable[Row]) -> None:
    seen: set[str] = set()
    for family, labels, value in rows:
        series = f"{family.sample_name}{labels_text(labels)}"
        if series not in seen and (family.kind != "counter" or value - value == 0.0):
            seen.add(series)
            lines[family].append(f"{series} {number_text(value)}")


def _join(lines: Lines, openmetrics: bool) -> bytes:
    blocks: dict[str, str] = {}  # by name: a metric that stands twice voids the whole scrape
    for family, rows in lines.items():
        name = family.name if openmetrics else family.sample_name
        if rows and name not in blocks:
            blocks[name] = family.header(openmetrics) + "\n".join(rows) + "\n"
    return ("".join(blocks.values()) + ("# EOF\n" if openmetrics else "")).encode("utf-8")
