"""A value against its own robust early baseline: fallen to a small share of it, or risen to a multiple."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpo_sentinel.rules.expression import Expression
from grpo_sentinel.rules.robust import median
from grpo_sentinel.rules.view import FINE, NEAR, Verdict, View, unable


@dataclass
class Collapse:
    """Bad when the value is below `below` x, or above `above` x, the median of its first `baseline` healthy points.

    Points of steps in which a bound is broken do not seed the baseline, nor do the first `skip`. A baseline at or
    below `min_baseline` judges nothing. The baseline is frozen: slow decay is seen, however slow.
    """

    signal: Expression
    below: float | None = None
    above: float | None = None
    baseline: int = 20
    skip: int = 2
    min_baseline: float = 0.0
    hysteresis: float = 0.1

    def __post_init__(self) -> None:
        if self.below is None and self.above is None:
            raise ValueError("collapse needs below or above")
        if self.baseline < 3:
            raise ValueError(f"baseline needs at least 3 points, got {self.baseline}")
        self._points: list[float] = []
        self._skipped = 0
        self._base: float | None = None
        self._learning = unable(f"learning the early level of {self.signal.text} ({self.baseline} points)")
        self._too_small = unable(f"the early level of {self.signal.text} is at or below {self.min_baseline:g}")

    def update(self, view: View) -> Verdict:
        value = self.signal(view.get)
        if value is None:
            return unable(self.signal.missing(view.get))
        if not math.isfinite(value):
            return unable(f"{self.signal.text} is not finite")
        if self._base is None:
            return self._learn(value, view.tainted)
        base = self._base
        if base <= self.min_baseline:
            return self._too_small
        if self.below is not None and value < self.below * base:
            return self._bad(value, self.below * base, base)
        if self.above is not None and value > self.above * base:
            return self._bad(value, self.above * base, base)
        near_low = self.below is not None and value < self.below * base * (1 + self.hysteresis)
        near_high = self.above is not None and value > self.above * base * (1 - self.hysteresis)
        return NEAR if near_low or near_high else FINE

    def _learn(self, value: float, tainted: bool) -> Verdict:
        if self._skipped < self.skip:
            self._skipped += 1
        elif not tainted:
            self._points.append(value)
            if len(self._points) == self.baseline:
                self._base = median(self._points)
        return self._learning

    def _bad(self, value: float, limit: float, base: float) -> Verdict:
        text = f"{value / base:.3g} x its early level {base:.3g}"
        return Verdict(bad=True, clear=False, value=value, limit=limit, signal=self.signal.text, detail=text)
