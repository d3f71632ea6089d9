"""What replicas must share: equal values on every rank, and every rank in every step."""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Mapping
from dataclasses import dataclass

from grpo_sentinel.rules.expression import Expression
from grpo_sentinel.rules.view import FINE, Verdict, View, unable


@dataclass
class Replica:
    """Bad when ranks hold unequal values: |a - b| > relative * max(|a|, |b|) + absolute, NaN equal only to NaN.

    Names the minority; with two ranks nobody can say which is right, so both are named, unless the value of one is not
    finite, or, with `remember`, one has gone much further than the other from what they last agreed on: a setting
    follows its schedule, and who leaves it is odd. `only_with` is a signal that only replicas send: until it has been
    seen, ranks may hold shards, and unequal values are right.
    """

    signal: Expression
    only_with: Expression | None = None
    relative: float = 0.0
    absolute: float = 0.0
    remember: bool = False

    def __post_init__(self) -> None:
        if self.relative < 0 or self.absolute < 0:
            raise ValueError("relative and absolute must not be negative")
        self._replicas = self.only_with is None
        self._agreed: float | None = None
        self._maybe_shards = unable("ranks may hold shards: no sign of replicas so far")
        self._few = unable(f"needs {self.signal.text} of two ranks on this node")

    def update(self, view: View) -> Verdict:
        if not self._replicas and self.only_with is not None:
            if self.only_with(view.get) is None:
                return self._maybe_shards
            self._replicas = True
        values: dict[int, float] = {}
        for rank, row in view.ranks.items():
            value = self.signal(row.get)
            if value is not None:
                values[rank] = value
        if len(values) < 2:
            return self._few
        reference = _majority(list(values.values()))
        odd = [rank for rank, value in values.items() if not self._equal(value, reference)]
        if not odd:
            self._agreed = reference
            return FINE
        broken = [rank for rank, value in values.items() if not math.isfinite(value)]
        if 0 < len(broken) < len(values):
            odd = broken  # whoever is in the minority: these are wrong
        elif 2 * len(odd) >= len(values):
            odd = self._gone(values) or list(values)
            reference = next((value for rank, value in values.items() if rank not in odd), reference)
        ranks = tuple(sorted(odd))
        value = next((values[rank] for rank in odd if not self._equal(values[rank], reference)), values[odd[0]])
        return Verdict(bad=True, clear=False, value=value, limit=reference, ranks=ranks, signal=self.signal.text)

    def _gone(self, values: Mapping[int, float]) -> list[int]:
        """Ranks more than twice as far from the value last agreed on as the nearest; none where that tells nothing."""
        if not self.remember or self._agreed is None:
            return []
        distances = {rank: abs(value - self._agreed) for rank, value in values.items()}
        nearest = min(distances.values())
        return [rank for rank, distance in distances.items() if distance > 2 * nearest]

    def _equal(self, a: float, b: float) -> bool:
        if a == b or (a != a and b != b):
            return True
        return abs(a - b) <= self.relative * max(abs(a), abs(b)) + self.absolute


def _majority(values: list[float]) -> float:
    """The commonest value, for ties the middle one; NaN counts as one value."""
    tally = Tally("nan" if value != value else value for value in values)
    commonest, times = tally.most_common(1)[0]
    if times > 1:
        return float(commonest)
    return sorted(values, key=lambda value: (value != value, value))[(len(values) - 1) // 2]


@dataclass
class MissingRank:
    """Bad when ranks known on this node sent nothing for the step in time."""

    def update(self, view: View) -> Verdict:
        if not view.missing:
            return FINE
        return Verdict(bad=True, clear=False, value=float(len(view.missing)), limit=0.0, ranks=view.missing)
