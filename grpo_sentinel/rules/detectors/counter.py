"""A counter that grew: events between two looks, not the total since the start."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from grpo_sentinel.rules.expression import Expression
from grpo_sentinel.rules.view import FINE, Verdict, View, unable


@dataclass
class Counter:
    """Bad when the signal grew by at least `by` within the last `window` views.

    The first view gives the base (`from_zero: true`: the base is 0). A counter that falls was restarted.
    `grace` views at the start are counted from, never reported: initial loss-scale chains are normal.
    """

    signal: Expression
    by: float = 1.0
    window: int = 1
    from_zero: bool = False
    grace: int = 0

    def __post_init__(self) -> None:
        if self.by <= 0 or self.window < 1:
            raise ValueError("expected by > 0 and window >= 1")
        self._past: deque[float] = deque(maxlen=self.window)
        self._seen = 0
        if self.from_zero:
            self._past.append(0.0)

    def update(self, view: View) -> Verdict:
        value = self.signal(view.get)
        if value is None:
            return unable(self.signal.missing(view.get))
        if value != value:
            return unable(f"{self.signal.text} is not a number")
        self._seen += 1
        if not self._past or value < self._past[-1] or self._seen <= self.grace:
            self._past.clear()
            self._past.append(value)
            return FINE
        grown = value - self._past[0]
        self._past.append(value)
        if grown < self.by:
            return FINE
        return Verdict(bad=True, clear=False, value=grown, limit=self.by, signal=self.signal.text)
