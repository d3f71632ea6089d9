"""Store and load one slot: sequence last on the way in, sequence twice and CRC on the way out."""

from __future__ import annotations

import enum
import mmap
from collections.abc import Callable
from zlib import crc32

from grpo_sentinel.protocol.layout import SLOT_PREFIX, SLOT_PREFIX_BYTES

_ATTEMPTS = 8  # on ARM a store may become visible a moment after the head that announces it


class Refused(enum.Enum):
    """Why a slot gave nothing."""

    OVERWRITTEN = "overwritten"  # holds a newer record, or is being written
    BAD = "bad"  # sequence or CRC do not agree, and stay so


def checksum(body: bytes, sequence: int) -> int:
    """CRC-32 of `body`, seeded with `sequence`, so that an old body under a new sequence never passes."""
    return crc32(body, sequence & 0xFFFFFFFF)


def store_slot(mapping: mmap.mmap, words: memoryview, offset: int, sequence: int, body: bytes) -> None:
    """Write `body` into the slot at byte `offset`; `words` is the whole mapping as 8-byte words.

    A reader that comes in between sees sequence 0, or a CRC that does not fit. Never blocks.
    """
    length, word = len(body), offset >> 3
    stored = SLOT_PREFIX.pack(crc32(body, sequence & 0xFFFFFFFF), length) + body
    words[word] = 0
    mapping[offset + 8 : offset + SLOT_PREFIX_BYTES + length] = stored
    words[word] = sequence


def load_slot(
    mapping: mmap.mmap, words: memoryview, offset: int, slot_bytes: int, sequence: int, lapped: Callable[[], bool]
) -> bytes | Refused:
    """Copy the body of record `sequence` out of the slot at byte `offset`.

    `lapped()` tells whether the writer may already have begun the record that replaces this one. Never returns a
    body whose sequence and CRC do not both fit.
    """
    for _ in range(_ATTEMPTS):
        found = words[offset >> 3]
        if found == sequence:
            crc, length = SLOT_PREFIX.unpack(mapping[offset + 8 : offset + SLOT_PREFIX_BYTES])
            if length <= slot_bytes - SLOT_PREFIX_BYTES:
                body = mapping[offset + SLOT_PREFIX_BYTES : offset + SLOT_PREFIX_BYTES + length]
                if words[offset >> 3] == sequence and checksum(body, sequence) == crc:
                    return body
        if lapped():
            return Refused.OVERWRITTEN
    return Refused.BAD


def load_latest(mapping: mmap.mmap, words: memoryview, offset: int, slot_bytes: int) -> bytes | None:
    """Copy the body of a slot that is overwritten in place (closing note, acknowledgement); None = empty or bad."""
    for _ in range(_ATTEMPTS):
        sequence = words[offset >> 3]
        if sequence:
            body = load_slot(mapping, words, offset, slot_bytes, sequence, lambda: False)
            if isinstance(body, bytes):
                return body
    return None
