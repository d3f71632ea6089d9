"""NaN and infinity, as values or as counts of them; a count that is itself NaN is bad too."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from grpo_sentinel.rules.expression import Expression
from grpo_sentinel.rules.view import FINE, Get, Verdict, View, unable


@dataclass
class Nonfinite:
    """Bad when one of `counts` is above zero or one of `values` is NaN or infinite.

    `tolerate_first: n` takes what is bad in each of the first n views for the task's design (a reward function
    that returns None for other tasks' samples) and abstains.
    """

    counts: tuple[Expression, ...] = ()
    values: tuple[Expression, ...] = ()
    tolerate_first: int = 0

    def __post_init__(self) -> None:
        if not self.counts and not self.values:
            raise ValueError("nonfinite needs counts or values")
        self._seen = 0
        self._bad_at_start = 0
        names = [expression.text for expression in (*self.counts, *self.values)]
        self._missing = unable(f"no value of {', '.join(names)}")
        self._by_design = unable(f"{names[0]} has been above zero since the first step: taken for the task's design")

    def update(self, view: View) -> Verdict:
        verdict = self._judge(view.get)
        if not self.tolerate_first or verdict.unable:
            return verdict
        if self._seen < self.tolerate_first:
            self._seen += 1
            self._bad_at_start += verdict.bad
        if self._bad_at_start == self._seen:  # bad in every view so far: a design, unless a good one comes
            return self._by_design
        return verdict

    def _judge(self, get: Get) -> Verdict:
        known = False
        for expression in self.counts:
            value = expression(get)
            if value is None:
                continue
            known = True
            if value > 0 or value != value:
                return Verdict(bad=True, clear=False, value=value, limit=0.0, signal=expression.text)
        for expression in self.values:
            value = expression(get)
            if value is None:
                continue
            known = True
            if not math.isfinite(value):
                return Verdict(bad=True, clear=False, value=value, signal=expression.text)
        return FINE if known else self._missing

    def calm(self) -> tuple[tuple[str, float, float], ...]:
        """Zero for counts, all finite numbers for values, where no view is remembered."""
        if self.tolerate_first or not all(expression.single for expression in (*self.counts, *self.values)):
            return ()
        counts = [(expression.single, 0.0, 0.0) for expression in self.counts]
        values = [(expression.single, -sys.float_info.max, sys.float_info.max) for expression in self.values]
        return (*counts, *values)

    def blames(self, get: Get) -> bool:
        """Does this rank alone hold something that is not finite?"""
        return self._judge(get).bad
