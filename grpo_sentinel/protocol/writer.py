"""The trainer's side of a segment. It lives in somebody else's process: once built, it never raises or waits."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any

from grpo_sentinel.clock import Clock
from grpo_sentinel.errors import SegmentError
from grpo_sentinel.protocol import layout, segment
from grpo_sentinel.protocol.jsonsafe import encode, encode_within
from grpo_sentinel.protocol.liveness import AliveLock
from grpo_sentinel.protocol.names import NameTable
from grpo_sentinel.protocol.places import alive_path, own_directory, ring_path
from grpo_sentinel.protocol.slots import store_slot
from grpo_sentinel.protocol.steps import (
    INT63,
    Chunk,
    Place,
    Plan,
    clamp,
    clamp_place,
    make_plan,
    only_numbers,
    pack_parts,
)
from grpo_sentinel.records import Ack, Kind, Mode, Phase, RankIdentity

_PLANS_KEPT = 256  # orders of names with their packed ids; a trainer has a handful
_RECORD_HEAD = layout.W_RECORD_HEAD  # one look-up less on the hot path


class RankWriter:
    """Writes one rank's segment.

    Threads of the process take turns on a lock; a call that re-enters from a signal handler is dropped and counted.
    A forked child's copy is inert: every method returns at once, `close` too.
    """

    def __init__(
        self,
        directory: Path,
        identity: RankIdentity,
        geometry: layout.Geometry | None = None,
        group: str | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        """Create `rank-N.ring` in `directory`, replacing the one of a dead predecessor.

        `group` lets a group read (files 0640, directory 0750). Sequences go on from the predecessor's, so cursors
        stay valid. Raises `SegmentError` with a remedy: no space, no permission, or a living writer in this place.
        """
        self.identity = identity
        self.path = ring_path(directory, identity.rank)
        self._geometry = geometry or layout.Geometry()
        self._step_ring = self._geometry.steps_at, self._geometry.slots, self._geometry.slot_bytes
        self._monotonic_ns = clock.monotonic_ns if clock else time.monotonic_ns
        self._wall_ns = clock.wall_ns if clock else time.time_ns
        self._lock = threading.RLock()
        self._busy = False
        gid = None if group is None else segment.group_id(group)
        _prepare_directory(directory, gid)
        self._alive = AliveLock(alive_path(self.path), identity, gid)
        try:
            self._open(gid)
        except BaseException:
            self._alive.release()
            raise
        _writers.add(self)

    def _open(self, gid: int | None) -> None:
        base_record, base_event = _heads(self.path)
        self._segment = segment.create_segment(self.path, self.identity, self._geometry, gid)
        self._mapping, self._words = self._segment.mapping, self._segment.words
        self._names = NameTable(self._mapping, self._words, self._geometry.name_bytes)
        self._recent: dict[int, tuple[Chunk, Callable[[Any], tuple[Any, ...]]]] = {}  # by number of names
        self._plans: dict[tuple[str, ...], Plan] = {}
        self._record, self._event = base_record, base_event
        self._note_sequence = 0
        self._dropped = self._lost = 0
        words = self._words
        words[layout.W_RECORD_BASE] = words[layout.W_RECORD_HEAD] = base_record
        words[layout.W_EVENT_BASE] = words[layout.W_EVENT_HEAD] = base_event
        self._guard = 0
        self._live = True
        self._beat(Phase.IDLE, 0)
        words[layout.W_STATE] = layout.STATE_OPEN
        try:
            os.replace(segment.draft_path(self.path), self.path)
        except OSError as error:
            self._live = False
            self._segment.close()
            raise SegmentError(f"{self.path} cannot be put in place ({error.strerror}).") from error

    @property
    def names_overflow(self) -> int:
        """How many signal names found no place in the name table; their values are not sent."""
        return self._names.overflow

    @property
    def values_dropped(self) -> int:
        """How many values were no numbers, or had no name in the table, and were left out."""
        return self._dropped

    @property
    def pushes_lost(self) -> int:
        """How many calls were dropped whole: re-entered from a signal handler, or arguments that cannot be packed."""
        return self._lost

    def push(
        self,
        values: Mapping[str, float],
        *,
        step: int,
        kind: Kind = Kind.STEP,
        mode: Mode = Mode.TRAIN,
        micro_batch: int = 0,
        generation: int = 0,
    ) -> None:
        """Append one record of named numbers. Never raises, never waits for a reader.

        A record too large for one slot is split and comes out whole. What is no number is dropped and counted.
        """
        with self._lock:
            if self._busy or not self._live:
                return self._lose()
            self._busy = True
            try:
                place = step, generation, self._monotonic_ns(), self._wall_ns(), micro_batch
                try:  # as many names as some record before: nearly always the same ones, in whatever order
                    (size, pack, ids), fetch = self._recent[len(values) if type(values) is dict else -1]
                    body = pack(*place, size, kind, mode, 0, 1, 0, *fetch(values), ids)
                except Exception:  # noqa: BLE001 - other names; or a value's own __float__, which may raise anything
                    self._append(values, place, kind, mode)
                else:
                    self._store((body,))
            except Exception:  # noqa: BLE001 - the trainer must not die of its observer; counted
                self._lose()
            finally:
                self._busy = False

    def _append(self, values: Mapping[str, float], place: Place, kind: Kind, mode: Mode) -> None:
        """Append any record: new names, split, without a place in the table, or with values that are no numbers."""
        keys = tuple(values)
        plan = self._plans.get(keys) or self._plan(keys)
        if plan.single is not None and len(keys) > 1:
            self._recent[len(keys)] = plan.single, itemgetter(*keys)
        try:
            bodies = pack_parts(plan, values.values(), place, kind, mode)
        except Exception:  # noqa: BLE001 - as in push
            self._append_cleaned(values, place, kind, mode)
        else:
            self._drop(plan.left_out)
            self._store(bodies)

    def _append_cleaned(self, values: Mapping[str, float], place: Place, kind: Kind, mode: Mode) -> None:
        """Second try: leave out what is no number and bring the place into range."""
        clean = only_numbers(values)
        keys = tuple(clean)
        plan = self._plans.get(keys) or self._plan(keys)
        bodies = pack_parts(plan, clean.values(), clamp_place(place), kind, mode)
        self._drop(len(values) - len(clean) + plan.left_out)
        self._store(bodies)

    def _store(self, bodies: Iterable[bytes]) -> None:
        """Store the parts of one record and move the head once, after the last."""
        mapping, words, sequence = self._mapping, self._words, self._record
        first, slots, size = self._step_ring
        for body in bodies:
            offset = first + sequence % slots * size
            sequence += 1
            store_slot(mapping, words, offset, sequence, body)
        self._record = words[_RECORD_HEAD] = sequence

    def _plan(self, keys: tuple[str, ...]) -> Plan:
        if len(self._plans) >= _PLANS_KEPT:
            self._plans.clear()
        geometry = self._geometry
        plan = make_plan(keys, self._names, geometry.values_per_slot, min(max(1, geometry.slots // 2), 0xFFFF))
        self._plans[keys] = plan
        return plan

    def event(self, kind: str, body: Mapping[str, Any], *, step: int) -> None:
        """Append one event as JSON. Never raises; too large a body is cut and marked."""
        self._guarded(lambda: self._append_event(kind, body, step))

    def _append_event(self, kind: str, body: Mapping[str, Any], step: int) -> None:
        geometry = self._geometry
        name = encode(str(kind)[:64])
        room = geometry.event_slot_bytes - layout.SLOT_PREFIX_BYTES - layout.EVENT_HEAD.size - len(name) - 32
        text, cut = encode_within(body if isinstance(body, Mapping) else {"value": body}, room)
        head = layout.EVENT_HEAD.pack(clamp(step, -INT63, INT63), self._wall_ns(), cut)
        offset = geometry.events_at + self._event % geometry.event_slots * geometry.event_slot_bytes
        store_slot(
            self._mapping, self._words, offset, self._event + 1, head + b'{"kind":' + name + b',"body":' + text + b"}"
        )
        self._event += 1
        self._words[layout.W_EVENT_HEAD] = self._event

    def phase(self, phase: Phase, step: int) -> None:
        """Stamp where the training thread is; call it from that thread only. Never raises, never blocks."""
        self._guarded(lambda: self._beat(phase, step))

    def _beat(self, phase: Phase, step: int) -> None:
        words, now = self._words, self._wall_ns()
        place = clamp(step, 0, (1 << 55) - 1) << 8 | int(phase) & 0xFF
        self._guard += 2
        words[layout.W_BEAT_GUARD] = self._guard - 1
        if words[layout.W_BEAT_PLACE] != place or not words[layout.W_BEAT_SINCE]:
            words[layout.W_BEAT_SINCE] = now
        words[layout.W_BEAT_PLACE] = place
        words[layout.W_BEAT_UPDATED] = now
        words[layout.W_BEAT_GUARD] = self._guard

    def acknowledge(self, ack: Ack) -> None:
        """Say what this rank has done about a request; replaces the previous acknowledgement. Never raises."""
        self._guarded(lambda: self._note(layout.ACK_AT, layout.ACK_BYTES, asdict(ack)))

    def _note(self, offset: int, size: int, body: Mapping[str, Any]) -> None:
        self._note_sequence += 1
        text, _ = encode_within(body, size - layout.SLOT_PREFIX_BYTES)
        store_slot(self._mapping, self._words, offset, self._note_sequence, text)

    def close(self, detail: str = "finished") -> None:
        """Mark the segment closed with `detail`, unmap it and let the lock go; the file stays as the black box.

        Never raises; a second call and a call in a forked child do nothing.
        """
        with self._lock:
            if not self._live:
                return
            with suppress(Exception):  # also when a signal handler closes in the middle of a push: another slot
                self._say_closed(detail)
            self._live = False
            _writers.discard(self)
            with suppress(BufferError):
                self._segment.close()
            self._alive.release()

    def _say_closed(self, detail: str) -> None:
        self._beat(Phase.FINISHED, self._words[layout.W_BEAT_PLACE] >> 8)
        self._note(layout.CLOSING_AT, layout.CLOSING_BYTES, {"detail": detail})
        self._words[layout.W_STATE] = layout.STATE_CLOSED

    def _guarded(self, store: Callable[[], None]) -> None:
        """Run one store under the lock; count instead of raising."""
        with self._lock:
            if self._busy or not self._live:
                return self._lose()
            self._busy = True
            try:
                store()
            except Exception:  # noqa: BLE001 - as in push
                self._lose()
            finally:
                self._busy = False

    def _drop(self, count: int) -> None:
        if count:
            self._dropped += count
            self._words[layout.W_VALUES_DROPPED] = self._dropped

    def _lose(self) -> None:
        if self._live:
            self._lost += 1
            self._words[layout.W_PUSHES_LOST] = self._lost

    def _turn_inert(self) -> None:
        """In a forked child: the mapping is shared with the parent, so nothing may be written any more."""
        self._live = self._busy = False
        self._lock = threading.RLock()  # another thread of the parent may have held it at the fork


_writers: weakref.WeakSet[RankWriter] = weakref.WeakSet()


def _inert_in_child() -> None:
    for writer in list(_writers):
        writer._turn_inert()
    _writers.clear()


os.register_at_fork(after_in_child=_inert_in_child)


def _prepare_directory(directory: Path, gid: int | None) -> None:
    """Make the run's directory ours, and with a group also readable to it, up to the user's directory."""
    own_directory(directory)
    if gid is None:
        return
    for path in (directory, directory.parent):
        if path == directory or path.name == f"grpo-sentinel-{os.getuid()}":
            try:
                os.chown(path, -1, gid)
                path.chmod(0o750)
            except OSError as error:
                raise SegmentError(f"{path} cannot be given to group {gid} ({error.strerror}).") from error


def _heads(path: Path) -> tuple[int, int]:
    """Newest sequences of the segment that is about to be replaced, (0, 0) when there is none worth the name."""
    try:
        old = segment.open_segment(path)
    except SegmentError:
        return 0, 0
    heads = old.words[layout.W_RECORD_HEAD], old.words[layout.W_EVENT_HEAD]
    old.close()
    return heads
