"""Two-sided CUSUM of robustly standardised values (Page 1954): small shifts that no single point shows."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from grpo_sentinel.rules.expression import Expression
from grpo_sentinel.rules.robust import SortedWindow
from grpo_sentinel.rules.view import FINE, Verdict, View, unable


@dataclass
class ChangePoint:
    """Bad when S+ = max(0, S+ + z - slack) or its mirror exceeds `limit`; z is clipped to 3, so that one wild point
    cannot decide. The reference window lags `lag` points behind, so that a shift does not enter its own baseline.
    """

    signal: Expression
    slack: float = 0.5
    limit: float = 8.0
    window: int = 60
    lag: int = 10
    min_points: int = 20
    direction: str = "both"

    def __post_init__(self) -> None:
        if self.direction not in ("up", "down", "both"):
            raise ValueError(f"direction is up, down or both, got {self.direction!r}")
        if self.min_points < 5 or self.window < self.min_points:
            raise ValueError("expected window >= min_points >= 5")
        self._window = SortedWindow(self.window)
        self._lagged: deque[float] = deque()
        self._high = self._low = 0.0
        self._high_since = self._low_since = 0
        self._learning = unable(f"learning the level of {self.signal.text} ({self.min_points} points)")

    def update(self, view: View) -> Verdict:
        value = self.signal(view.get)
        if value is None:
            return unable(self.signal.missing(view.get))
        if not math.isfinite(value):
            return unable(f"{self.signal.text} is not finite")
        if not view.tainted:
            self._lagged.append(value)
        if len(self._lagged) > self.lag:
            self._window.push(self._lagged.popleft())
        if len(self._window) < self.min_points:
            return self._learning
        sigma = self._window.sigma()
        if sigma == 0:
            return FINE
        z = max(-3.0, min(3.0, (value - self._window.median()) / sigma))
        if self._high == 0:
            self._high_since = view.step
        if self._low == 0:
            self._low_since = view.step
        self._high = max(0.0, self._high + z - self.slack)
        self._low = max(0.0, self._low - z - self.slack)
        if self.direction != "down" and self._high > self.limit:
            return self._bad(value, self._high_since, "up")
        if self.direction != "up" and self._low > self.limit:
            return self._bad(value, self._low_since, "down")
        return FINE

    def _bad(self, value: float, since: int, way: str) -> Verdict:
        centre = self._window.median()
        self._high = self._low = 0.0  # one shift is one alarm; the reference follows
        text = f"level moved {way} from {centre:.3g}"
        return Verdict(
            bad=True, clear=False, value=value, limit=centre, signal=self.signal.text, onset=since, detail=text
        )
