"""Two signals that move together (or ceased to): Pearson's r over a window."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from grpo_sentinel.rules.expression import Expression
from grpo_sentinel.rules.view import FINE, Verdict, View, unable


@dataclass
class Correlation:
    """Bad when Pearson's r of x and y over the last `window` views is above `above` or below `below`."""

    x: Expression
    y: Expression
    above: float | None = None
    below: float | None = None
    window: int = 30

    def __post_init__(self) -> None:
        if self.above is None and self.below is None:
            raise ValueError("correlation needs above or below")
        if self.window < 5:
            raise ValueError(f"window must be at least 5, got {self.window}")
        self._points: deque[tuple[float, float]] = deque(maxlen=self.window)
        self._learning = unable(f"needs {self.window} steps with {self.x.text} and {self.y.text}")

    def update(self, view: View) -> Verdict:
        x, y = self.x(view.get), self.y(view.get)
        if x is None or y is None:
            return unable(self.x.missing(view.get) if x is None else self.y.missing(view.get))
        if not (math.isfinite(x) and math.isfinite(y)):
            return unable(f"{self.x.text} or {self.y.text} is not finite")
        self._points.append((x, y))
        if len(self._points) < self.window:
            return self._learning
        r = _pearson(self._points)
        if self.above is not None and r > self.above:
            return Verdict(bad=True, clear=False, value=r, limit=self.above, signal=self.x.text)
        if self.below is not None and r < self.below:
            return Verdict(bad=True, clear=False, value=r, limit=self.below, signal=self.x.text)
        return FINE


def _pearson(points: deque[tuple[float, float]]) -> float:
    # recomputed, not updated: running sums of squares lose all digits on bytes or counters
    n = len(points)
    mean_x = sum(x for x, _ in points) / n
    mean_y = sum(y for _, y in points) / n
    xy = sum((x - mean_x) * (y - mean_y) for x, y in points)
    xx = sum((x - mean_x) ** 2 for x, _ in points)
    yy = sum((y - mean_y) ** 2 for _, y in points)
    return xy / math.sqrt(xx * yy) if xx > 0 and yy > 0 else 0.0
