"""Streaming order statistics with a fixed price: windows that stay sorted, medians, MAD, Theil-Sen slopes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

MAD_TO_SIGMA = 1.4826  # makes the median absolute deviation of a Gaussian equal its standard deviation


class SortedWindow:
    """The newest `size` finite values, in order of arrival and sorted. `push` costs O(size) moves of one word."""

    __slots__ = ("_order", "_size", "_sorted")

    def __init__(self, size: int) -> None:
        self._size = size
        self._order: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def push(self, value: float) -> None:
        if len(self._order) == self._size:
            old = self._order.popleft()
            del self._sorted[bisect_left(self._sorted, old)]
        self._order.append(value)
        insort(self._sorted, value)

    def clear(self) -> None:
        self._order.clear()
        self._sorted.clear()

    @property
    def values(self) -> Sequence[float]:
        """Oldest first."""
        return self._order

    def median(self) -> float:
        return sorted_median(self._sorted)

    def quantile(self, q: float) -> float:
        return self._sorted[min(len(self._sorted) - 1, int(q * len(self._sorted)))]

    def largest(self) -> float:
        return self._sorted[-1]

    def sigma(self) -> float:
        """Robust standard deviation, 1.4826 * MAD."""
        return MAD_TO_SIGMA * mad(self._sorted)


def sorted_median(values: Sequence[float]) -> float:
    n = len(values)
    half = n // 2
    return values[half] if n % 2 else 0.5 * (values[half - 1] + values[half])


def median(values: Sequence[float]) -> float:
    return sorted_median(sorted(values))


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation from the median of sorted values."""
    centre = sorted_median(values)
    return median([abs(value - centre) for value in values])


def theil_sen(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Median of the slopes of all pairs (Theil 1950, Sen 1968): up to 29 % of the points may be wild."""
    slopes = [
        (ys[j] - ys[i]) / (xs[j] - xs[i]) for i in range(len(xs)) for j in range(i + 1, len(xs)) if xs[j] != xs[i]
    ]
    return median(slopes) if slopes else 0.0
