"""A slow rise over the whole run: blocks of medians that climb, not points that jump."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from grpo_sentinel.rules.expression import Expression
from grpo_sentinel.rules.robust import median
from grpo_sentinel.rules.view import FINE, Verdict, View, unable
from grpo_sentinel.wording import counted


@dataclass
class Trend:
    """Bad when the medians of the last `blocks` blocks of `block` points rose each time and newest / oldest > ratio."""

    signal: Expression
    ratio: float = 3.0
    block: int = 25
    blocks: int = 8

    def __post_init__(self) -> None:
        if self.block < 3 or self.blocks < 3 or self.ratio <= 1:
            raise ValueError("expected block >= 3, blocks >= 3 and ratio > 1")
        self._points: list[float] = []
        self._medians: list[tuple[int, float]] = []
        self._verdict = unable(f"learning {self.block * self.blocks} points of {self.signal.text}")

    def update(self, view: View) -> Verdict:
        value = self.signal(view.get)
        if value is None:
            return unable(self.signal.missing(view.get))
        if not math.isfinite(value):
            return unable(f"{self.signal.text} is not finite")
        if not view.tainted:
            self._points.append(value)
        if len(self._points) == self.block:
            self._medians.append((view.step, median(self._points)))
            self._points.clear()
            del self._medians[: -self.blocks]
            if len(self._medians) == self.blocks:
                self._verdict = self._judge()
        return self._verdict

    def _judge(self) -> Verdict:
        first, last = self._medians[0], self._medians[-1]
        rising = all(a[1] < b[1] for a, b in pairwise(self._medians))
        if not rising or first[1] <= 0 or last[1] < self.ratio * first[1]:
            return FINE
        text = f"from {first[1]:.3g} to {last[1]:.3g} in {counted(last[0] - first[0], 'step')}"
        return Verdict(
            bad=True,
            clear=False,
            value=last[1],
            limit=self.ratio * first[1],
            signal=self.signal.text,
            onset=first[0],
            detail=text,
        )
