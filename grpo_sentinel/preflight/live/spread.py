"""Distribution of |gradient| by layer in constant memory: one histogram over powers of two, no concatenation, no sort.

64 octaves below 2^24 with 8 buckets each: a quantile is right within 9 %. `torch.quantile` refuses 16 M elements and
more, and concatenating all gradients doubles their memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

_TOP, _OCTAVES, _PARTS = 24, 64, 8
_LAYER = re.compile(r"^(.*?\b(?:layers|h|blocks|block|layer|encoder|decoder)\.\d+)\.")
FP16_LARGEST, FP16_SMALLEST = 65504.0, 2.0**-24


def layer_of(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` belongs to `model.layers.3`; what is in no layer to its own module."""
    found = _LAYER.match(name)
    return found[1] if found else name.rpartition(".")[0] or name


@dataclass(slots=True)
class Spread:
    """Partials of |g| over the elements of one layer; finite ones, and how many are not."""

    count: int = 0
    total: float = 0.0
    square: float = 0.0
    highest: float = 0.0
    zero: int = 0
    tiny: int = 0  # not 0, and 0 in float16
    nonfinite: int = 0
    buckets: torch.Tensor = field(default_factory=lambda: torch.zeros(_OCTAVES * _PARTS, dtype=torch.int64))

    def add(self, gradient: torch.Tensor) -> None:
        """Take in one gradient."""
        size = gradient.detach().abs().double().flatten()
        fine = torch.isfinite(size)
        self.nonfinite += int((~fine).sum())
        size = size[fine]
        if not size.numel():
            return
        self.count += size.numel()
        self.total += float(size.sum())
        self.square += float(size.square().sum())
        self.highest = max(self.highest, float(size.max()))
        above = size[size > 0]
        self.zero += size.numel() - above.numel()
        self.tiny += int((above < FP16_SMALLEST / 2).sum())
        places = ((above.log2() + (_OCTAVES - _TOP)) * _PARTS).long().clamp(0, _OCTAVES * _PARTS - 1)
        self.buckets += torch.bincount(places, minlength=_OCTAVES * _PARTS).cpu()

    @property
    def norm(self) -> float:
        """L2 norm of the finite part."""
        return math.sqrt(self.square)

    def summary(self) -> dict[str, float]:
        """Mean, standard deviation, 95th percentile and maximum of |g|, and the norm."""
        if not self.count:
            return {"count": 0, "nonfinite": self.nonfinite}
        mean = self.total / self.count
        return {
            "count": self.count, "mean": mean, "std": math.sqrt(max(0.0, self.square / self.count - mean * mean)),
            "p95": self.quantile(0.95), "max": self.highest, "norm": self.norm, "zero": self.zero / self.count,
            "nonfinite": self.nonfinite,
        }  # fmt: skip

    def quantile(self, share: float) -> float:
        """The upper edge of the bucket in which that share is reached, never above the maximum."""
        wanted = share * self.count - self.zero
        if wanted <= 0:
            return 0.0
        place = int(torch.searchsorted(self.buckets.cumsum(0), torch.tensor(math.ceil(wanted))))
        return min(self.highest, float(2.0 ** ((place + 1) / _PARTS - (_OCTAVES - _TOP))))


def spreads(named: Iterable[tuple[str, torch.Tensor | None]]) -> dict[str, Spread]:
    """One spread a layer, in the order of the model; parameters without a gradient add nothing."""
    out: dict[str, Spread] = {}
    for name, gradient in named:
        if gradient is not None:
            out.setdefault(layer_of(name), Spread()).add(gradient)
    return out


def gradients_of(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Names and gradients, dense ones as they are."""
    for name, one in model.named_parameters():
        grad = one.grad
        yield name, grad.to_dense() if grad is not None and grad.is_sparse else grad


__all__ = ["FP16_LARGEST", "FP16_SMALLEST", "Spread", "gradients_of", "layer_of", "spreads"]
