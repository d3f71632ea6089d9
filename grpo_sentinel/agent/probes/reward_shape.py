"""Reward layer, on the host: have the rewards two modes? Asked of the newest ones, since one batch is too few."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

_NEWEST = 200  # as many as a dip test is usually given
_LEAST = 32
_ROUNDING = 1e-12  # relative: nearer than this are equal


class Newest:
    """Keeps the newest finite combined rewards of this rank."""

    def __init__(self) -> None:
        self._rewards: deque[float] = deque(maxlen=_NEWEST)

    def add(self, rewards: Iterable[float]) -> None:
        """Take a batch; what is not finite is left out."""
        self._rewards.extend(filter(math.isfinite, rewards))

    def bimodality(self) -> float | None:
        """Give Sarle's coefficient; None for fewer than 32 rewards, or equal ones.

            (g^2 + 1) / (k + 3 (n-1)^2 / ((n-2)(n-3)))      g sample skewness, k sample excess kurtosis

        SAS/STAT, "The CLUSTER procedure"; Pfister et al. 2013: 1/3 for a normal distribution, 5/9 for an even one,
        near 1 for two values. A long tail of one mode raises it as well.
        """
        rewards, n = list(self._rewards), len(self._rewards)
        if n < _LEAST:
            return None
        low, high = min(rewards), max(rewards)
        span = high - low  # in units of it no power overflows
        if span <= _ROUNDING * max(abs(low), abs(high)) or not math.isfinite(span):
            return None
        mean = sum([(reward - low) / span for reward in rewards]) / n
        apart = [(reward - low) / span - mean for reward in rewards]
        squares = [d * d for d in apart]
        m2 = sum(squares) / n
        m3 = sum([d * square for d, square in zip(apart, squares, strict=True)]) / n
        m4 = sum([square * square for square in squares]) / n
        skewness = math.sqrt(n * (n - 1)) / (n - 2) * m3 / (m2 * math.sqrt(m2))
        kurtosis = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * m4 / (m2 * m2) - 3 * (n - 1))
        return (skewness * skewness + 1) / (kurtosis + 3 * (n - 1) ** 2 / ((n - 2) * (n - 3)))
