"""Named partials of masked tensors: reductions on the device whose names say how micro-batches merge.

sum:x  added     min:x max:x  extremes     lse:x  logarithm of a sum of exponentials, merged without overflow
n:x mean_x:x mean_y:x m2_x:x m2_y:x cross:x  moments of pairs, merged pairwise
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from grpo_sentinel.agent.probes.pack import vector
from grpo_sentinel.stats import Comoments


def finite(x: torch.Tensor) -> torch.Tensor:
    """Mark finite elements: x - x is 0 for them and NaN, unequal to itself, for the others; cheaper than `isfinite`."""
    zero = x - x
    return zero == zero


class Bag:
    """Collects reduced numbers and their names, and columns of one number per row."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.columns: list[tuple[str, int]] = []  # name and length
        self._values: list[torch.Tensor] = []
        self._rows: list[torch.Tensor] = []

    def put(self, names: Sequence[str], values: torch.Tensor) -> None:
        """Take numbers that are reduced already, in the order of their names."""
        self.names.extend(names)
        self._values.append(values)

    def column(self, name: str, rows: torch.Tensor) -> None:
        """Take one number per row, to be reduced on the host."""
        self.columns.append((name, rows.numel()))
        self._rows.append(rows)

    def vector(self, device: torch.device | None) -> torch.Tensor:
        """Join everything in the order of `names`, then the columns."""
        return vector([*self._values, *self._rows], device)


class Merged:
    """The partials of all micro-batches of one step, on the host."""

    def __init__(self, parts: Sequence[dict[str, float]]) -> None:
        self.parts = parts
        self._all: Mapping[str, float] = parts[0] if len(parts) == 1 else _summed(parts)

    def column(self, name: str) -> list[float]:
        """List one value over the micro-batches that have it."""
        return [part[name] for part in self.parts if name in part]

    def sum(self, name: str) -> float | None:
        """Add over micro-batches; None when no micro-batch has it."""
        return self._all.get("sum:" + name)

    def mean(self, name: str, count: str) -> float | None:
        """Divide a sum by a count; None when there is nothing to average."""
        top, bottom = self.sum(name), self.sum(count)
        return top / bottom if top is not None and bottom else None

    def low(self, name: str) -> float | None:
        """Give the smallest; None when nothing was kept anywhere."""
        found = min(self.column(f"min:{name}"), default=math.inf)
        return None if found == math.inf else found

    def high(self, name: str) -> float | None:
        """Give the largest; None when nothing was kept anywhere."""
        found = max(self.column(f"max:{name}"), default=-math.inf)
        return None if found == -math.inf else found

    def log_sum(self, name: str) -> float | None:
        """Give ln of the sum over micro-batches of what their `lse:name` are the logarithms of."""
        found = self.column(f"lse:{name}")
        top = max(found, default=-math.inf)
        if top == -math.inf:
            return None
        return top + math.log(math.fsum(math.exp(one - top) for one in found)) if math.isfinite(top) else top

    def comoments(self, name: str) -> Comoments:
        """Merge the moments of pairs."""
        out = Comoments()
        for part in self.parts:
            if part.get(f"n:{name}"):
                fields = ("n", "mean_x", "mean_y", "m2_x", "m2_y", "cross")
                out = out.merge(Comoments(*(part[f"{field}:{name}"] for field in fields)))
        return out


def _summed(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    out: dict[str, float] = {}
    for part in parts:
        for name, number in part.items():
            if name.startswith("sum:"):
                out[name] = out.get(name, 0.0) + number
    return out
