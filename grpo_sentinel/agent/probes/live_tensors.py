"""Memory layer, on demand: tensors that Python holds, by dtype and shape, and which of them grow.

A walk over everything the garbage collector knows (about 0.1 microseconds an object: 50 ms where there are 500,000), so
it is off unless asked for, and then runs every so many steps. Tensors that only C++ holds (saved for a backward) are
not among them. No tensor is kept: names and sums only.
"""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass

import torch

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Grower:
    """One dtype and shape of which more is alive than at the first count."""

    name: str  # "float32[4, 128] cpu"
    count: int
    bytes: int
    growth_bytes: int


def count_tensors() -> dict[str, tuple[int, int]]:
    """Count the tensors that Python holds: name to (objects, bytes of storages not yet counted under another)."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    seen: set[tuple[str, int]] = set()
    for item in gc.get_objects():
        if not issubclass(type(item), torch.Tensor):  # `isinstance` would ask proxies for their `__class__`
            continue
        try:
            name = f"{str(item.dtype).removeprefix('torch.')}{list(item.shape)} {item.device}"
            storage = item.untyped_storage()
            place = (str(item.device), storage.data_ptr())
            size = storage.nbytes()
        except (RuntimeError, NotImplementedError):  # fake, meta, sparse and others without a storage
            continue
        counts[name] += 1
        if place[1] and place not in seen:
            seen.add(place)
            sizes[name] += size
    return {name: (count, sizes[name]) for name, count in counts.items()}


class LiveTensors:
    """Compares each count with the first one."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[int, int]] | None = None

    def observe(self) -> tuple[dict[str, float], list[Grower]]:
        """Count, and give the signals and the few that have grown most since the first count, largest first."""
        found = count_tensors()
        first = self._first
        if first is None:
            first = self._first = found
        growers = [
            Grower(name, count, size, size - first.get(name, (0, 0))[1])
            for name, (count, size) in found.items()
            if size > first.get(name, (0, 0))[1]
        ]
        growers.sort(key=lambda grower: grower.growth_bytes, reverse=True)
        values = {
            "memory.live_tensors": float(sum(count for count, _ in found.values())),
            "memory.live_tensor_bytes": float(sum(size for _, size in found.values())),
            "memory.live_tensor_growth_bytes": float(growers[0].growth_bytes if growers else 0),
        }
        return values, growers[:_SHOWN]
