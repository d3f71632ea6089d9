"""A value that does not move at all: real training never repeats a float exactly for long."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_sentinel.rules.expression import Expression
from grpo_sentinel.rules.view import FINE, Verdict, View, unable


@dataclass
class Flat:
    """Bad when the signal was bit-equal in the last `points` views that had it."""

    signal: Expression
    points: int = 5

    def __post_init__(self) -> None:
        if self.points < 2:
            raise ValueError(f"points must be at least 2, got {self.points}")
        self._last: float | None = None
        self._run = 0
        self._since = 0

    def update(self, view: View) -> Verdict:
        value = self.signal(view.get)
        if value is None:
            return unable(self.signal.missing(view.get))
        if value != self._last:
            self._last, self._run, self._since = value, 0, view.step
        self._run += 1
        if self._run < self.points:
            return FINE
        return Verdict(bad=True, clear=False, value=value, signal=self.signal.text, onset=self._since)
