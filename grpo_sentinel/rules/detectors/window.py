"""Detectors over another detector's verdicts: share of a window, count within steps, was it so just now, a rare run."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from grpo_sentinel.rules.view import FINE, NEAR, Detector, Get, Verdict, View, unable
from grpo_sentinel.wording import counted


@dataclass
class Share:
    """Bad when `of` was bad in at least `share` of the last `window` views (and `window` have been seen)."""

    of: Detector
    share: float = 0.9
    window: int = 100

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or self.window < 2:
            raise ValueError("expected 0 < share <= 1 and window >= 2")
        self._seen: deque[bool] = deque(maxlen=self.window)
        self._bad = 0
        self._learning = unable(f"needs {counted(self.window, 'step')}")

    def update(self, view: View) -> Verdict:
        verdict = self.of.update(view)
        if verdict.unable:
            return verdict
        if len(self._seen) == self.window:
            self._bad -= self._seen[0]
        self._seen.append(verdict.bad)
        self._bad += verdict.bad
        if len(self._seen) < self.window:
            return self._learning
        if self._bad < self.share * self.window:
            return FINE
        text = f"in {self._bad} of the last {self.window} steps"
        return Verdict(bad=True, clear=False, value=verdict.value, limit=verdict.limit, detail=text)


@dataclass
class Count:
    """Bad from the `count`-th time that `of` is bad, and `unless` is not, within `window_steps` steps."""

    of: Detector
    unless: Detector | None = None
    count: int = 3
    window_steps: int = 20

    def __post_init__(self) -> None:
        if self.count < 1 or self.window_steps < 1:
            raise ValueError("expected count >= 1 and window_steps >= 1")
        self._steps: deque[int] = deque(maxlen=self.count)

    def update(self, view: View) -> Verdict:
        verdict = self.of.update(view)
        excused = self.unless is not None and self.unless.update(view).bad
        if verdict.bad and not excused:
            self._steps.append(view.step)
        full = len(self._steps) == self.count and view.step - self._steps[0] < self.window_steps
        if not full:
            return verdict if verdict.unable else FINE
        text = f"{counted(self.count, 'time')} within {counted(self._steps[-1] - self._steps[0] + 1, 'step')}"
        return replace(verdict, bad=True, clear=False, unable="", onset=self._steps[0], detail=text)

    def blames(self, get: Get) -> bool:
        return bool(getattr(self.of, "blames", lambda _: False)(get))


@dataclass
class Recent:
    """Bad when `of` was bad in this view or in one of the `steps` before it: brings causes and effects together."""

    of: Detector
    steps: int = 2

    def __post_init__(self) -> None:
        self._last: Verdict | None = None
        self._step = 0

    def update(self, view: View) -> Verdict:
        verdict = self.of.update(view)
        if verdict.bad:
            self._last, self._step = replace(verdict, onset=verdict.onset or view.step), view.step
            return self._last
        if self._last is not None and view.step - self._step <= self.steps:
            return self._last
        return verdict if verdict.unable else (FINE if verdict.clear else NEAR)


@dataclass
class Unlikely:
    """Bad when `of` is bad in `points` views in a row, and so many in a row are no chance.

    A batch without a right answer is common where few answers are right: with a share q of such views among the last
    `window` before this run of k, chance alone gives it with probability q^k, and that must be below `chance`. q is
    taken as (bad + 1/4) / (seen + 1): where none has been seen yet, one may still come. Where `of` has been bad in
    every view so far, nothing is known of chance, and `start` views in a row are enough (0: `points`).
    """

    of: Detector
    points: int = 3
    start: int = 0
    chance: float = 1e-5
    window: int = 400

    def __post_init__(self) -> None:
        if self.points < 1 or self.window < 2 or not 0 < self.chance < 1:
            raise ValueError("expected points >= 1, window >= 2 and 0 < chance < 1")
        self._past: deque[bool] = deque(maxlen=self.window)  # views before this run: were they bad?
        self._run = 0
        self._since = 0

    def update(self, view: View) -> Verdict:
        verdict = self.of.update(view)
        if verdict.unable:
            return verdict
        if not verdict.bad:
            self._past.extend([True] * min(self._run, self.window))
            self._past.append(False)
            self._run = 0
            return verdict
        self._run += 1
        if self._run == 1:
            self._since = view.step
        if self._run < self._enough() or self._common():
            return NEAR
        return replace(verdict, onset=self._since)

    def _enough(self) -> int:
        return self.points if self._past else self.start or self.points

    def _common(self) -> bool:
        """Would chance alone give a run as long as this one?"""
        share = (sum(self._past) + 0.25) / (len(self._past) + 1)
        return bool(self._past) and share**self._run >= self.chance

    def blames(self, get: Get) -> bool:
        return bool(getattr(self.of, "blames", lambda _: False)(get))
