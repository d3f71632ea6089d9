"""Named partials of masked tensors: small reductions on the device whose names say how micro-batches merge.

    sum:x  added     min:x max:x  extremes     m2:x mean:x n:x  (together)  moments, merged pairwise
    lse:x  logarithm of a sum of exponentials, merged without overflow
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from grpo_sentinel.agent.probes.pack import Part
from grpo_sentinel.stats import Comoments, Moments

Named = dict[str, torch.Tensor]


def total(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Sum where `keep`; what is left out may be NaN."""
    return torch.where(keep, x, 0.0).sum()


def smallest(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Give the minimum where `keep`, +inf when nothing is kept."""
    return torch.where(keep, x, math.inf).amin() if x.numel() else x.new_full((), math.inf)


def largest(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Give the maximum where `keep`, -inf when nothing is kept."""
    return torch.where(keep, x, -math.inf).amax() if x.numel() else x.new_full((), -math.inf)


def moments(name: str, x: torch.Tensor, keep: torch.Tensor) -> Named:
    """Give count, mean and squared deviations where `keep`: two passes, so nothing cancels."""
    count = keep.sum()
    mean = total(x, keep) / count.clamp(min=1)
    return {f"n:{name}": count, f"mean:{name}": mean, f"m2:{name}": total((x - mean).square(), keep)}


def comoments(name: str, x: torch.Tensor, y: torch.Tensor, keep: torch.Tensor) -> Named:
    """Give the moments of pairs where `keep`."""
    out = {**moments(f"{name}.x", x, keep), **moments(f"{name}.y", y, keep)}
    out[f"cross:{name}"] = total((x - out[f"mean:{name}.x"]) * (y - out[f"mean:{name}.y"]), keep)
    return out


def log_sum_exp(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Give ln of the sum of exp(x) where `keep`, -inf when nothing is kept."""
    return torch.logsumexp(torch.where(keep, x, -math.inf).flatten(), 0)


class Merged:
    """The partials of all micro-batches of one step, on the host."""

    def __init__(self, parts: Sequence[Part], names: Sequence[Sequence[str]]) -> None:
        """`names[i]` names the leading values of `parts[i]`."""
        self.parts: list[Mapping[str, float]] = [
            dict(zip(fields, part.values[: len(fields)].tolist(), strict=True))
            for part, fields in zip(parts, names, strict=True)
        ]

    def column(self, name: str) -> list[float]:
        """List one value over the micro-batches that have it."""
        return [part[name] for part in self.parts if name in part]

    def sum(self, name: str) -> float | None:
        """Add over micro-batches; None when no micro-batch has it."""
        found = self.column(f"sum:{name}")
        return math.fsum(found) if found and all(map(math.isfinite, found)) else (sum(found) if found else None)

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

    def moments(self, name: str) -> Moments:
        """Merge count, mean and squared deviations."""
        out = Moments()
        for part in self.parts:
            if part.get(f"n:{name}"):
                out = out.merge(Moments(part[f"n:{name}"], part[f"mean:{name}"], part[f"m2:{name}"]))
        return out

    def comoments(self, name: str) -> Comoments:
        """Merge the moments of pairs."""
        out = Comoments()
        for part in self.parts:
            if part.get(f"n:{name}.x"):
                fields = (f"n:{name}.x", f"mean:{name}.x", f"mean:{name}.y", f"m2:{name}.x", f"m2:{name}.y", f"cross:{name}")
                out = out.merge(Comoments(*(part[field] for field in fields)))
        return out
