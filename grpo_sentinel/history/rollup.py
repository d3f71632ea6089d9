"""Fold every 64 steps of a rank into one row, and every 8 such rows into one: any length is drawn from some hundred.

    level 0    64 steps, folded from records           data = low f64[n] | high f64[n] | non-finite count f64[n]
    level k    8 buckets of level k - 1                n = number of names in the layout

`low` and `high` are over finite values only, NaN when there were none. A bucket is folded from what is stored below it
once a later one has begun; nothing is kept in memory, so a restart or a late record only folds a bucket again. What an
older file lacks is folded from the oldest on, some buckets in every commit: a level has no hole before its newest row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from grpo_sentinel.history.codec import pack_values, unpack_ids, unpack_values
from grpo_sentinel.history.database import Connection

BUCKET_STEPS = 64
FAN_IN = 8
LEVELS = 6  # the uppermost folds two million steps: one that nobody reaches costs nothing
MAX_FOLDS = 256  # in one commit; what is left, after a restart or in an older file, follows in later ones

Key = tuple[int, int, int]  # run, rank, mode
Range = tuple[float, float, int]  # low, high, non-finite count


def steps_of(level: int) -> int:
    """Count the steps in one bucket of a level."""
    return BUCKET_STEPS * int(FAN_IN**level)


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
        self._newest: dict[Key, int] = {}  # bucket of level 0 that is still open
        self._waiting: dict[Key, list[set[int]]] = {}  # buckets to fold, by level
        self._folded: dict[Key, list[int]] = {}  # newest bucket that is stored, by level; -1 = none
        self._behind: set[Key] | None = None  # ranks not yet looked at since the file was opened
        self._full = False  # the last commit folded as many as it may

    @property
    def behind(self) -> bool:
        """Tell whether rows may be missing that can be folded, though no record comes."""
        return self._behind is None or bool(self._behind) or self._full

    def forget(self) -> None:
        """Drop what was remembered; it is looked up in the tables again."""
        self._newest.clear()
        self._waiting.clear()
        self._folded.clear()
        self._behind = None

    def touch(self, run: int, rank: int, mode: int, step: int) -> None:
        """Note that a record of this step was inserted."""
        key, bucket = (run, rank, mode), step // BUCKET_STEPS
        if key not in self._newest:
            self._look_up(key, bucket)
        self._newest[key] = max(self._newest[key], bucket)
        self._waiting[key][0].add(bucket)

    def write_complete(self) -> None:
        """Fold the touched buckets that a later one has followed, then what an older rank lacks."""
        left = MAX_FOLDS
        for key in self._waiting:
            left -= self._fold(key, left)
        self._full = not left
        self._catch_up(left)

    def _catch_up(self, most: int) -> None:
        """Fold what is missing of one rank that nobody writes: the file is of an older version, or a run ended."""
        if self._behind is None:
            self._behind = set(self._db.execute("SELECT DISTINCT run, rank, mode FROM rollups"))
        self._behind -= self._newest.keys()
        key = next(iter(self._behind), None)
        if key is None:
            return
        (step,) = self._db.execute("SELECT max(step) FROM records WHERE run=? AND rank=?", key[:2]).fetchone()
        self._look_up(key, max(self._newest_stored(key, 0) + 1, (step or 0) // BUCKET_STEPS))
        if self._fold(key, most) < most:
            self._behind.discard(key)
        for memory in (self._newest, self._waiting, self._folded):
            memory.pop(key)

    def _look_up(self, key: Key, opened: int) -> None:
        """Find what is stored and what is missing of a rank, below the bucket of level 0 that is open."""
        folded = [self._newest_stored(key, level) for level in range(LEVELS)]
        missing = [self._missing(key, level, folded[level], opened // FAN_IN**level) for level in range(LEVELS)]
        self._newest[key], self._folded[key], self._waiting[key] = opened, folded, missing

    def _newest_stored(self, key: Key, level: int) -> int:
        sql = "SELECT max(bucket) FROM rollups WHERE run=? AND rank=? AND mode=? AND level=?"
        (newest,) = self._db.execute(sql, (*key, level)).fetchone()
        return -1 if newest is None else int(newest)

    def _missing(self, key: Key, level: int, after: int, before: int) -> set[int]:
        """Name the buckets between two others that can be folded from what is stored below."""
        size = FAN_IN if level else BUCKET_STEPS
        table, column, more = ("rollups", "bucket", " AND level=?") if level else ("records", "step", "")
        rows = self._db.execute(
            f"SELECT DISTINCT {column} / ? FROM {table} WHERE run=? AND rank=? AND mode=?{more}"
            f" AND {column}>=? AND {column}<?",
            (size, *key, *((level - 1,) if level else ()), (after + 1) * size, before * size),
        )
        return {int(bucket) for (bucket,) in rows}

    def _fold(self, key: Key, most: int) -> int:
        """Fold at most `most` buckets of a rank, level by level, the oldest first; gives how many."""
        done = 0
        for level in range(LEVELS):
            due = self._due(key, level)[: most - done]
            for bucket in due:
                self._store(key, level, bucket, self._ranges(key, level, bucket))
            done += len(due)
            self._waiting[key][level].difference_update(due)
            self._folded[key][level] = max([self._folded[key][level], *due[-1:]])
            if level + 1 < LEVELS:
                self._waiting[key][level + 1].update(bucket // FAN_IN for bucket in due)
        return done

    def _due(self, key: Key, level: int) -> list[int]:
        """List the buckets that are complete, oldest first; one that lacks a part of the level below waits for it.

        A stored one is folded again though it is open: a run resumed under its old name repeats its steps.
        """
        waiting, opened = self._waiting[key], self._newest[key] // FAN_IN**level
        if level == 0:
            return sorted(bucket for bucket in waiting[0] if bucket < opened)
        below = self._newest[key] // FAN_IN ** (level - 1)
        lacking = {bucket // FAN_IN for bucket in waiting[level - 1] if bucket < below}
        known = max(opened, self._folded[key][level] + 1)
        return sorted(bucket for bucket in waiting[level] if bucket < known and bucket not in lacking)

    def _ranges(self, key: Key, level: int, bucket: int) -> dict[int, Range]:
        """Join what is stored of a bucket one level below."""
        ranges: dict[int, Range] = {}
        if level == 0:
            sql = "run=? AND rank=? AND mode=? AND step>=? AND step<?"
            where = (*key, bucket * BUCKET_STEPS, (bucket + 1) * BUCKET_STEPS)
            for names, values in self._blocks("records", sql, where):
                for name, value in zip(names, values, strict=False):
                    ranges[name] = widen(ranges.get(name), value)
            return ranges
        sql = "run=? AND rank=? AND mode=? AND level=? AND bucket>=? AND bucket<?"
        for names, values in self._blocks("rollups", sql, (*key, level - 1, bucket * FAN_IN, (bucket + 1) * FAN_IN)):
            size = len(names)
            for name, low, high, bad in zip(names, values, values[size:], values[2 * size :], strict=False):
                ranges[name] = join(ranges.get(name, (math.nan, math.nan, 0)), (low, high, int(bad)))
        return ranges

    def _blocks(
        self, table: str, where: str, arguments: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], tuple[float, ...]]]:
        sql = f"SELECT ids, data FROM {table} JOIN layouts ON layouts.id=layout WHERE {where}"
        for ids, data in self._db.execute(sql, arguments):
            yield unpack_ids(ids), unpack_values(data)

    def _store(self, key: Key, level: int, bucket: int, ranges: dict[int, Range]) -> None:
        if not ranges:
            return
        names = dict(self._db.execute(f"SELECT id, name FROM names WHERE id IN ({','.join(map(str, ranges))})"))
        ordered = sorted(ranges)
        block = pack_values([ranges[n][part] for part in range(3) for n in ordered])
        self._db.execute(
            "INSERT OR REPLACE INTO rollups (run, rank, mode, level, bucket, layout, data) VALUES (?,?,?,?,?,?,?)",
            (*key, level, bucket, self._layout_id(tuple(names[n] for n in ordered)), block),
        )
