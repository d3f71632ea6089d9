"""A point far from what came before it: by ratio to the median *and* by robust sigmas, itself excluded."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpo_sentinel.rules.expression import Expression
from grpo_sentinel.rules.robust import SortedWindow
from grpo_sentinel.rules.view import FINE, NEAR, Verdict, View, unable


@dataclass
class Spike:
    """Bad when value > ratio * median and |value - median| > max(sigmas * 1.4826 MAD, floor) of the window before.

    A z-score with mean and standard deviation would be moved by the spike itself and fires on every heavy tail.
    Bad points stay out of the window, until `adapt` of them in a row show that the level has really changed.
    `ratio: 0` switches the ratio test off, for signals without a natural zero. `over_max` asks for that multiple of the
    window's largest value as well: a signal with two levels (a batch with and without signal) is no spike.
    `log: true` takes the sigmas of logarithms: |ln(value / median)| > sigmas * 1.4826 MAD of ln. For what varies by
    factors, as gradient norms do: where ten times the median comes once in a thousand healthy steps, the spread of
    logarithms says so, while the MAD of the values themselves, which looks at the middle of the window only, does not.
    """

    signal: Expression
    ratio: float = 10.0
    sigmas: float = 8.0
    window: int = 50
    min_points: int = 8
    direction: str = "up"
    floor: float = 0.0
    over_max: float = 0.0
    adapt: int = 15
    log: bool = False

    def __post_init__(self) -> None:
        if self.direction not in ("up", "down", "both"):
            raise ValueError(f"direction is up, down or both, got {self.direction!r}")
        if self.window < self.min_points or self.min_points < 1:
            raise ValueError(f"expected window >= min_points >= 1, got {self.window} and {self.min_points}")
        if 0 < self.ratio <= 1:
            raise ValueError(f"ratio must exceed 1 (0 switches it off), got {self.ratio}")
        if self.log and not self.ratio:
            raise ValueError("log needs a ratio: a signal without a natural zero has no logarithms")
        self._window = SortedWindow(self.window)
        self._outside: list[float] = []
        self._learning = unable(f"learning what is normal for {self.signal.text} ({self.min_points} points)")

    def update(self, view: View) -> Verdict:
        value = self.signal(view.get)
        if value is None:
            return unable(self.signal.missing(view.get))
        if not math.isfinite(value):
            return unable(f"{self.signal.text} is not finite")
        if self.ratio and value == 0:
            return FINE  # zero is another rule's matter (flat, bound) and would spoil the median
        if len(self._window) < self.min_points:
            if not view.tainted:
                self._window.push(value)
            return self._learning
        centre = self._window.median()
        if not self._far(value, centre):
            self._outside.clear()
            if not view.tainted:
                self._window.push(value)
            return FINE
        self._outside.append(value)
        if len(self._outside) >= self.adapt:
            self._window.clear()
            for outside in self._outside[-self.window :]:
                self._window.push(outside)
            self._outside.clear()
            return NEAR
        return Verdict(
            bad=True,
            clear=False,
            value=value,
            limit=centre * self.ratio if self.ratio else centre,
            signal=self.signal.text,
            detail=f"{value / centre:.3g} x the median {centre:.3g}" if centre else f"median {centre:.3g}",
        )

    def _far(self, value: float, centre: float) -> bool:
        up, down = self.direction != "down", self.direction != "up"
        if self.ratio:
            high = up and centre > 0 and value > self.ratio * centre
            low = down and centre > 0 and value * self.ratio < centre
            if not (high or low):
                return False
            if high and self.over_max and value <= self.over_max * self._window.largest():
                return False
        elif not ((up and value > centre) or (down and value < centre)):
            return False
        distance = abs(value - centre)
        if distance <= self.floor:
            return False
        # the cheap tests come first: a MAD costs a search
        if self.log:
            return abs(math.log(value / centre)) > self.sigmas * self._window.log_sigma()
        return distance > self.sigmas * self._window.sigma()
