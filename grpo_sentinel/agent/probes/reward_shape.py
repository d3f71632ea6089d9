"""Reward layer, on the host: have the rewards two modes? Asked of the newest ones, since one batch is too few."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

_NEWEST = 200  # as many as a dip test is usually given
_LEAST = 32


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
        n = len(self._rewards)
        if n < _LEAST or min(self._rewards) == max(self._rewards):
            return None
        scale = max(map(abs, self._rewards))  # fourth powers of 1e80 would overflow
        mean = math.fsum(reward / scale for reward in self._rewards) / n
        apart = [reward / scale - mean for reward in self._rewards]
        squares = [d * d for d in apart]
        m2 = math.fsum(squares) / n
        if m2 < 1e-24:  # nothing but rounding between them
            return None
        m3 = math.fsum(d * square for d, square in zip(apart, squares, strict=True)) / n
        m4 = math.fsum(square * square for square in squares) / n
        skewness = math.sqrt(n * (n - 1)) / (n - 2) * m3 / (m2 * math.sqrt(m2))
        kurtosis = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * m4 / (m2 * m2) - 3 * (n - 1))
        return (skewness * skewness + 1) / (kurtosis + 3 * (n - 1) ** 2 / ((n - 2) * (n - 3)))
