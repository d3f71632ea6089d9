"""Advice on `kl_coef` (S22): 0.1 * std(reward) / std(KL) over at least 100 samples, with a bootstrap interval.

The interval is the percentile bootstrap of Efron (1979), samples drawn with replacement, seed fixed.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SHARE = 0.1
WANTED = 100
_RESAMPLES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Coefficient, its 95 % interval, and what it rests on."""

    coefficient: float
    low: float
    high: float
    samples: int
    reward_std: float
    kl_std: float

    @property
    def certain(self) -> bool:
        """Whether the interval spans less than a factor of 3 and the samples suffice."""
        return self.samples >= WANTED and self.high < 3 * self.low


def advise(rewards: Sequence[float], kls: Sequence[float], seed: int = 0) -> Advice | None:
    """Advise from one reward and one mean KL (k3, nats a token) for each sample; None where either does not vary."""
    value = _ratio(rewards, kls)
    if value is None:
        return None
    rng = random.Random(seed)  # noqa: S311 - resampling, no secret
    count = len(rewards)
    drawn = []
    for _ in range(_RESAMPLES):
        places = rng.choices(range(count), k=count)
        again = _ratio([rewards[place] for place in places], [kls[place] for place in places])
        drawn += [again] if again is not None else []
    drawn.sort()
    low, high = (drawn[min(len(drawn) - 1, int(share * len(drawn)))] for share in (0.025, 0.975))
    return Advice(
        coefficient=value, low=low, high=high, samples=count, reward_std=statistics.stdev(rewards),
        kl_std=statistics.stdev(kls),
    )  # fmt: skip


def _ratio(rewards: Sequence[float], kls: Sequence[float]) -> float | None:
    if len(rewards) < 2:
        return None
    spread = statistics.stdev(kls)
    top = statistics.stdev(rewards)
    return SHARE * top / spread if spread > 1e-9 and top > 0 else None


__all__ = ["SHARE", "WANTED", "Advice", "advise"]
