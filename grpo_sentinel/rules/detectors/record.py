"""A value that stays under the best it has reached in this run: tells "dead" from "saturated"."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpo_sentinel.rules.expression import Expression
from grpo_sentinel.rules.view import FINE, Verdict, View, unable


@dataclass
class Record:
    """Bad when value < record maximum - margin; with `worst: true` when value > record minimum + margin."""

    signal: Expression
    margin: float = 1e-6
    worst: bool = False

    def __post_init__(self) -> None:
        self._best: float | None = None

    def update(self, view: View) -> Verdict:
        value = self.signal(view.get)
        if value is None:
            return unable(self.signal.missing(view.get))
        if not math.isfinite(value):
            return unable(f"{self.signal.text} is not finite")
        best = self._best
        if best is None or (value < best if self.worst else value > best):
            self._best = value
            return FINE
        gap = value - best if self.worst else best - value
        if gap <= self.margin:
            return FINE
        return Verdict(bad=True, clear=False, value=value, limit=best, signal=self.signal.text)
