"""Reads the rings of all ranks of this node and aligns them into frames.

    discover -> judge (alive, closed, dead) -> read -> align -> RankBatch

A rank is judged before it is read, so that nothing it wrote before it ended can be overlooked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from grpo_sentinel.clock import Clock
from grpo_sentinel.collectors.frames import FrameAligner
from grpo_sentinel.collectors.segment import RankSegment, Reading
from grpo_sentinel.errors import SegmentError
from grpo_sentinel.protocol import list_segments
from grpo_sentinel.records import Liveness, StepRecord
from grpo_sentinel.views import Cursor, RankBatch, RankStatus

_LOOK_EVERY_NS = 200_000_000
"""Time between two looks for new segments and dead ranks; records are read at every poll."""


class RankCollector:
    """Follows every segment in `directory`; needs no rank to be there yet.

    `cursors` (by rank) continue what an earlier collector has read: nothing of that is returned again and nothing
    still in the rings is lost. Steps that were open then are completed from the rings.
    """

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        cursors: Mapping[int, Cursor] = MappingProxyType({}),
        late_rank_seconds: float = 2.0,
        dead_seconds: float = 1.0,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._cursors = dict(cursors)
        self._dead_seconds = dead_seconds
        self._aligner = FrameAligner(late_rank_seconds)
        self._segments: dict[Path, RankSegment] = {}
        self._unreadable: dict[Path, int] = {}  # files that have been put into words: their inodes
        self._left: set[Path] = set()  # segments whose rank the aligner no longer waits for
        self._restarted: list[int] = []  # ranks whose segment was replaced since the last look
        self._before: list[StepRecord] = []  # what an earlier collector had read, for the steps it left open
        self._looked_ns: int | None = None

    def poll(self) -> RankBatch:
        """Return everything new. Never blocks, never raises; an unreadable segment is said once and tried again."""
        now_ns = self._clock.monotonic_ns()
        readings: list[Reading] = []
        said: dict[str, str] = {}
        if self._looked_ns is None or now_ns - self._looked_ns >= _LOOK_EVERY_NS:
            self._discover(readings, said)
            self._read(readings, said)  # a mapping may be looked into only after its size has been checked
            self._judge()
            self._looked_ns = now_ns
        self._read(readings, said)
        return self._batch(readings, said, now_ns)

    def close(self) -> None:
        """Unmap all segments."""
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()

    # ---- segments

    def _discover(self, readings: list[Reading], said: dict[str, str]) -> None:
        """Open new and replaced segments."""
        for path in list_segments(self._directory):
            old = self._segments.get(path)
            if old is not None and not old.is_replaced:
                continue
            try:
                if old is not None:
                    readings.append(old.read())  # its mapping outlives the file: the last words of a dead rank
                self._segments[path] = self._open(path, old)
                self._unreadable.pop(path, None)
            except SegmentError as error:
                self._say(path, error, said)

    def _read(self, readings: list[Reading], said: dict[str, str]) -> None:
        for path, segment in list(self._segments.items()):
            try:
                readings.append(segment.read())
            except SegmentError as error:
                self._say(path, error, said)
                self._segments.pop(path).close()

    def _judge(self) -> None:
        for segment in self._segments.values():
            segment.judge(self._clock.wall_ns())

    def _open(self, path: Path, old: RankSegment | None) -> RankSegment:
        segment = RankSegment(path, self._dead_seconds)
        if old is not None:
            segment.cursor = old.cursor  # a writer goes on with the sequences of the one before it
            old.close()
            if path not in self._left:
                self._restarted.append(segment.identity.rank)
        else:
            segment.cursor = self._cursors.pop(segment.identity.rank, Cursor())
            if self._looked_ns is None:
                self._before.extend(segment.remember())
        self._left.discard(path)
        return segment

    def _say(self, path: Path, error: SegmentError, said: dict[str, str]) -> None:
        """Put an unreadable file into words, once as long as it is the same file."""
        inode = inode_of(path)
        if self._unreadable.get(path) != inode:
            self._unreadable[path], said[path.name] = inode, str(error)

    # ---- one look

    def _batch(self, readings: list[Reading], said: Mapping[str, str], now_ns: int) -> RankBatch:
        records = _in_time(record for reading in readings for record in reading.records)
        if self._before:
            self._take_up({record.rank for record in records}, now_ns)
        late_before = self._aligner.late_records
        for record in records:
            self._aligner.add(record, now_ns)
        self._let_go(now_ns)
        frames = self._aligner.take(now_ns, self._alive(), self._expected())
        events = sorted((event for reading in readings for event in reading.events), key=lambda event: event.wall_ns)
        return RankBatch(
            records=tuple(records),
            frames=tuple(frames),
            events=tuple(events),
            ranks=self._statuses(),
            missed_records=sum(reading.missed for reading in readings),
            bad_slots=sum(reading.bad_slots for reading in readings),
            late_records=self._aligner.late_records - late_before,
            unreadable=said,
        )

    def _take_up(self, with_news: set[int], now_ns: int) -> None:
        """Rebuild the steps that an earlier collector had open when it stopped; those it had finished are dropped."""
        for record in _in_time(self._before):
            self._aligner.add(record, now_ns)
        self._before.clear()
        self._aligner.take(now_ns, with_news.union(self._alive()), ())

    def _let_go(self, now_ns: int) -> None:
        """Tell the aligner once about every rank that has ended; its last records are in by now."""
        for rank in self._restarted:
            self._aligner.leave(rank, died=True, now_ns=now_ns)
        self._restarted.clear()
        for path, segment in self._segments.items():
            if segment.is_over and path not in self._left:
                self._left.add(path)
                self._aligner.leave(segment.identity.rank, died=segment.liveness is Liveness.DEAD, now_ns=now_ns)

    def _alive(self) -> list[int]:
        return [segment.identity.rank for segment in self._segments.values() if not segment.is_over]

    def _expected(self) -> list[int]:
        """Ranks whose absence from a frame is worth a word: all but those that finished."""
        return [segment.identity.rank for segment in self._members() if segment.liveness is not Liveness.CLOSED]

    def _members(self) -> list[RankSegment]:
        """Leave out ranks of an earlier, larger world: files that stay when a run is started again with fewer."""
        identities = [segment.identity for segment in self._segments.values()]
        world = max(identities, key=lambda identity: identity.created_wall_ns).world_size if identities else 0
        return [segment for segment in self._segments.values() if segment.identity.rank < world or not segment.is_over]

    def _statuses(self) -> dict[int, RankStatus]:
        members = self._members()
        newest = max((segment.last_step for segment in members), default=0)
        return {segment.identity.rank: segment.status(newest) for segment in members}


def _in_time(records: Iterable[StepRecord]) -> list[StepRecord]:
    """Sort by the clock that all ranks of a host share, so that a rank that is read later does not look late."""
    return sorted(records, key=lambda record: record.monotonic_ns)


def inode_of(path: Path) -> int:
    """Inode of a file, 0 when it is not there."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0
