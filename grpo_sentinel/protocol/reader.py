"""The daemon's side of a segment: a cursor goes in, what came since comes out, with what was missed counted."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_sentinel.errors import SegmentError
from grpo_sentinel.protocol import layout
from grpo_sentinel.protocol.jsonsafe import decode
from grpo_sentinel.protocol.liveness import AliveProbe, judge, process_gone
from grpo_sentinel.protocol.names import NameReader
from grpo_sentinel.protocol.places import alive_path
from grpo_sentinel.protocol.segment import open_segment
from grpo_sentinel.protocol.slots import Refused, load_latest, load_slot
from grpo_sentinel.protocol.steps import Part, decode_part
from grpo_sentinel.records import Ack, EventRecord, HaltState, Heartbeat, Liveness, Phase, StepRecord
from grpo_sentinel.views import Cursor

_BEAT_ATTEMPTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one poll gave. The three counts are disjoint: nothing is counted twice."""

    records: tuple[StepRecord, ...]
    events: tuple[EventRecord, ...]
    cursor: Cursor
    missed_records: int  # slots overwritten before this reader came
    missed_events: int
    bad_slots: int  # slots of either ring whose sequence, CRC or content did not check: never returned


@dataclass(slots=True)
class _Tally:
    """Counts of one walk along a ring."""

    missed: int = 0
    bad: int = 0


class RankReader:
    """Reads one segment, in any process and any number at once; never writes, never disturbs the writer."""

    def __init__(self, path: Path) -> None:
        """Map the segment at `path`. Raises `SegmentError`: missing, truncated, garbage, another version."""
        self.path = path
        self._segment = open_segment(path)
        self.identity = self._segment.identity
        self._mapping, self._words = self._segment.mapping, self._segment.words
        self._geometry = self._segment.geometry
        self._names = NameReader(self._mapping, self._words, self._geometry.name_bytes)
        self._probe = AliveProbe(alive_path(path), self.identity)

    def poll(self, cursor: Cursor | None = None) -> Batch:
        """Return everything after `cursor`, oldest first; None or `Cursor()` starts at the oldest still there.

        Never returns a record whose sequence and CRC do not both fit. Never waits for the writer. Raises
        `SegmentError` when somebody truncated the file under us.
        """
        self._check_size()
        cursor = cursor or Cursor()
        steps, events = _Tally(), _Tally()
        record, parts = self._walk_steps(cursor.record, steps)
        event, found = self._walk_events(cursor.event, events)
        return Batch(
            records=tuple(_merge(parts, self.identity.run_id, self.identity.rank)),
            events=found,
            cursor=Cursor(record, event),
            missed_records=steps.missed,
            missed_events=events.missed,
            bad_slots=steps.bad + events.bad,
        )

    def _check_size(self) -> None:
        try:
            size = os.stat(self.path)
        except OSError:
            return  # unlinked: the mapping stays good
        if size.st_ino == self._segment.inode and size.st_size < self._geometry.total_bytes:
            raise SegmentError(f"{self.path} was truncated to {size.st_size} bytes while it was read.")

    def _span(self, base_word: int, head_word: int, start: int, slots: int, tally: _Tally) -> range:
        """Give the sequences to load and count those that are gone already."""
        base, head = self._words[base_word], self._words[head_word]
        if not base <= start <= head:
            # 0, or from a predecessor: what that one still had is lost; beyond the head: of another file
            tally.missed += base - start if 0 < start < base else 0
            start = base
        oldest = max(start + 1, head - slots + 1)
        tally.missed += oldest - start - 1
        return range(oldest, head + 1)

    def _load(self, head_word: int, at: int, slots: int, size: int, sequence: int, tally: _Tally) -> bytes | None:
        """Copy one body out; None when it is gone or bad, which is counted."""
        words = self._words
        body = load_slot(
            self._mapping,
            words,
            at + (sequence - 1) % slots * size,
            size,
            sequence,
            lambda: bool(words[head_word] >= sequence + slots - 1),
        )
        if isinstance(body, bytes):
            return body
        tally.missed += body is Refused.OVERWRITTEN
        tally.bad += body is Refused.BAD
        return None

    def _walk_steps(self, start: int, tally: _Tally) -> tuple[int, list[tuple[int, Part]]]:
        geometry, parts = self._geometry, []
        span = self._span(layout.W_RECORD_BASE, layout.W_RECORD_HEAD, start, geometry.slots, tally)
        for sequence in span:
            body = self._load(
                layout.W_RECORD_HEAD, geometry.steps_at, geometry.slots, geometry.slot_bytes, sequence, tally
            )
            if body is None:
                continue
            part = decode_part(body, self._names)
            if part is None:
                tally.bad += 1
            else:
                parts.append((sequence, part))
        return span.stop - 1, parts

    def _walk_events(self, start: int, tally: _Tally) -> tuple[int, tuple[EventRecord, ...]]:
        geometry, events = self._geometry, []
        span = self._span(layout.W_EVENT_BASE, layout.W_EVENT_HEAD, start, geometry.event_slots, tally)
        for sequence in span:
            body = self._load(
                layout.W_EVENT_HEAD,
                geometry.events_at,
                geometry.event_slots,
                geometry.event_slot_bytes,
                sequence,
                tally,
            )
            if body is None:
                continue
            event = self._event(sequence, body)
            if event is None:
                tally.bad += 1
            else:
                events.append(event)
        return span.stop - 1, tuple(events)

    def _event(self, sequence: int, body: bytes) -> EventRecord | None:
        try:
            step, wall_ns, cut = layout.EVENT_HEAD.unpack_from(body)
            content = decode(body[layout.EVENT_HEAD.size :])
            return EventRecord(
                run_id=self.identity.run_id,
                rank=self.identity.rank,
                sequence=sequence,
                step=step,
                wall_ns=wall_ns,
                kind=str(content["kind"]),
                body=dict(content["body"]),
                truncated=bool(cut),
            )
        except (ValueError, TypeError, KeyError, RecursionError, struct.error):
            return None

    def heartbeat(self) -> Heartbeat:
        """Last sign of progress of the training thread."""
        words = self._words
        for _ in range(_BEAT_ATTEMPTS):
            guard = words[layout.W_BEAT_GUARD]
            place, since = words[layout.W_BEAT_PLACE], words[layout.W_BEAT_SINCE]
            updated = words[layout.W_BEAT_UPDATED]
            if not guard & 1 and guard == words[layout.W_BEAT_GUARD]:
                break  # else it moves right now, or the writer died while it moved: then the words are as good as any
        try:
            phase = Phase(place & 0xFF)
        except ValueError:
            phase = Phase.IDLE
        return Heartbeat(step=place >> 8, phase=phase, phase_since_wall_ns=since, updated_wall_ns=updated)

    def acknowledgement(self) -> Ack | None:
        """What this rank last said about a request, None when nothing."""
        fields = self._note(layout.ACK_AT, layout.ACK_BYTES)
        try:
            return Ack(
                request_id=int(fields["request_id"]),
                state=HaltState(fields["state"]),
                step=int(fields["step"]),
                wall_ns=int(fields["wall_ns"]),
                detail=str(fields["detail"]),
            )
        except (KeyError, ValueError, TypeError):
            return None

    def _note(self, offset: int, size: int) -> dict[str, Any]:
        body = load_latest(self._mapping, self._words, offset, size)
        try:
            content = decode(body) if body is not None else {}
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    @property
    def closed(self) -> str | None:
        """Why the writer left on purpose ("finished", ...); None while it is open, or when it died without closing."""
        if self._words[layout.W_STATE] != layout.STATE_CLOSED:
            return None
        return str(self._note(layout.CLOSING_AT, layout.CLOSING_BYTES).get("detail", ""))

    @property
    def replaced(self) -> bool:
        """True when another segment lies at this path now (a restarted rank), or none: open it anew."""
        try:
            return os.stat(self.path).st_ino != self._segment.inode
        except OSError:
            return True

    @property
    def losses(self) -> dict[str, int]:
        """What the writer itself had to leave out: `names_overflow`, `values_dropped`, `pushes_lost`."""
        words = self._words
        return {
            "names_overflow": words[layout.W_NAMES_OVERFLOW],
            "values_dropped": words[layout.W_VALUES_DROPPED],
            "pushes_lost": words[layout.W_PUSHES_LOST],
        }

    def liveness(self, *, wall_ns: int | None = None, dead_seconds: float = 1.0) -> Liveness:
        """Judge the writer from its lock and a second sign: its process, or, out of sight, its heartbeat.

        `wall_ns` is now; a heartbeat older than `dead_seconds` counts as stopped, once the lock is free.
        """
        closed = self._words[layout.W_STATE] == layout.STATE_CLOSED
        held = not closed and self._probe.held()
        gone = None if closed or held else process_gone(self.identity)
        now = time.time_ns() if wall_ns is None else wall_ns
        age_s = (now - self.heartbeat().updated_wall_ns) / 1e9
        return judge(closed=closed, held=held, gone=gone, heartbeat_age_s=age_s, dead_seconds=dead_seconds)

    def close(self) -> None:
        """Unmap the segment and close the probe; the writer notices nothing."""
        self._probe.close()
        self._segment.close()


def _merge(parts: list[tuple[int, Part]], run_id: str, rank: int) -> Iterator[StepRecord]:
    """Join the parts of split records; a part that was lost leaves its values out and nothing else."""
    at = 0
    while at < len(parts):
        first, head = parts[at][0] - parts[at][1].part, parts[at][1]
        values: dict[str, float] = {}
        while at < len(parts) and parts[at][0] - parts[at][1].part == first:
            values.update(zip(parts[at][1].names, parts[at][1].values, strict=True))
            at += 1
        yield StepRecord(
            run_id=run_id,
            rank=rank,
            sequence=first,
            step=head.step,
            kind=head.kind,
            mode=head.mode,
            micro_batch=head.micro_batch,
            generation=head.generation,
            monotonic_ns=head.monotonic_ns,
            wall_ns=head.wall_ns,
            values=values,
        )
