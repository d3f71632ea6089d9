"""Time of the present step on this rank: how long it took, when it came to the first collective, what it waited."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from grpo_sentinel.agent.phases import PhaseClock
from grpo_sentinel.records import Phase


class StepClock:
    """Seconds of one step, evaluation and checkpoints left out; stands at 0 until the first `restart`."""

    def __init__(self, phases: PhaseClock, clock: Callable[[], float] = time.perf_counter) -> None:
        self.arrival: float | None = None  # seconds from the step's start to the first collective, waiting left out
        self._phases = phases
        self._clock = clock
        self._started: float | None = None
        self._waited = 0.0
        self._waits = 0

    @property
    def running(self) -> bool:
        """Tell whether a first step has begun."""
        return self._started is not None

    def restart(self) -> None:
        """Begin a step now."""
        self._started, self.arrival, self._waited = self._clock(), None, 0.0

    def elapsed(self) -> float:
        """Seconds of this step so far."""
        if self._started is None:
            return 0.0
        aside = self._phases.peek(Phase.EVALUATION) + self._phases.peek(Phase.CHECKPOINT)
        return self._clock() - self._started - aside

    def arrived(self) -> None:
        """Stamp the arrival at the step's first collective; later ones do not count."""
        if self.arrival is None:
            self.arrival = self.elapsed() - self._waited

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark the block as a collective before the training forward: its time is the others' lateness, not ours."""
        started = self._clock()
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            if self._waits == 0:
                self._waited += self._clock() - started
