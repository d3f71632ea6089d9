"""The append-only table of signal names inside a segment: a name's id is its position.

All names go through it, those of the catalogue too, so a segment explains itself years later and to any version.
"""

from __future__ import annotations

import mmap
import zlib

from grpo_sentinel.protocol.layout import (
    HEADER_BYTES,
    NAME_HEAD,
    NAME_LONGEST,
    W_NAMES_BYTES,
    W_NAMES_COUNT,
    W_NAMES_OVERFLOW,
)

_REFUSED_KEPT = 4096  # refused names remembered, so that each is counted once


class NameTable:
    """Writer's side; one per segment, used under the writer's lock."""

    def __init__(self, mapping: mmap.mmap, words: memoryview, name_bytes: int) -> None:
        self._mapping, self._words, self._name_bytes = mapping, words, name_bytes
        self._ids: dict[str, int] = {}
        self._refused: set[str] = set()
        self._used = 0
        self.overflow = 0

    def id_of(self, name: str) -> int | None:
        """Give the id of `name`, adding it on first use; None when it found no place, which is counted."""
        found = self._ids.get(name)
        if found is not None:
            return found
        text = name.encode("utf-8", "backslashreplace")
        size = -(-(NAME_HEAD.size + len(text)) // 8) * 8
        if len(text) > NAME_LONGEST or self._used + size > self._name_bytes:
            self._refuse(name)
            return None
        identifier = len(self._ids)
        at = HEADER_BYTES + self._used
        entry = NAME_HEAD.pack(zlib.crc32(text, identifier), len(text)) + text
        self._mapping[at : at + len(entry)] = entry
        self._ids[name] = identifier
        self._used += size
        self._words[W_NAMES_BYTES] = self._used
        self._words[W_NAMES_COUNT] = identifier + 1  # last: a reader takes entries up to this count
        return identifier

    def _refuse(self, name: str) -> None:
        if name not in self._refused:
            self.overflow += 1
            self._words[W_NAMES_OVERFLOW] = self.overflow
            if len(self._refused) < _REFUSED_KEPT:
                self._refused.add(name)


class NameReader:
    """Reader's side: follows the table as it grows."""

    def __init__(self, mapping: mmap.mmap, words: memoryview, name_bytes: int) -> None:
        self._mapping, self._words, self._name_bytes = mapping, words, name_bytes
        self._names: list[str] = []
        self._at = 0
        self._by_ids: dict[bytes, tuple[str, ...]] = {}

    def names_of(self, ids: bytes) -> tuple[str, ...] | None:
        """Translate a block of u32 ids; None when one of them is not in the table."""
        known = self._by_ids.get(ids)
        if known is not None:
            return known
        wanted = memoryview(ids).cast("I").tolist()
        if wanted and max(wanted) >= len(self._names):
            self._follow()
            if max(wanted) >= len(self._names):
                return None
        if len(self._by_ids) >= 1024:
            self._by_ids.clear()
        names = self._by_ids[ids] = tuple(self._names[number] for number in wanted)
        return names

    def _follow(self) -> None:
        """Read entries that came since; stops at the first that does not check."""
        while len(self._names) < self._words[W_NAMES_COUNT] and self._at + NAME_HEAD.size <= self._name_bytes:
            at = HEADER_BYTES + self._at
            crc, length = NAME_HEAD.unpack(self._mapping[at : at + NAME_HEAD.size])
            text = self._mapping[at + NAME_HEAD.size : at + NAME_HEAD.size + length]
            if length > NAME_LONGEST or zlib.crc32(text, len(self._names)) != crc:
                return
            self._names.append(text.decode("utf-8", "replace"))
            self._at += -(-(NAME_HEAD.size + length) // 8) * 8
