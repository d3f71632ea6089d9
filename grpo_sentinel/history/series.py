"""One signal of one rank over a whole run, thinned to a bounded number of points without losing a peak.

    short range   every record                                     low = high = value
    long range    rollups + what they do not hold yet, from below  low, high, non-finite count per group

Thinning keeps the smallest and the largest value of every group (min/max), so a one-step spike stays visible. The
level of the rollups follows from the range: the rows that are read are bounded, whatever the length of the run.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from grpo_sentinel.history.rollup import BUCKET_STEPS, Key, Range, join, steps_of, widen
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

    levels: int  # of rollups that the file has

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
    max_rows: int | None = None,
) -> Series:
    """Read `signal` of one rank; at most `max_points` points when given, every record otherwise.

    A range of more than `max_rows` rows is read from a coarser level, also where it gives fewer points.
    """
    key = (run, rank, int(mode))
    first, last, oldest_record = _span(source, key, since_step, until_step)
    points: dict[int, Range] = {}
    at = first
    pruned = max_points is not None and first // BUCKET_STEPS < oldest_record // BUCKET_STEPS
    if pruned or _far(last - first, max_points, max_rows):
        for level in range(_level(last - first, max_points, max_rows, source.levels), -1, -1):
            at = _add_rollups(source, points, key, level, signal, at, last)
    _add_records(source, points, key, signal, at, last)
    thinned = _thin(sorted(points.items()), max_points)
    return Series(
        signal=signal,
        rank=rank,
        steps=tuple(step for step, _ in thinned),
        low=tuple(r[0] for _, r in thinned),
        high=tuple(r[1] for _, r in thinned),
        nonfinite=tuple(r[2] for _, r in thinned),
    )


def _far(steps: int, max_points: int | None, max_rows: int | None) -> bool:
    """Tell whether a range is read from rollups: a sixth of the points is then still drawn."""
    enough = max_points is not None and steps / BUCKET_STEPS >= max_points / 6
    return enough or (max_rows is not None and steps >= max_rows)


def _level(steps: int, max_points: int | None, max_rows: int | None, levels: int) -> int:
    """Choose the coarsest level that still gives a third of the points, or one whose rows are few enough."""
    level = 0
    while level + 1 < levels and (
        (max_points is not None and steps / steps_of(level + 1) >= max_points / 3)
        or (max_rows is not None and steps / steps_of(level) >= max_rows)
    ):
        level += 1
    return level


def _span(source: Source, key: Key, since: int, until: int | None) -> tuple[int, int, int]:
    """Steps that the tables can hold in this range, and the oldest that has a record; look-ups at ends of indices."""
    begin, end = _ends(source, "step", "records", "run=? AND rank=?", key[:2])
    rolled = f"run=? AND rank=? AND mode=?{_of_level(source, 0)}"
    first_bucket, last_bucket = _ends(source, "bucket", "rollups", rolled, key)
    if begin < 0:
        begin = end = (last_bucket + 1) * BUCKET_STEPS - 1
    oldest = begin if first_bucket < 0 else min(begin, first_bucket * BUCKET_STEPS)
    return max(since, oldest), end if until is None else min(until, end), begin


def _ends(source: Source, column: str, table: str, where: str, arguments: tuple[int, ...]) -> tuple[int, int]:
    """Give the lowest and the highest; -1 where there is none."""
    found = [
        source.query(f"SELECT {which}({column}) FROM {table} WHERE {where}", arguments) for which in ("min", "max")
    ]
    return tuple(-1 if rows[0][0] is None else int(rows[0][0]) for rows in found)  # type: ignore[return-value]


def _of_level(source: Source, level: int) -> str:
    """Give the condition on the level; a file that knows none has level 0 only."""
    return f" AND level={level}" if source.levels > 1 else ""


def _add_rollups(
    source: Source, points: dict[int, Range], key: Key, level: int, signal: str, first: int, last: int
) -> int:
    """Add one point per folded bucket; gives the step from which the level below is needed."""
    size = steps_of(level)
    rows = source.query(
        f"SELECT bucket, layout, data FROM rollups WHERE run=? AND rank=? AND mode=?{_of_level(source, level)}"
        " AND bucket>=? AND bucket<=? ORDER BY bucket",
        (*key, first // size, last // size),
    )
    index, unpack = _Index(source, signal), _NUMBER.unpack_from
    for bucket, layout, data in rows:
        place = 8 * index.of(layout)
        if place >= 0:
            part = len(data) // 3
            (low,), (high,) = unpack(data, place), unpack(data, part + place)
            points[bucket * size] = (low, high, int(unpack(data, 2 * part + place)[0]))
    return (rows[-1][0] + 1) * size if rows else first


def _add_records(source: Source, points: dict[int, Range], key: Key, signal: str, first: int, last: int) -> None:
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
