"""Time as an argument: code that waits or stamps takes a `Clock`, tests move one by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings and a wait; everything in the daemon that depends on time takes one of these."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary start on this host; never steps back."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        ...


class SystemClock:
    """The host's own clocks."""

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()


class ManualClock:
    """A clock that only `advance` moves; for tests and replay."""

    def __init__(self, *, wall_ns: int = 1_700_000_000_000_000_000, monotonic_ns: int = 0) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns

    def advance(self, seconds: float) -> None:
        """Move both clocks forward by `seconds`."""
        step = round(seconds * 1e9)
        self._wall_ns += step
        self._monotonic_ns += step

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def wall_ns(self) -> int:
        return self._wall_ns
