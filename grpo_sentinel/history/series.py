"""One signal of one rank over a whole run, thinned to a bounded number of points without losing a peak.

    short range   every record                            low = high = value
    long range    rollups of 64 steps + records after     low, high, non-finite count per group

Thinning keeps the smallest and the largest value of every group (min/max), so a one-step spike stays visible.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from grpo_sentinel.history.rollup import BUCKET_STEPS, Range, join, widen
from grpo_sentinel.records import Mode

_NUMBER = struct.Struct("<d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points in order of step, as columns of equal length; a NaN in `low` and `high` means nothing finite there."""

    signal: str
    rank: int
    steps: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    nonfinite: tuple[int, ...] = ()


class Source(Protocol):
    """What `read_series` needs of a reader."""

    def query(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]: ...

    def layout(self, layout: int) -> tuple[str, ...]: ...


def read_series(
    source: Source,
    run: int,
    rank: int,
    signal: str,
    *,
    max_points: int | None = None,
    since_step: int = 0,
    until_step: int | None = None,
    mode: Mode = Mode.TRAIN,
    max_records: int | None = None,
) -> Series:
    """Read `signal` of one rank; at most `max_points` points when given, every record otherwise.

    A range of more than `max_records` steps is read from rollups, also where its records would give enough points.
    """
    first, last = _span(source, run, rank, since_step, until_step)
    points: dict[int, Range] = {}
    raw_from = first
    far = max_points is not None and (last - first) / BUCKET_STEPS >= max_points / 6
    if far or (max_records is not None and last - first >= max_records):
        raw_from = _add_rollups(source, points, (run, rank, int(mode)), signal, first, last)
    _add_records(source, points, (run, rank, int(mode)), signal, raw_from, last)
    thinned = _thin(sorted(points.items()), max_points)
    return Series(
        signal=signal,
        rank=rank,
        steps=tuple(step for step, _ in thinned),
        low=tuple(r[0] for _, r in thinned),
        high=tuple(r[1] for _, r in thinned),
        nonfinite=tuple(r[2] for _, r in thinned),
    )


def _span(source: Source, run: int, rank: int, since: int, until: int | None) -> tuple[int, int]:
    """Steps that the tables can hold in this range; two look-ups at the ends of each index."""
    ends = [
        source.query(f"SELECT {what} FROM {table} WHERE run=? AND rank=?", (run, rank))[0][0]
        for table, what in (("records", "max(step)"), ("records", "min(step)"), ("rollups", "min(bucket)"))
    ]
    if ends[0] is None and ends[2] is None:
        return since, since - 1
    if ends[0] is None:
        last_bucket = source.query("SELECT max(bucket) FROM rollups WHERE run=? AND rank=?", (run, rank))[0][0]
        ends[0] = (last_bucket + 1) * BUCKET_STEPS - 1
    oldest = min(x for x in (ends[1], None if ends[2] is None else ends[2] * BUCKET_STEPS) if x is not None)
    return max(since, oldest), ends[0] if until is None else min(until, ends[0])


def _add_rollups(
    source: Source, points: dict[int, Range], key: tuple[int, int, int], signal: str, first: int, last: int
) -> int:
    """Add one point per folded bucket; gives the step from which records are needed."""
    rows = source.query(
        "SELECT bucket, layout, data FROM rollups WHERE run=? AND rank=? AND mode=? AND bucket>=? AND bucket<=?"
        " ORDER BY bucket",
        (*key, first // BUCKET_STEPS, last // BUCKET_STEPS),
    )
    index, unpack = _Index(source, signal), _NUMBER.unpack_from
    for bucket, layout, data in rows:
        place = 8 * index.of(layout)
        if place >= 0:
            part = len(data) // 3
            (low,), (high,) = unpack(data, place), unpack(data, part + place)
            points[bucket * BUCKET_STEPS] = (low, high, int(unpack(data, 2 * part + place)[0]))
    return (rows[-1][0] + 1) * BUCKET_STEPS if rows else first


def _add_records(
    source: Source, points: dict[int, Range], key: tuple[int, int, int], signal: str, first: int, last: int
) -> None:
    index, unpack = _Index(source, signal), _NUMBER.unpack_from
    while first <= last:
        rows = source.query(
            "SELECT step, layout, data FROM records WHERE run=? AND rank=? AND mode=? AND step>=? AND step<=?"
            " ORDER BY step LIMIT 4000",
            (*key, first, last),
        )
        if not rows:
            return
        full = len(rows) == 4000
        newest = rows[-1][0]
        for step, layout, data in rows:
            place = 8 * index.of(layout)
            if place >= 0 and not (full and step == newest and step != first):  # a cut step is read again, whole
                (value,) = unpack(data, place)
                points[step] = (
                    (value, value, 0) if step not in points and math.isfinite(value) else widen(points.get(step), value)
                )
        if not full:
            return
        first = newest if newest != first else newest + 1


class _Index:
    """Place of one signal in every layout, looked up once."""

    def __init__(self, source: Source, signal: str) -> None:
        self._source, self._signal = source, signal
        self._known: dict[int, int] = {}

    def of(self, layout: int) -> int:
        place = self._known.get(layout)
        if place is None:
            names = self._source.layout(layout)
            place = self._known[layout] = names.index(self._signal) if self._signal in names else -1
        return place


def _thin(points: list[tuple[int, Range]], max_points: int | None) -> Iterable[tuple[int, Range]]:
    """Join neighbours into at most `max_points` groups; every group keeps its low, high and count."""
    if max_points is None or len(points) <= max_points:
        return points
    size = math.ceil(len(points) / max(1, max_points))
    out: list[tuple[int, Range]] = []
    for start in range(0, len(points), size):
        group = points[start : start + size]
        total = group[0][1]
        for _, other in group[1:]:
            total = join(total, other)
        out.append((group[0][0], total))
    return out
