"""A line of numbers as a line of blocks: `▁▂▅█`, `!` for what is not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """One block per value between the lowest and the highest; `!` for what is not finite."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    span = high - low

    def block(value: float) -> str:
        if not math.isfinite(value):
            return "!"
        return _BLOCKS[3] if span <= 0 or not math.isfinite(span) else _BLOCKS[round((value - low) / span * 7)]

    return "".join(map(block, values))


def thinned(values: Sequence[float], width: int) -> list[float]:
    """Join neighbours into at most `width` values; of each group stays NaN, else what is furthest from the median."""
    if len(values) <= width:
        return list(values)
    middle = median(value for value in values if math.isfinite(value)) if any(map(math.isfinite, values)) else 0.0
    size = math.ceil(len(values) / width)
    groups = (values[start : start + size] for start in range(0, len(values), size))
    return [max(group, key=lambda value: abs(value - middle) if math.isfinite(value) else math.inf) for group in groups]


__all__ = ["sparkline", "thinned"]
