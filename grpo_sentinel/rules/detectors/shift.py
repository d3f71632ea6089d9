"""The level of the last few points against the level before them: cliffs, without a frozen baseline."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from grpo_sentinel.rules.expression import Expression
from grpo_sentinel.rules.robust import SortedWindow, median
from grpo_sentinel.rules.view import FINE, NEAR, Verdict, View, unable


@dataclass
class Shift:
    """Bad when every one of the newest `short` points lies beyond the `long` points before them, by ratio and sigmas.

    down: value < median / ratio, up: value > ratio * median (`ratio: 0`: off), and |value - median| > sigmas * 1.4826
    MAD and > floor. Slow drift moves the long window along and stays silent; a cliff does not. `unseen: true` asks that
    no point before lay there: of a signal that is mostly 0 the MAD is 0, and what comes now and then looks far away.
    """

    signal: Expression
    direction: str = "down"
    ratio: float = 0.0
    sigmas: float = 6.0
    floor: float = 0.0
    short: int = 3
    long: int = 40
    min_points: int = 8
    unseen: bool = False

    def __post_init__(self) -> None:
        if self.direction not in ("up", "down"):
            raise ValueError(f"direction is up or down, got {self.direction!r}")
        if self.short < 1 or self.min_points < 2 or self.long < self.min_points:
            raise ValueError("expected short >= 1 and long >= min_points >= 2")
        self._recent: deque[tuple[int, float]] = deque()
        self._window = SortedWindow(self.long)
        self._held = 0
        self._learning = unable(f"learning the level of {self.signal.text} ({self.min_points} points)")

    def update(self, view: View) -> Verdict:
        value = self.signal(view.get)
        if value is None:
            return unable(self.signal.missing(view.get))
        if not math.isfinite(value):
            return unable(f"{self.signal.text} is not finite")
        if len(self._window) < self.min_points:
            if not view.tainted:
                self._window.push(value)
            return self._learning
        centre = self._window.median()
        if not self._beyond(value, centre):
            for _, held in self._recent:
                self._window.push(held)
            self._recent.clear()
            if not view.tainted:
                self._window.push(value)
            return FINE
        self._recent.append((view.step, value))
        if len(self._recent) < self.short:
            return NEAR
        if len(self._recent) > self.long:  # the new level has come to stay: learn it
            self._window.clear()
            for _, held in self._recent:
                self._window.push(held)
            self._recent.clear()
            return NEAR
        worst = median([held for _, held in self._recent])
        text = f"from {centre:.3g} to {worst:.3g}"
        onset = self._recent[0][0]
        return Verdict(
            bad=True, clear=False, value=value, limit=centre, signal=self.signal.text, onset=onset, detail=text
        )

    def _beyond(self, value: float, centre: float) -> bool:
        down = self.direction == "down"
        if value >= centre if down else value <= centre:
            return False
        if self.ratio and not (value * self.ratio < centre if down else centre > 0 and value > self.ratio * centre):
            return False
        if self.unseen and (value >= self._window.smallest() if down else value <= self._window.largest()):
            return False
        distance = abs(value - centre)
        return distance > self.floor and distance > self.sigmas * self._window.sigma()
