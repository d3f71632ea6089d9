"""Fixed hashed samples of many tensors: the same positions every step and on every replica, without any RNG.

Stratified: n elements of N are one per stratum of N/n, at a hashed place inside it. The rank error of a quantile q is
at most that of simple random sampling, sqrt(q(1-q)/n) (Cochran 1977, 5.6); for N <= n the sample is everything and
exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

_ODD = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64: 2**64 / golden ratio
_MIX = -4658895280553007687  # 0xBF58476D1CE4E5B9, splitmix64's first multiplier


def hashed(count: int, salt: int = 0) -> torch.Tensor:
    """Hash 0..count-1 to uniform numbers in [0, 1): float64 on the CPU (splitmix64, Steele 2014, one round)."""
    x = (torch.arange(count, dtype=torch.int64) + (salt + 1)) * _ODD
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _MIX
    x = x ^ ((x >> 27) & 0x1FFFFFFFFF)
    return ((x >> 11) & 0x1FFFFFFFFFFFFF).double() / 2.0**53


def strata(total: int, count: int, salt: int = 0) -> torch.Tensor:
    """Choose `count` positions of `total`, ascending, one per stratum: int64, CPU. All if total <= count."""
    if total <= count:
        return torch.arange(total)
    width = total / count
    return ((torch.arange(count, dtype=torch.float64) + hashed(count, salt)) * width).long().clamp_(max=total - 1)


@dataclass(frozen=True, slots=True)
class Cut:
    """Positions inside one tensor: `tensor` is its index in the list that the plan was made for."""

    tensor: int
    positions: torch.Tensor  # int64, on that tensor's device


@lru_cache(maxsize=32)
def spread(numels: tuple[int, ...], devices: tuple[str, ...], count: int) -> tuple[Cut, ...]:
    """Plan a sample of `count` elements over all tensors together, each in proportion to its size."""
    positions = strata(sum(numels), count)
    cuts = []
    start = 0
    for index, (numel, device) in enumerate(zip(numels, devices, strict=True)):
        low, high = torch.searchsorted(positions, torch.tensor([start, start + numel])).tolist()
        if high > low:
            cuts.append(Cut(index, (positions[low:high] - start).to(device)))
        start += numel
    return tuple(cuts)


@dataclass(frozen=True, slots=True)
class Rows:
    """A plan of rows of `width` positions: at least one row per tensor, more for the large ones."""

    cuts: tuple[Cut, ...]
    owner: torch.Tensor  # tensor index of every row: int64, CPU
    weight: torch.Tensor  # elements that one sampled element of the row stands for: float64, CPU
    width: int


@lru_cache(maxsize=32)
def rows(numels: tuple[int, ...], devices: tuple[str, ...], width: int, extra: int) -> Rows:
    """Plan rows of `width` sampled positions per tensor, and about `extra` more rows shared out by size.

    A tensor with fewer than `width` elements is read around in a circle. Empty tensors get no row.
    """
    total = max(1, sum(numels))
    cuts, owner, weight = [], [], []
    for index, (numel, device) in enumerate(zip(numels, devices, strict=True)):
        if not numel:
            continue
        height = max(1, min(round(extra * numel / total), numel // width))
        size = height * width
        positions = strata(numel, size, salt=index)
        if numel < size:
            positions = torch.arange(size) % numel
        cuts.append(Cut(index, positions.to(device)))
        owner.extend([index] * height)
        weight.extend([numel / size] * height)
    return Rows(tuple(cuts), torch.tensor(owner, dtype=torch.int64), torch.tensor(weight, dtype=torch.float64), width)


def gather(flats: Sequence[torch.Tensor | None], cuts: Sequence[Cut]) -> torch.Tensor:
    """Read the planned elements into one new 1-D tensor on the first tensor's device; None reads as zeros.

    Never synchronises.
    """
    taken = [_take(flats[cut.tensor], cut.positions) for cut in cuts]
    if not taken:
        return torch.empty(0)
    first = taken[0].device
    return torch.cat([piece if piece.device == first else piece.to(first, non_blocking=True) for piece in taken])


def _take(flat: torch.Tensor | None, positions: torch.Tensor) -> torch.Tensor:
    if flat is None:
        return torch.zeros(len(positions), dtype=torch.bfloat16, device=positions.device)  # any wider dtype wins in cat
    return torch.take(flat, positions)
