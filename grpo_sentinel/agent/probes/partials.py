"""Named partials of masked tensors: reductions on the device whose names say how micro-batches merge.

sum:x  added     min:x max:x  extremes     lse:x  logarithm of a sum of exponentials, merged without overflow
n:x mean_x:x mean_y:x m2_x:x m2_y:x cross:x  moments of pairs, merged pairwise
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from grpo_sentinel.agent.probes.pack import Part, vector
from grpo_sentinel.stats import Comoments


def finite(x: torch.Tensor) -> torch.Tensor:
    """Mark finite elements: x - x is 0 for them and NaN for the others. Half the kernels of `torch.isfinite`."""
    return (x - x) == 0


class Bag:
    """Collects reduced numbers and their names."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._values: list[torch.Tensor] = []

    def put(self, names: Sequence[str], values: torch.Tensor) -> None:
        """Take numbers that are reduced already, in the order of their names."""
        self.names.extend(names)
        self._values.append(values)

    def vector(self, device: torch.device | None, *tail: torch.Tensor) -> torch.Tensor:
        """Join everything in the order of `names`, then what has no names."""
        return vector([*self._values, *tail], device)


class Merged:
    """The partials of all micro-batches of one step, on the host."""

    def __init__(self, parts: Sequence[Part], names: Sequence[Sequence[str]]) -> None:
        """`names[i]` names the leading values of `parts[i]`."""
        self.parts: list[dict[str, float]] = [
            dict(zip(fields, part.values[: len(fields)].tolist(), strict=True))
            for part, fields in zip(parts, names, strict=True)
        ]

    def column(self, name: str) -> list[float]:
        """List one value over the micro-batches that have it."""
        return [part[name] for part in self.parts if name in part]

    def sum(self, name: str) -> float | None:
        """Add over micro-batches; None when no micro-batch has it."""
        found = self.column(f"sum:{name}")
        return sum(found) if found else None

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
