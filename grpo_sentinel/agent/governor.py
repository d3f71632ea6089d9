"""Keeps the agent's self time under a share of step time by running costly probes at every n-th step only.

    allowed = max(floor, share x step time)         n = smallest power of two with plain + (full - plain) / n <= allowed

`full` and `plain` are the median self times of steps with and without the costly probes. Vote, gate, non-finite checks
and bounds run at every step whatever it costs. Steps are chosen by their number, so ranks that thin at all do so at
common steps, and a digest is compared with one of the same step. Time in which the processor ran something else is left
out of both times (`processor`): a noisy neighbour thins nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
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

    def text(self) -> str:
        """Say it in one sentence."""
        every = f"costly probes run every {self.every} steps"
        if self.enough:
            return f"{every} to keep the agent's own time at {1e3 * self.allowed_seconds:.3g} ms a step"
        plain = 1e3 * (self.plain_seconds or 0.0)
        return (
            f"{every}; what runs at every step whatever it costs (vote, non-finite checks, bounds) takes "
            f"{plain:.3g} ms, more than the {1e3 * self.allowed_seconds:.3g} ms meant for steps this short: "
            "nothing is wrong, agent.overhead_floor_seconds is the setting"
        )

    def body(self) -> dict[str, Any]:
        """Say it as the body of an event."""
        return {
            "what": "sampling",
            "text": self.text(),
            "every": self.every,
            "self_seconds": self.self_seconds,
            "plain_seconds": self.plain_seconds,
            "allowed_seconds": self.allowed_seconds,
            "enough": self.enough,
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

    @property
    def allowed_seconds(self) -> float:
        """Self time that a step may take on average."""
        return max(self._floor, self._share * _median(self._steps)) if self._steps else self._floor

    @property
    def plain_seconds(self) -> float | None:
        """Self time of a step without the costly probes: no thinning gets below it. None before there was one."""
        return _median(self._plain) if self._plain else None

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
            self_seconds=_median(self._full),
            plain_seconds=self.plain_seconds,
            allowed_seconds=self.allowed_seconds,
        )

    def _wanted(self) -> int:
        allowed, full, plain = self.allowed_seconds, _median(self._full), self.plain_seconds
        if plain is None:
            return 1 if full <= allowed else 2
        for power in range(LARGEST.bit_length()):
            every = 1 << power
            if plain + (full - plain) / every <= (allowed if every >= self.every else _EASE * allowed):
                return every
        return LARGEST


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)  # `statistics.median` takes ten times as long, and this runs at every step
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
