"""A price that rises while what it buys does not: block medians of two signals side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpo_sentinel.rules.expression import Expression
from grpo_sentinel.rules.robust import median
from grpo_sentinel.rules.view import FINE, Verdict, View, unable
from grpo_sentinel.wording import counted


@dataclass
class Unpaid:
    """Bad when the newest block's median of `price` exceeds `ratio` x the oldest one's, and `gain` has not risen.

    Over the last `blocks` blocks of `block` points. Risen: the newest median of `gain` is above the oldest one. The
    onset is the end of the last block in which the price had not yet gone half of the way (in factors).
    """

    price: Expression
    gain: Expression
    ratio: float = 2.0
    block: int = 20
    blocks: int = 4

    def __post_init__(self) -> None:
        if self.block < 3 or self.blocks < 2 or self.ratio <= 1:
            raise ValueError("expected block >= 3, blocks >= 2 and ratio > 1")
        self._points: list[tuple[float, float]] = []
        self._medians: list[tuple[int, float, float]] = []
        names = f"{self.price.text} and {self.gain.text}"
        self._verdict = unable(f"learning {self.block * self.blocks} points of {names}")

    def update(self, view: View) -> Verdict:
        price, gain = self.price(view.get), self.gain(view.get)
        if price is None or gain is None:
            return unable((self.price if price is None else self.gain).missing(view.get))
        if not (math.isfinite(price) and math.isfinite(gain)):
            return unable(f"{self.price.text} or {self.gain.text} is not finite")
        if not view.tainted:
            self._points.append((price, gain))
        if len(self._points) == self.block:
            prices, gains = zip(*self._points, strict=True)
            self._medians.append((view.step, median(prices), median(gains)))
            self._points.clear()
            del self._medians[: -self.blocks]
            if len(self._medians) == self.blocks:
                self._verdict = self._judge()
        return self._verdict

    def _judge(self) -> Verdict:
        (since, cheap, poor), (step, dear, rich) = self._medians[0], self._medians[-1]
        if cheap <= 0 or dear <= self.ratio * cheap or rich > poor:
            return FINE
        half = cheap * math.sqrt(dear / cheap)
        onset = max(step for step, price, _ in self._medians if price <= half)
        price, gain = f"from {cheap:.3g} to {dear:.3g}", f"from {poor:.3g} to {rich:.3g}"
        text = f"{price} in {counted(step - since, 'step')}, {self.gain.text} {gain}"
        return Verdict(
            bad=True,
            clear=False,
            value=dear,
            limit=self.ratio * cheap,
            signal=self.price.text,
            onset=onset,
            detail=text,
        )
