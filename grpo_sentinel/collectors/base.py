"""What every collector of things without a step offers to the daemon's loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from grpo_sentinel.records import Sample


class Collector(Protocol):
    """A source of samples that decides by itself when its next reading is due."""

    name: str

    def poll(self) -> Sequence[Sample]:
        """Return what has been read since the last call, often nothing; never blocks, never raises."""
        ...

    def close(self) -> None:
        """Let go of threads, processes and files; never waits for a reading that hangs."""
        ...
