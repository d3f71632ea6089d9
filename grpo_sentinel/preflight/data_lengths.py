"""Distributions in bounded memory: of lengths (exact below 64, within 1/32 above), and moments of rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpo_sentinel.stats import Moments

_RUN = 512


class Lengths:
    """A histogram with 32 buckets an octave: at most about 2,000 of them, whatever comes."""

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._count = self._sum = self._highest = 0

    def add(self, length: int) -> None:
        """Count one length of at least 0."""
        shift = length.bit_length() - 6
        bucket = length if shift <= 0 else length >> shift << shift
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self._count += 1
        self._sum += length
        if length > self._highest:
            self._highest = length

    def merge(self, other: Lengths) -> None:
        """Add the counts of another."""
        for bucket, count in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self._count += other._count
        self._sum += other._sum
        self._highest = max(self._highest, other._highest)

    def as_json(self) -> list[Any]:
        """Give it as what JSON can hold."""
        return [list(self._buckets.items()), self._count, self._sum, self._highest]

    @staticmethod
    def from_json(given: Sequence[Any]) -> Lengths:
        """Make it of what `as_json` gave."""
        made = Lengths()
        made._buckets = {int(bucket): count for bucket, count in given[0]}
        made._count, made._sum, made._highest = given[1:]
        return made

    def quantile(self, share: float) -> int | None:
        """The lower edge of the bucket in which that share is reached; None when nothing was counted."""
        left = share * self._count
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return bucket
        return None

    def summary(self) -> dict[str, float | int | None]:
        """Mean, quantiles and maximum."""
        return {
            "mean": self._sum / self._count if self._count else None, "p50": self.quantile(0.5),
            "p95": self.quantile(0.95), "p99": self.quantile(0.99), "max": self._highest if self._count else None,
        }  # fmt: skip


class Rewards:
    """Moments over runs of `_RUN` rewards: the same to the last digit, however many come at once."""

    def __init__(self) -> None:
        self._moments = Moments()
        self._run: list[float] = []

    def add(self, rewards: Sequence[float]) -> None:
        """Take some more."""
        self._run += rewards
        while len(self._run) >= _RUN:
            self._moments = self._moments.merge(Moments.of(self._run[:_RUN]))
            del self._run[:_RUN]

    def moments(self) -> Moments:
        """Of all of them."""
        return self._moments.merge(Moments.of(self._run))


__all__ = ["Lengths", "Rewards"]
