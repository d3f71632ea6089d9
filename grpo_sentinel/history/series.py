"""One signal of some ranks over a whole run, thinned to a bounded number of points without losing a peak.

    short range   every record                                     low = high = value
    long range    rollups + what they do not hold yet, from below  low, high, non-finite count per group

Thinning keeps the smallest and the largest value of every group (min/max), so a one-step spike stays visible. The
level of the rollups follows from the range: the rows that are read are bounded, whatever the length of the run.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

from grpo_sentinel.history.rollup import BUCKET_STEPS, Key, Range, join, steps_of, widen
from grpo_sentinel.records import Mode

_NUMBER = struct.Struct("<d")
_CHUNK = 2000  # records of a rank in one query

Points = dict[int, Range]  # step -> what is known of it


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
    """What `read_lines` needs of a reader."""

    levels: int  # of rollups that the file has

    def query(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]: ...

    def layout(self, layout: int) -> tuple[str, ...]: ...


def read_lines(
    source: Source,
    run: int,
    ranks: Sequence[int],
    signal: str,
    *,
    max_points: int | None = None,
    since_step: int = 0,
    until_step: int | None = None,
    mode: Mode = Mode.TRAIN,
    max_rows: int | None = None,
) -> list[Series]:
    """Read `signal` of some ranks; of each at most `max_points` points when given, every record otherwise.

    A range of more than `max_rows` rows of a rank is read from a coarser level, also where it gives fewer points.
    """
    lines: dict[int, Points] = {}
    open_at: dict[tuple[int, int], list[int]] = {}  # steps that are read from records -> ranks
    for rank in ranks:
        key = (run, rank, int(mode))
        first, last, oldest_record = _span(source, key, since_step, until_step)
        points: Points = {}
        at = first
        pruned = max_points is not None and first // BUCKET_STEPS < oldest_record // BUCKET_STEPS
        if pruned or _far(last - first, max_points, max_rows):
            for level in range(_level(last - first, max_points, max_rows, source.levels), -1, -1):
                at = _add_rollups(source, points, key, level, signal, at, last)
        lines[rank] = points
        open_at.setdefault((at, last), []).append(rank)
    for (at, last), some in open_at.items():
        _add_records(source, {rank: lines[rank] for rank in some}, (run, int(mode)), signal, at, last)
    return [_series(signal, rank, _thin(sorted(lines[rank].items()), max_points)) for rank in ranks]


def _series(signal: str, rank: int, points: Sequence[tuple[int, Range]]) -> Series:
    return Series(
        signal=signal,
        rank=rank,
        steps=tuple(step for step, _ in points),
        low=tuple(low for _, (low, _, _) in points),
        high=tuple(high for _, (_, high, _) in points),
        nonfinite=tuple(bad for _, (_, _, bad) in points),
    )


def _far(steps: int, max_points: int | None, max_rows: int | None) -> bool:
    """Tell whether a range is read from rollups: an eighth of the points is then still drawn."""
    enough = max_points is not None and steps / BUCKET_STEPS >= max_points / 8
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


def _add_rollups(source: Source, points: Points, key: Key, level: int, signal: str, first: int, last: int) -> int:
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


def _add_records(
    source: Source, lines: Mapping[int, Points], key: tuple[int, int], signal: str, first: int, last: int
) -> None:
    """Add the records of ranks that are read from the same step on.

    They lie side by side in the file: all of them are read in one pass where they are most of the run, so that every
    page is read once and not once per rank.
    """
    run, _ = key
    known = source.query("SELECT count(*) FROM ranks WHERE run=?", (run,))[0][0]
    if len(lines) > 1 and 2 * len(lines) < known:
        for rank, points in lines.items():
            _add_records(source, {rank: points}, key, signal, first, last)
        return
    index = "records_by_rank" if len(lines) == 1 else "records_by_step"
    sql = (
        f"SELECT rank, step, layout, data FROM records INDEXED BY {index} WHERE run=? AND mode=?"
        f" AND rank IN ({','.join(map(str, lines))}) AND step>=? AND step<=? ORDER BY step LIMIT ?"
    )
    place_in, unpack, most = _Index(source, signal).of, _NUMBER.unpack_from, _CHUNK * len(lines)
    while first <= last:
        rows = source.query(sql, (*key, first, last, most))
        if not rows:
            return
        newest = rows[-1][1]
        cut = newest if len(rows) == most and newest != first else None  # it is read again, whole
        for rank, step, layout, data in rows:
            place = 8 * place_in(layout)
            if place < 0 or step == cut:
                continue
            (value,) = unpack(data, place)
            points = lines[rank]
            if step in points or value - value != 0:
                points[step] = widen(points.get(step), value)
            else:
                points[step] = (value, value, 0)
        if len(rows) < most:
            return
        first = newest + 1 if cut is None else cut


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


def _thin(points: list[tuple[int, Range]], max_points: int | None) -> list[tuple[int, Range]]:
    """Join neighbours into at most `max_points` groups; every group keeps its low, high and count."""
    if max_points is None or len(points) <= max_points:
        return points
    size = math.ceil(len(points) / max(1, max_points))
    groups = (points[start : start + size] for start in range(0, len(points), size))
    return [(group[0][0], _joined([found for _, found in group])) for group in groups]


def _joined(ranges: Sequence[Range]) -> Range:
    lows, highs, bad = zip(*ranges, strict=True)
    return (min(lows), max(highs), 0) if not any(bad) else reduce(join, ranges)
