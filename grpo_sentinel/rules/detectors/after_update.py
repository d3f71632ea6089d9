"""What jumps with the first real update, and was fine before it: weights that do not reach the rollout engine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpo_sentinel.rules.expression import Expression
from grpo_sentinel.rules.view import FINE, NEAR, Verdict, View, unable


@dataclass
class AfterUpdate:
    """Bad when `points` views in a row after the first update exceed ratio * the largest value before it + floor.

    Before any update engine and trainer hold the same weights, so what differs is rounding: that is the baseline, from
    the first view on. `moved` above 0 marks the first step that changes weights; it shows from the next step on, since
    a step's samples are older than its update. Judged in the first `within` views after it: later a level has its own
    history, and other rules. A run whose first view comes after an update (`step` above 2) has no such start.
    """

    signal: Expression
    moved: Expression
    ratio: float = 3.0
    floor: float = 0.02
    points: int = 3
    within: int = 30

    def __post_init__(self) -> None:
        if self.ratio < 1 or self.floor < 0 or self.points < 1 or self.within < self.points:
            raise ValueError("expected ratio >= 1, floor >= 0 and within >= points >= 1")
        self._before: float | None = None
        self._moved = False
        self._after = 0
        self._run = 0
        self._since = 0
        self._no_start = unable(f"{self.signal.text} was not seen before the first update")
        self._waiting = unable("no update so far")

    def update(self, view: View) -> Verdict:
        if view.step > 2 and self._before is None:
            self._moved = True
        known = self._moved
        if not known:
            moved = self.moved(view.get)
            self._moved = moved is not None and moved > 0
        value = self.signal(view.get)
        if value is None or not math.isfinite(value):
            return unable(self.signal.missing(view.get) if value is None else f"{self.signal.text} is not finite")
        if not known:
            self._before = value if self._before is None else max(value, self._before)
            return self._waiting
        if self._before is None:
            return self._no_start
        if self._after >= self.within:
            return FINE
        limit = self.ratio * self._before + self.floor
        if value <= limit:
            self._run = 0
            self._after += 1
            return FINE
        self._since = view.step if not self._run else self._since
        self._run += 1
        if self._run < self.points:
            return NEAR
        text = f"from {self._before:.3g} to {value:.3g}"
        return Verdict(
            bad=True, clear=False, value=value, limit=limit, signal=self.signal.text, onset=self._since, detail=text
        )


__all__ = ["AfterUpdate"]
