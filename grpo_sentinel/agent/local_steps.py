"""In which steps this rank's own gradients are watched, before they are reduced over the ranks: always, or when asked.

The hooks cost time in the trainer's backward, so they are armed for a few steps after a spike and taken off again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from grpo_sentinel.agent.guard import Guard
from grpo_sentinel.agent.probes.local_watch import LocalWatch
from grpo_sentinel.agent.probes.pack import Pack

_PROBE = "local gradients"


class LocalSteps:
    """Counts the steps that are left to watch."""

    def __init__(self, guard: Guard, *, always: bool, steps: int) -> None:
        self._guard = guard
        self._always = always
        self._steps = steps
        self._left = 0
        self._watch = LocalWatch()

    def arm(self, parameters: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        """Watch from the next backward on."""
        if self._left <= 0:
            self._watch.arm(parameters)
        self._left = self._steps + 1  # one for the present step, which is over

    def border(self) -> None:
        """Let the hooks know that another micro-batch has begun; twice for the same one does no harm."""
        if self._left > 0:
            self._guard.run(_PROBE, self._watch.micro_batch)

    def take(self) -> Pack | None:
        """Give what the hooks saw in the step that is over."""
        return self._guard.run(_PROBE, self._take) if self._left > 0 else None

    def close(self) -> None:
        """Take the hooks off."""
        if self._left > 0:
            self._watch.disarm()

    def _take(self) -> Pack | None:
        pack = self._watch.pack()
        self._guard.charge(self._watch.take_seconds())  # the hooks run inside the trainer's backward, outside the guard
        if not self._always:
            self._left -= 1
        if self._left <= 0:
            self._watch.disarm()
        return pack
