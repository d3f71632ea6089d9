"""Lines that wait for a child process, in order, bounded in bytes: the oldest goes first, and every loss is counted.

add ──▶ waiting ──take──▶ in flight ──done──▶ forgotten
            ▲                  │
            └────── back ──────┘  the child died
"""

from __future__ import annotations

from collections import deque


class Spool:
    """Numbered lines; `size` counts the bytes of all that is not done."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._flying: deque[tuple[int, bytes]] = deque()
        self.size = 0
        self.number = 0  # of the newest line
        self.lost = dict.fromkeys(("spool_full", "poison", "rejected", "closing"), 0)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._flying)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def flying(self) -> int:
        return len(self._flying)

    def next_number(self) -> int:
        """Number the next line."""
        self.number += 1
        return self.number

    def add(self, line: bytes) -> None:
        """Append the line that `next_number` numbered; drops the oldest that wait when there is no room."""
        self._waiting.append((self.number, line))
        self.size += len(line)
        while self.size > self._max_bytes and self._waiting:
            self.size -= len(self._waiting.popleft()[1])
            self.lost["spool_full"] += 1

    def take(self) -> bytes:
        """Move the oldest waiting line into flight and give it."""
        item = self._waiting.popleft()
        self._flying.append(item)
        return item[1]

    def done(self, number: int) -> bool:
        """Forget what is in flight up to a number; True when there was any."""
        before = len(self._flying)
        while self._flying and self._flying[0][0] <= number:
            self.size -= len(self._flying.popleft()[1])
        return len(self._flying) < before

    def back(self) -> None:
        """Let what is in flight wait again, in its place."""
        self._waiting.extendleft(reversed(self._flying))
        self._flying.clear()

    def drop_first_flying(self) -> None:
        """Give up the oldest line in flight: it has ended the child again and again."""
        if self._flying:
            self.size -= len(self._flying.popleft()[1])
            self.lost["poison"] += 1

    def give_up(self) -> None:
        """Count all that is left as lost at closing."""
        self.lost["closing"] += len(self)
        self._waiting.clear()
        self._flying.clear()
        self.size = 0
