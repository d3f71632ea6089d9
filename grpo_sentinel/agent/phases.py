"""Where the training thread is and how long it was there: heartbeats for the sidecar, seconds per phase for the record.

Phases nest (reward inside generate); an inner phase's time is not counted for the outer one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from grpo_sentinel.records import Phase

_RAISED_IN = "_grpo_sentinel_phase"

Stamp = Callable[[Phase, int], None]


class PhaseClock:
    """Stamps phases from the training thread and adds their seconds up until `take()`."""

    def __init__(self, stamp: Stamp, clock: Callable[[], float] = time.perf_counter) -> None:
        self.step = 0
        self._stamp = stamp
        self._clock = clock
        self._stack: list[Phase] = [Phase.IDLE]
        self._since = clock()
        self._seconds: dict[Phase, float] = {}

    @property
    def now(self) -> Phase:
        """The phase the thread is in."""
        return self._stack[-1]

    def enter(self, phase: Phase) -> None:
        """Begin a phase inside the present one."""
        self._book()
        self._stack.append(phase)
        self._stamp(phase, self.step)

    def raised(self, error: BaseException) -> None:
        """Note on an exception that leaves a phase which one that was; the innermost, which is left first, counts."""
        if not hasattr(error, _RAISED_IN):
            with contextlib.suppress(AttributeError, TypeError):  # an exception with slots
                setattr(error, _RAISED_IN, self.now)

    def of(self, error: BaseException) -> Phase:
        """Give the phase in which an exception was raised: as noted, else the one the thread is in."""
        phase = getattr(error, _RAISED_IN, self.now)
        return phase if isinstance(phase, Phase) else self.now

    def leave(self, phase: Phase) -> None:
        """End a phase and any phase inside it that was not ended; unknown to the stack means nothing."""
        if phase not in self._stack[1:]:
            return
        self._book()
        while self._stack.pop() is not phase:
            pass
        self._stamp(self._stack[-1], self.step)

    def switch(self, phase: Phase) -> None:
        """Go to a phase of the outermost level, whatever was open."""
        self._book()
        self._stack = [phase]
        self._stamp(phase, self.step)

    def peek(self, phase: Phase) -> float:
        """Seconds in a phase so far."""
        self._book()
        return self._seconds.get(phase, 0.0)

    def take(self) -> dict[Phase, float]:
        """Hand over the seconds per phase since the last call, and start from zero."""
        self._book()
        seconds, self._seconds = self._seconds, {}
        return seconds

    def _book(self) -> None:
        now = self._clock()
        phase = self._stack[-1]
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._since
        self._since = now
