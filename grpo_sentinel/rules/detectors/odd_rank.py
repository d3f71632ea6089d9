"""The rank that differs from the others in the same step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpo_sentinel.rules.expression import Expression
from grpo_sentinel.rules.robust import MAD_TO_SIGMA, mad, sorted_median
from grpo_sentinel.rules.view import FINE, Verdict, View, unable


@dataclass
class OddRank:
    """Runs once per rank. Bad when this rank's value differs from the median of the *others* by more than `floor`,
    by the factor `ratio`, and, from four ranks on, by `sigmas` robust standard deviations of the others.

    With two ranks it is the difference alone: only use it there for signals that say by themselves who is wrong.
    """

    signal: Expression
    direction: str = "up"
    ratio: float = 0.0
    sigmas: float = 5.0
    floor: float = 0.0
    min_ranks: int = 2

    def __post_init__(self) -> None:
        if self.direction not in ("up", "down", "both"):
            raise ValueError(f"direction is up, down or both, got {self.direction!r}")
        if self.min_ranks < 2:
            raise ValueError(f"min_ranks must be at least 2, got {self.min_ranks}")
        self._few = unable(f"needs {self.min_ranks} ranks on this node")

    def update(self, view: View) -> Verdict:
        own = self.signal(view.get)
        if own is None:
            return unable(self.signal.missing(view.get))
        others = []
        for rank, row in view.ranks.items():
            value = self.signal(row.get) if rank != view.rank else None
            if value is not None and math.isfinite(value):
                others.append(value)
        if len(others) + 1 < self.min_ranks:
            return self._few
        others.sort()
        centre = sorted_median(others)
        if math.isfinite(own) and not self._odd(own, centre, others):
            return FINE
        ranks = () if view.rank is None else (view.rank,)
        return Verdict(bad=True, clear=False, value=own, limit=centre, ranks=ranks, signal=self.signal.text)

    def _odd(self, own: float, centre: float, others: list[float]) -> bool:
        distance = own - centre
        if self.direction == "down":
            distance = -distance
        elif self.direction == "both":
            distance = abs(distance)
        if distance <= self.floor or distance <= 0:
            return False
        if self.ratio:
            high, low = max(abs(own), abs(centre)), min(abs(own), abs(centre))
            if high <= self.ratio * low:
                return False
        return len(others) < 3 or distance > self.sigmas * MAD_TO_SIGMA * mad(others)
