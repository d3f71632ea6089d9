"""Something that must hold exactly: a value inside [min, max], no baseline needed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpo_sentinel.rules.expression import Expression
from grpo_sentinel.rules.view import FINE, NEAR, Get, Verdict, View, unable


@dataclass
class Bound:
    """Bad when `signal` leaves [min - slack, max + slack], slack = absolute + relative * |limit|.

    `strict: true` makes the limit itself bad: `min: 0, strict: true` is bad at 0 and below. `first` judges only the
    first so many views, `until_step` only steps up to it. NaN is not judged here: 0/0 in a metric is normal, the
    non-finite rules decide.
    """

    signal: Expression
    min: Expression | None = None
    max: Expression | None = None
    relative: float = 0.0
    absolute: float = 0.0
    hysteresis: float = 0.0  # share of the limit that a value must come back by before the finding resolves
    strict: bool = False
    first: int = 0
    until_step: int = 0

    def __post_init__(self) -> None:
        if self.min is None and self.max is None:
            raise ValueError("bound needs min or max")
        if self.relative < 0 or self.absolute < 0 or self.hysteresis < 0:
            raise ValueError("relative, absolute and hysteresis must not be negative")
        self._seen = 0
        self._signal_text = self.signal.text
        # constant limits, the usual case, are widened by their slack once
        self._top = self._edge(self.max, 1.0)
        self._bottom = self._edge(self.min, -1.0)
        self._not_a_number = unable(f"{self._signal_text} is not a number")

    def _edge(self, limit: Expression | None, sign: float) -> float | None:
        return None if limit is None or limit.constant is None else self._widen(limit.constant, sign)

    def _widen(self, limit: float, sign: float) -> float:
        return limit + sign * (self.absolute + self.relative * abs(limit))

    def update(self, view: View) -> Verdict:
        if self.until_step and view.step > self.until_step:
            return FINE
        if self.first:
            if self._seen >= self.first:
                return FINE
            if self.signal(view.get) is not None:
                self._seen += 1
        return self._judge(view.get)

    def _judge(self, get: Get) -> Verdict:
        value = self.signal(get)
        if value is None:
            return unable(self.signal.missing(get))
        if value != value:
            return self._not_a_number
        near = False
        if self.max is not None:
            edge = self._top
            if edge is None:
                limit = self.max(get)
                if limit is None:
                    return unable(self.max.missing(get))
                edge = self._widen(limit, 1.0)
            if value > edge or (self.strict and value >= edge):
                return self._bad(value, self.max(get))
            near = value > edge - self.hysteresis * abs(edge)
        if self.min is not None:
            edge = self._bottom
            if edge is None:
                limit = self.min(get)
                if limit is None:
                    return unable(self.min.missing(get))
                edge = self._widen(limit, -1.0)
            if value < edge or (self.strict and value <= edge):
                return self._bad(value, self.min(get))
            near = near or value < edge + self.hysteresis * abs(edge)
        return NEAR if near and self.hysteresis else FINE

    def _bad(self, value: float, limit: float | None) -> Verdict:
        return Verdict(bad=True, clear=False, value=value, limit=limit, signal=self._signal_text)

    def calm(self) -> tuple[tuple[str, float, float], ...]:
        """Range of the one signal inside which nothing is bad, where limits are constants and nothing is counted."""
        constant = all(limit is None or limit.constant is not None for limit in (self.min, self.max))
        if self.first or not constant or not self.signal.single:
            return ()
        low = -math.inf if self._bottom is None else self._bottom
        high = math.inf if self._top is None else self._top
        if self.strict:
            low, high = math.nextafter(low, math.inf), math.nextafter(high, -math.inf)
        return ((self.signal.single, low, high),)

    def blames(self, get: Get) -> bool:
        """Does a rank alone break it?"""
        return self._judge(get).bad
