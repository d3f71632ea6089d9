"""Distribution of lengths in bounded memory: exact below 64, within 1/32 above."""

from __future__ import annotations


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
            "p95": self.quantile(0.95), "p99": self.quantile(0.99), "max": self._highest,
        }  # fmt: skip


__all__ = ["Lengths"]
