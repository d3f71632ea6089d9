"""Keeps the agent's self time under a share of step time by running costly probes at every n-th step only.

    allowed = max(floor, share x step time)         n = smallest power of two with plain + (full - plain) / n <= allowed

`full` and `plain` are the median self times of steps with and without the costly probes. Vote, gate, non-finite checks
and bounds run at every step whatever it costs. Steps are chosen by their number, so ranks that thin at all do so at
common steps, and a digest is compared with one of the same step.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from typing import Any

LARGEST = 64
_WINDOW = 16  # steps that the medians are over
_PATIENCE = 8  # costly steps, and plain ones, that must have been seen since the last change
_EASE = 0.75  # sampling gets denser only when that would take this share of what is allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What the governor decided: costly probes now run every `every` steps."""

    every: int
    self_seconds: float  # of a step with the costly probes
    plain_seconds: float | None  # of one without; None as long as there was none
    allowed_seconds: float

    @property
    def enough(self) -> bool:
        """Tell whether thinning can reach what is allowed."""
        return self.plain_seconds is None or self.plain_seconds <= self.allowed_seconds

    def body(self) -> dict[str, Any]:
        """Say it as the body of an event."""
        return {
            "what": "sampling",
            "text": f"costly probes run every {self.every} steps to keep the agent's own time within its share",
            "every": self.every,
            "self_seconds": self.self_seconds,
            "allowed_seconds": self.allowed_seconds,
        }


class Governor:
    """Decides per step whether costly probes run. Constant memory; time comes in from outside."""

    def __init__(self, *, share: float, floor_seconds: float) -> None:
        self.every = 1
        self._share = share
        self._floor = floor_seconds
        self._full: deque[float] = deque(maxlen=_WINDOW)
        self._plain: deque[float] = deque(maxlen=_WINDOW)
        self._steps: deque[float] = deque(maxlen=_WINDOW)
        self._full_since = self._plain_since = 0

    def due(self, step: int) -> bool:
        """Tell whether the costly probes run in this step."""
        return step % self.every == 0

    def account(self, self_seconds: float, step_seconds: float, *, full: bool) -> Change | None:
        """Take one step's cost; gives the change when the spacing changes."""
        (self._full if full else self._plain).append(self_seconds)
        self._full_since += full
        self._plain_since += not full
        self._steps.append(step_seconds)
        seen = self._full_since >= (_PATIENCE if self.every == 1 else 2)
        if not seen or (self.every > 1 and self._plain_since < _PATIENCE):
            return None
        every = self._wanted()
        if every == self.every:
            return None
        self.every = every
        self._full_since = self._plain_since = 0
        return Change(
            every=every,
            self_seconds=statistics.median(self._full),
            plain_seconds=statistics.median(self._plain) if self._plain else None,
            allowed_seconds=self._allowed(),
        )

    def _allowed(self) -> float:
        return max(self._floor, self._share * statistics.median(self._steps))

    def _wanted(self) -> int:
        allowed, full = self._allowed(), statistics.median(self._full)
        if not self._plain:
            return 1 if full <= allowed else 2
        plain = statistics.median(self._plain)
        for power in range(LARGEST.bit_length()):
            every = 1 << power
            if plain + (full - plain) / every <= (allowed if every >= self.every else _EASE * allowed):
                return every
        return LARGEST
