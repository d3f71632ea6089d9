"""Which actions only take evidence, and how often rules may ask for anything at all.

capture, memory-snapshot, anomaly-trace   the trainer takes them at a step boundary, after a vote like any request
stacks                                    the sidecar takes them at once, also of a rank that hangs

Evidence has a budget of its own: a storm of captures must not use up what a halt needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from grpo_sentinel.clock import Clock
from grpo_sentinel.halting.journal import Entry
from grpo_sentinel.records import Action, Finding

IN_TRAINER = frozenset({Action.CAPTURE, Action.MEMORY_SNAPSHOT, Action.ANOMALY_TRACE})
EVIDENCE = IN_TRAINER | {Action.STACKS}


class Budget:
    """So many requests of rules in the life of a run, and so long between two."""

    def __init__(self, clock: Clock, most: int, cooldown_seconds: float) -> None:
        self._clock = clock
        self._most = most
        self._cooldown_ns = cooldown_seconds * 1e9
        self._made = 0
        self._last_ns: int | None = None

    def charge(self, past: Iterable[Entry]) -> None:
        """Begin with the requests that were made before, oldest first."""
        times = [entry.wall_ns for entry in past if entry.by_rule]
        self._made, self._last_ns = len(times), (times[-1] if times else None)

    def allows(self) -> bool:
        """Tell whether a rule may ask now."""
        if self._made >= self._most:
            return False
        return self._last_ns is None or self._clock.wall_ns() - self._last_ns >= self._cooldown_ns

    def take(self) -> None:
        """Count one request, made now."""
        self._made += 1
        self._last_ns = self._clock.wall_ns()


def strongest(asking: Sequence[Finding]) -> Finding:
    """Choose the finding whose action is the strongest; of equals a root cause, then the earliest."""
    return max(asking, key=lambda finding: (finding.action, not finding.root_id, -finding.onset_step))


__all__ = ["EVIDENCE", "IN_TRAINER", "Budget", "strongest"]
