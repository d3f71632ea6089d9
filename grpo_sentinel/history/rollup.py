"""Fold every 64 steps of a rank into one row, so that a week of training is drawn from some thousand rows.

    data = low f64[n] | high f64[n] | non-finite count f64[n],   n = number of names in the layout

`low` and `high` are over finite values only, NaN when there were none. A bucket is folded from its stored records once
a later step has arrived; nothing is kept in memory, so a restart or a late record only folds a bucket again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from grpo_sentinel.history.codec import pack_values, unpack_ids, unpack_values
from grpo_sentinel.history.database import Connection

BUCKET_STEPS = 64
_MAX_CATCH_UP = 256  # buckets folded in one commit after a restart; the rest follows in later commits

Key = tuple[int, int, int]  # run, rank, mode
Range = tuple[float, float, int]  # low, high, non-finite count


def widen(known: Range | None, value: float) -> Range:
    """Take one more value into a range; NaN and infinities only count."""
    low, high, bad = known or (math.nan, math.nan, 0)
    if not math.isfinite(value):
        return low, high, bad + 1
    if low != low:  # NaN: nothing finite so far
        return value, value, bad
    return min(low, value), max(high, value), bad


def join(left: Range, right: Range) -> Range:
    """Merge two ranges; a NaN gives way to whatever stands against it."""
    low, high, bad = left
    return (
        right[0] if right[0] < low or low != low else low,
        right[1] if right[1] > high or high != high else high,
        bad + right[2],
    )


class Rollups:
    """Remember which buckets were touched in this transaction and fold those that are complete."""

    def __init__(self, connection: Connection, layout_id: Callable[[tuple[str, ...]], int]) -> None:
        self._db = connection
        self._layout_id = layout_id
        self._newest: dict[Key, int] = {}
        self._dirty: dict[Key, set[int]] = {}

    def forget(self) -> None:
        """Drop what was remembered; the next record of a rank looks in the tables again."""
        self._newest.clear()
        self._dirty.clear()

    def touch(self, run: int, rank: int, mode: int, step: int) -> None:
        """Note that a record of this step was inserted."""
        key, bucket = (run, rank, mode), step // BUCKET_STEPS
        if key not in self._newest:
            self._dirty.setdefault(key, set()).update(self._unfolded(key, bucket))
        self._newest[key] = max(self._newest.get(key, bucket), bucket)
        self._dirty.setdefault(key, set()).add(bucket)

    def write_complete(self) -> None:
        """Fold every touched bucket that is older than the newest one of its rank."""
        for key, buckets in self._dirty.items():
            newest = self._newest[key]
            for bucket in sorted(b for b in buckets if b < newest)[:_MAX_CATCH_UP]:
                self._fold(key, bucket)
                buckets.discard(bucket)

    def _unfolded(self, key: Key, before: int) -> Iterable[int]:
        run, rank, mode = key
        row = self._db.execute(
            "SELECT max(bucket) FROM rollups WHERE run=? AND rank=? AND mode=?", (run, rank, mode)
        ).fetchone()
        first = 0 if row[0] is None else row[0] + 1
        rows = self._db.execute(
            "SELECT DISTINCT step / ? FROM records WHERE run=? AND rank=? AND step>=? AND step<? AND mode=?",
            (BUCKET_STEPS, run, rank, first * BUCKET_STEPS, before * BUCKET_STEPS, mode),
        )
        return [int(bucket) for (bucket,) in rows]

    def _fold(self, key: Key, bucket: int) -> None:
        run, rank, mode = key
        ranges: dict[int, Range] = {}
        rows = self._db.execute(
            "SELECT ids, data FROM records JOIN layouts ON layouts.id=layout"
            " WHERE run=? AND rank=? AND step>=? AND step<? AND mode=?",
            (run, rank, bucket * BUCKET_STEPS, (bucket + 1) * BUCKET_STEPS, mode),
        )
        for ids, data in rows:
            for name, value in zip(unpack_ids(ids), unpack_values(data), strict=False):
                ranges[name] = widen(ranges.get(name), value)
        if not ranges:
            return
        names = dict(self._db.execute(f"SELECT id, name FROM names WHERE id IN ({','.join(map(str, ranges))})"))
        ordered = sorted(ranges)
        block = pack_values([ranges[n][part] for part in range(3) for n in ordered])
        self._db.execute(
            "INSERT OR REPLACE INTO rollups (run, rank, mode, bucket, layout, data) VALUES (?,?,?,?,?,?)",
            (run, rank, mode, bucket, self._layout_id(tuple(names[n] for n in ordered)), block),
        )
