"""Streaming order statistics with a fixed price: windows that stay sorted, medians, MAD, Theil-Sen slopes."""

from __future__ import annotations

import math
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
        order, ranked = self._order, self._sorted
        if len(order) == self._size:
            del ranked[bisect_left(ranked, order.popleft())]
        order.append(value)
        insort(ranked, value)

    def clear(self) -> None:
        self._order.clear()
        self._sorted.clear()

    @property
    def values(self) -> Sequence[float]:
        """Oldest first."""
        return self._order

    def median(self) -> float:
        ranked = self._sorted
        half, odd = divmod(len(ranked), 2)
        return ranked[half] if odd else 0.5 * (ranked[half - 1] + ranked[half])

    def quantile(self, q: float) -> float:
        return self._sorted[min(len(self._sorted) - 1, int(q * len(self._sorted)))]

    def largest(self) -> float:
        return self._sorted[-1]

    def smallest(self) -> float:
        return self._sorted[0]

    def sigma(self) -> float:
        """Robust standard deviation, 1.4826 * MAD."""
        return MAD_TO_SIGMA * mad(self._sorted)

    def log_sigma(self) -> float:
        """Robust standard deviation of the logarithms of the values above 0."""
        logs = [math.log(value) for value in self._sorted if value > 0]
        return MAD_TO_SIGMA * mad(logs) if logs else 0.0


def sorted_median(values: Sequence[float]) -> float:
    n = len(values)
    half = n // 2
    return values[half] if n % 2 else 0.5 * (values[half - 1] + values[half])


def median(values: Sequence[float]) -> float:
    return sorted_median(sorted(values))


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation from the median of sorted values, in O(log n) steps."""
    n = len(values)
    centre = sorted_median(values)
    middle = _nearest(values, centre, n // 2)
    return middle if n % 2 else 0.5 * (_nearest(values, centre, n // 2 - 1) + middle)


def _nearest(values: Sequence[float], centre: float, k: int) -> float:
    """The k-th smallest distance from the centre, from 0: the k + 1 nearest of sorted values stand side by side."""
    low, high = 0, len(values) - 1 - k  # the first value of that piece
    while low < high:
        middle = (low + high) // 2
        if centre - values[middle] <= values[middle + k] - centre:
            high = middle
        else:
            low = middle + 1
    best = max(centre - values[low], values[low + k] - centre)
    return min(best, max(centre - values[low - 1], values[low - 1 + k] - centre)) if low else best


def theil_sen(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Median of the slopes of all pairs (Theil 1950, Sen 1968): up to 29 % of the points may be wild."""
    slopes = [
        (ys[j] - ys[i]) / (xs[j] - xs[i]) for i in range(len(xs)) for j in range(i + 1, len(xs)) if xs[j] != xs[i]
    ]
    return median(slopes) if slopes else 0.0
