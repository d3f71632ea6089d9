"""What the agent itself costs in each step, and what it does about that: costly probes run more seldom, and it says so.

    own time = time inside the guard - what the processor gave to others meanwhile      (`processor`, `governor`)
"""

from __future__ import annotations

from grpo_sentinel.agent.governor import Change, Governor
from grpo_sentinel.agent.guard import Guard
from grpo_sentinel.agent.processor import Processor


class OwnTime:
    """Measures the agent's own seconds per step, and thins its probes where they are too many."""

    def __init__(self, guard: Guard, *, share: float, floor_seconds: float) -> None:
        self.governor = Governor(share=share, floor_seconds=floor_seconds)
        self.processor = Processor()
        self._guard = guard
        self._before = 0.0
        self._told: set[bool] = set()  # thinning, and that it is not enough

    def start(self) -> None:
        """Measure from here on, the thread that calls this."""
        self._before = self._guard.seconds
        self._guard.run("processor", self.processor.start)

    def of_step(self) -> float:
        """Give the own seconds of the step that ends, without the time in which the processor ran something else."""
        guard, processor = self._guard, self.processor
        seconds, self._before = guard.seconds - self._before, guard.seconds
        processor.next_step()
        seconds -= min(guard.off_processor_seconds, processor.held_up_seconds)
        guard.off_processor_seconds, guard.by_processor = 0.0, processor.contended
        return max(0.0, seconds)

    def thin(self, seconds: float, step_seconds: float, *, full: bool) -> Change | None:
        """Let the governor see what a step cost. A change is given where it is to be told.

        That is the first one, and the one by which thinning cannot do it; the rest shows in the signals.
        """
        elapsed = max(seconds, step_seconds - self.processor.held_up_seconds)
        change = self.governor.account(seconds, elapsed, full=full)
        if change is None or change.enough in self._told:
            return None
        self._told.add(change.enough)
        return change

    def close(self) -> None:
        """Let go of what the kernel says."""
        self._guard.run("processor", self.processor.close)
