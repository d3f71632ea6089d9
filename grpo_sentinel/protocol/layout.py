"""The bytes between trainer and daemon, drawn once. A change here raises `VERSION` and adds a golden file.

One segment per rank, `<dir>/<run id>/rank-00003.ring`, written by that rank only, little-endian, never shrunk:

    0      +--------------------------------------------------------------+
           | magic "GRPOSNTL" | version u32 | length u32 | crc u32 | 0 u32 |  constant part: written once, CRC over
           | JSON: identity of the rank, geometry, wall time of creation   |  `length` bytes, seeded with the version
    4096   +--------------------------------------------------------------+
           | state       u64  1 open, 2 closed                             |  words: each aligned, each stored at once
           | record base, record head   u64  first - 1 and newest sequence |
           | event base, event head     u64  of the two rings              |
           | names bytes, names count, names overflow  u64                 |
           | values dropped, pushes lost               u64                 |
    4224   | heartbeat: guard u64 (odd while it moves) | step << 8 | phase |
           |            phase since ns | updated ns                        |
    4608   +--------------------------------------------------------------+
           | slot: closing note (JSON)                                     |
    6144   +--------------------------------------------------------------+
           | slot: acknowledgement (JSON)                                  |
    12288  +--------------------------------------------------------------+
           | names, append-only: crc u32 | length u16 | UTF-8 | padding ... |  entry n has id n; CRC seeded with the id;
           |                                                               |  entries start at multiples of 8
    +name_bytes ----------------------------------------------------------+
           | step slots: `slots` x `slot_bytes`                            |  sequence s lies in slot (s - 1) % slots
    +slots*slot_bytes ----------------------------------------------------+
           | event slots: `event_slots` x `event_slot_bytes`               |  likewise
           +--------------------------------------------------------------+

Every slot begins at a multiple of 64:

    0      sequence u64     0 = empty or being written; stored LAST
    8      crc u32          over the body, seeded with the sequence
    12     length u32       of the body
    16     body

Body of a step slot:

    16     step i64 | generation i64 | monotonic ns i64 | wall ns i64
    48     micro-batch u32 | count u32 | kind u8 | mode u8 | part u16 | parts u16 | 0 u16
    64     values float64 x count
    ...    ids u32 x count

A record that needs more room than one slot is split over `parts` slots with consecutive sequences; the head moves
once, after the last part, so a reader meets either all parts or none.

Body of an event slot: step i64 | wall ns i64 | truncated u64 | JSON {"kind": ..., "body": ...}.

Order of a store: sequence word 0, then ONE slice (crc, length, body), then the sequence, then the head. Words go
through `memoryview.cast("Q")`; nothing is packed into the mapping (`pack_into` zero-fills first, and a reader sees it).
Order of a load: sequence, copy, sequence again, CRC. The CRC alone makes acceptance safe where stores become visible
out of order (ARM); a slot that does not check is counted and never returned.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from grpo_sentinel.errors import SegmentError

MAGIC = b"GRPOSNTL"
VERSION = 1

PREAMBLE = struct.Struct("<8sIIII")  # magic, version, length, crc, reserved
CONSTANT_BYTES = 4096
CLOSING_AT, CLOSING_BYTES = 4608, 1536
ACK_AT, ACK_BYTES = 6144, 6144
HEADER_BYTES = 12288

# Indices of 8-byte words from the start of the segment.
W_STATE = CONSTANT_BYTES // 8
W_RECORD_BASE, W_RECORD_HEAD = W_STATE + 1, W_STATE + 2
W_EVENT_BASE, W_EVENT_HEAD = W_STATE + 3, W_STATE + 4
W_NAMES_BYTES, W_NAMES_COUNT, W_NAMES_OVERFLOW = W_STATE + 5, W_STATE + 6, W_STATE + 7
W_VALUES_DROPPED, W_PUSHES_LOST = W_STATE + 8, W_STATE + 9
W_BEAT_GUARD = W_STATE + 16
W_BEAT_PLACE, W_BEAT_SINCE, W_BEAT_UPDATED = W_BEAT_GUARD + 1, W_BEAT_GUARD + 2, W_BEAT_GUARD + 3

STATE_OPEN, STATE_CLOSED = 1, 2

SLOT_PREFIX = struct.Struct("<II")  # crc, length; the sequence before it is a word of its own
SLOT_PREFIX_BYTES = 16
STEP_HEAD = struct.Struct("<qqqqIIBBHHH")
VALUE_BYTES = 12  # float64 and its u32 id
EVENT_HEAD = struct.Struct("<qqQ")
NAME_HEAD = struct.Struct("<IH")
NAME_LONGEST = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Sizes of one segment. The default takes 1.9 MB, so that 8 ranks fit in a quarter of a container's 64 MiB.

    Keep 64 slots or more in production: a reader that is slow by one round loses records. Raises `SegmentError`
    on sizes that cannot work.
    """

    slots: int = 256
    slot_bytes: int = 4096
    event_slots: int = 256
    event_slot_bytes: int = 3072
    name_bytes: int = 65536

    def __post_init__(self) -> None:
        limits = {"slots": (2, 1), "slot_bytes": (128, 64), "event_slots": (2, 1)}
        limits |= {"event_slot_bytes": (512, 64), "name_bytes": (64, 64)}
        for name, (least, multiple) in limits.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least or value % multiple or value > 1 << 31:
                raise SegmentError(f"geometry: {name} must be {least} or more, a multiple of {multiple}, got {value}.")

    @property
    def steps_at(self) -> int:
        """Offset of the first step slot, bytes."""
        return HEADER_BYTES + self.name_bytes

    @property
    def events_at(self) -> int:
        """Offset of the first event slot, bytes."""
        return self.steps_at + self.slots * self.slot_bytes

    @property
    def total_bytes(self) -> int:
        """Size of the whole segment, bytes."""
        return self.events_at + self.event_slots * self.event_slot_bytes

    @property
    def values_per_slot(self) -> int:
        """How many values one step slot holds."""
        return (self.slot_bytes - SLOT_PREFIX_BYTES - STEP_HEAD.size) // VALUE_BYTES
