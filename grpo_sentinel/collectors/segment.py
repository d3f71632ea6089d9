"""One rank's segment as the collector follows it: reader, cursor, newest values, alive or dead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from grpo_sentinel.protocol import RankReader
from grpo_sentinel.protocol.ended import explain
from grpo_sentinel.protocol.liveness import process_gone, process_stopped
from grpo_sentinel.records import EventRecord, Kind, Liveness, Mode, StepRecord
from grpo_sentinel.scrub import clean
from grpo_sentinel.views import Cursor, RankStatus

GRACE_NS = 400_000_000  # a rank that is gone may be explained so long: `launch` learns of a death when we do


@dataclass(frozen=True, slots=True)
class Reading:
    """What is new in one segment."""

    records: tuple[StepRecord, ...]
    events: tuple[EventRecord, ...]
    missed: int
    bad_slots: int


class RankSegment:
    """Follows the segment at `path` from `cursor` on. Raises `SegmentError` when it is none of this version."""

    def __init__(self, path: Path, dead_seconds: float) -> None:
        self._reader = RankReader(path)
        self.identity = self._reader.identity
        self.liveness = Liveness.UNKNOWN
        self.last_step = 0
        self.cursor = Cursor()
        self._dead_seconds = dead_seconds
        self._values: Mapping[str, float] = MappingProxyType({})
        self._updated_wall_ns = 0
        self._missed = 0
        self._bad_slots = 0
        self._directory = path.parent
        self._lost_ns: int | None = None
        self._stopped = False
        self._ended = ""  # who ended it on purpose, when it has not said so itself

    @property
    def is_replaced(self) -> bool:
        """Whether a restarted rank has put a new segment in the place of this one."""
        return self._reader.replaced

    @property
    def is_over(self) -> bool:
        """Whether the writer will never write again."""
        return self.liveness in (Liveness.CLOSED, Liveness.DEAD)

    def remember(self) -> tuple[StepRecord, ...]:
        """Return the records up to the cursor that are still in the ring: what an earlier reader has had."""
        batch = self._reader.poll(Cursor())
        records = tuple(record for record in batch.records if record.sequence <= self.cursor.record)
        self._note(records)
        return records

    def read(self) -> Reading:
        """Return what came since the last call."""
        batch = self._reader.poll(self.cursor)
        self.cursor = batch.cursor
        self._missed += batch.missed_records
        self._bad_slots += batch.bad_slots
        self._note(batch.records)
        return Reading(tuple(batch.records), tuple(map(clean, batch.events)), batch.missed_records, batch.bad_slots)

    def _note(self, records: Iterable[StepRecord]) -> None:
        """Keep the newest values; those of evaluations would pass for training."""
        newer: dict[str, float] = {}
        for record in records:
            self._updated_wall_ns = max(self._updated_wall_ns, record.wall_ns)
            if record.mode is Mode.TRAIN:
                newer.update(record.values)
                if record.kind is Kind.STEP:
                    self.last_step = record.step
        if newer:
            self._values = MappingProxyType({**self._values, **newer})

    def judge(self, wall_ns: int) -> None:
        """Look whether the writer is still there: its lock, and its process or, out of sight, its heartbeat."""
        found = self._reader.liveness(wall_ns=wall_ns, dead_seconds=self._dead_seconds)
        if found is Liveness.DEAD and self.liveness is not Liveness.DEAD:
            found = self._gone(wall_ns)
        self.liveness = found
        self._stopped = found is Liveness.ALIVE and process_stopped(self.identity)

    def _gone(self, wall_ns: int) -> Liveness:
        """Judge a rank that is gone without a word: ended on purpose by somebody, else dead after a moment's grace."""
        if self._ended:
            return Liveness.CLOSED
        watched = self.liveness is Liveness.ALIVE
        if watched and self._lost_ns is None:
            self._lost_ns = wall_ns
        in_grace = self._lost_ns is not None and wall_ns - self._lost_ns < GRACE_NS
        waiting = in_grace and bool(process_gone(self._reader.identity))
        beat = self._reader.heartbeat()
        note = explain(
            self._directory, self.identity, lost_ns=self._lost_ns, heartbeat_ns=beat.updated_wall_ns, waiting=waiting
        )
        if note is not None:
            self._ended = note.words(beat.step)
            return Liveness.CLOSED
        return Liveness.ALIVE if waiting else Liveness.DEAD

    def status(self, newest_step: int) -> RankStatus:
        """Describe the rank; `newest_step` is that of the node, to say how far this rank is behind."""
        behind = max(0, newest_step - self.last_step)
        if self._values.get("sentinel.frame_skew_steps") != behind:
            self._values = MappingProxyType({**self._values, "sentinel.frame_skew_steps": float(behind)})
        return RankStatus(
            identity=self.identity,
            heartbeat=self._reader.heartbeat(),
            liveness=self.liveness,
            last_step=self.last_step,
            values=self._values,
            updated_wall_ns=self._updated_wall_ns,
            acknowledgement=self._reader.acknowledgement(),
            cursor=self.cursor,
            closed_detail=self._reader.closed or self._ended or None,
            missed_records=self._missed,
            bad_slots=self._bad_slots,
            stopped=self._stopped,
        )

    def close(self) -> None:
        """Unmap the segment; the file stays."""
        self._reader.close()
