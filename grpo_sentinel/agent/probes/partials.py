"""Named partials of masked tensors: small reductions on the device whose names say how micro-batches merge.

sum:x  added     min:x max:x  extremes     n:x mean:x m2:x  (together)  moments, merged pairwise
lse:x  logarithm of a sum of exponentials, merged without overflow
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from grpo_sentinel.agent.probes.pack import Part, vector, wide_dtype
from grpo_sentinel.stats import Comoments, Moments

_FILL = {"sum": 0.0, "min": math.inf, "max": -math.inf, "lse": -math.inf}
_REDUCE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "count": lambda rows: rows.sum(1),
    "sum": lambda rows: rows.sum(1),
    "min": lambda rows: rows.amin(1),
    "max": lambda rows: rows.amax(1),
    "lse": lambda rows: torch.logsumexp(rows, 1),
}
_HELD_ELEMENTS = 1 << 22  # reductions of one kind wait for each other until they hold so much (32 MiB)


def finite(x: torch.Tensor) -> torch.Tensor:
    """Mark finite elements: x - x is 0 for them and NaN for the others. Half the kernels of `torch.isfinite`."""
    return (x - x) == 0


class Bag:
    """Collects reductions and runs those of one kind together: a few kernels instead of a hundred small ones."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._values: list[torch.Tensor] = []
        self._waiting: dict[tuple[str, torch.Size], list[tuple[str, torch.Tensor, torch.Tensor]]] = {}

    def count(self, name: str, keep: torch.Tensor) -> None:
        """Count where `keep`."""
        self._wait("count", name, keep, keep)

    def total(self, name: str, x: torch.Tensor, keep: torch.Tensor) -> None:
        """Sum where `keep`; what is left out may be NaN."""
        self._wait("sum", name, x, keep)

    def low(self, name: str, x: torch.Tensor, keep: torch.Tensor) -> None:
        """Take the minimum where `keep`, +inf when nothing is kept."""
        self._wait("min", name, x, keep)

    def high(self, name: str, x: torch.Tensor, keep: torch.Tensor) -> None:
        """Take the maximum where `keep`, -inf when nothing is kept."""
        self._wait("max", name, x, keep)

    def log_sum(self, name: str, x: torch.Tensor, keep: torch.Tensor) -> None:
        """Take ln of the sum of exp(x) where `keep`, -inf when nothing is kept."""
        self._wait("lse", name, x, keep)

    def put(self, names: Sequence[str], values: torch.Tensor) -> None:
        """Take numbers that are reduced already."""
        self.names.extend(names)
        self._values.append(values)

    def moments(self, name: str, x: torch.Tensor, keep: torch.Tensor) -> None:
        """Take count, mean and squared deviations where `keep`: two passes, so nothing cancels."""
        count = keep.sum()
        mean = torch.where(keep, x, 0.0).sum() / count.clamp(min=1)
        m2 = torch.where(keep, x - mean, 0.0).square().sum()
        self.put([f"{field}:{name}" for field in ("n", "mean", "m2")], torch.stack([count.to(m2.dtype), mean, m2]))

    def comoments(self, name: str, x: torch.Tensor, y: torch.Tensor, keep: torch.Tensor) -> None:
        """Take the moments of pairs where `keep`."""
        count = keep.sum()
        pair = torch.where(keep, torch.stack([x, y]), 0.0).flatten(1)
        means = pair.sum(1, keepdim=True) / count.clamp(min=1)
        dx, dy = torch.where(keep.flatten(), pair - means, 0.0).unbind(0)
        fields = [f"{field}:{name}" for field in ("n", "mean_x", "mean_y", "m2_x", "m2_y", "cross")]
        squares = torch.stack([dx * dx, dy * dy, dx * dy]).sum(1)
        self.put(fields, torch.cat([count.to(squares.dtype).reshape(1), means.flatten(), squares]))

    def vector(self, device: torch.device | None) -> torch.Tensor:
        """Run what waits and join everything, in the order of `names`."""
        for kind, shape in list(self._waiting):
            self._run(kind, shape)
        return vector(self._values, device)

    def _wait(self, kind: str, name: str, x: torch.Tensor, keep: torch.Tensor) -> None:
        if not keep.numel():
            empty = _FILL.get(kind, 0.0)
            self.put(
                [_prefixed(kind, name)], torch.full((1,), empty, dtype=wide_dtype(keep.device), device=keep.device)
            )
            return
        queue = self._waiting.setdefault((kind, keep.shape), [])
        queue.append((name, x, keep))
        if len(queue) * keep.numel() > _HELD_ELEMENTS:
            self._run(kind, keep.shape)

    def _run(self, kind: str, shape: torch.Size) -> None:
        queue = self._waiting.pop((kind, shape))
        keeps = torch.stack([keep for _, _, keep in queue]).flatten(1)
        if kind == "count":
            rows = keeps
        else:
            rows = torch.where(keeps, torch.stack([x for _, x, _ in queue]).flatten(1), _FILL[kind])
        self.put([_prefixed(kind, name) for name, _, _ in queue], _REDUCE[kind](rows))


def _prefixed(kind: str, name: str) -> str:
    return f"sum:{name}" if kind == "count" else f"{kind}:{name}"


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
            if part.get(f"n:{name}"):
                fields = ("n", "mean_x", "mean_y", "m2_x", "m2_y", "cross")
                out = out.merge(Comoments(*(part[f"{field}:{name}"] for field in fields)))
        return out
