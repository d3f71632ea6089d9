"""Does the same work, done again and again, keep more memory each time, and of which kind (S29)?

What is read after each round: tensors that Python holds (bytes, by dtype and shape), objects that Python's collector
knows, threads, open files, bytes of the process outside of those, and of CUDA's allocator. A kind grows when every
round added to it, and at least its least amount.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

ROUNDS = 5
_WARM = 2  # rounds that may fill caches
_MIB = 1 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_LEAST: Mapping[str, tuple[float, str]] = {
    "tensors": (1, "bytes of tensors that Python holds"), "threads": (1, "threads"), "open files": (1, "open files"),
    "objects": (20, "objects of Python"), "cuda": (1, "bytes that CUDA's allocator holds"),
    "process": (_MIB, "bytes of the process outside of tensors and objects"),
}  # fmt: skip
_TENSORS = "grpo_sentinel.agent.probes.live_tensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One kind that grew in every round; `name` is the dtype and shape of tensors."""

    kind: str
    each_round: float
    name: str = ""

    def says(self) -> str:
        """One line with its number."""
        return f"{self.each_round:,.0f} {_LEAST[self.kind][1]}" + (f", most of them {self.name}" if self.name else "")


def growth_of(work: Callable[[], object], rounds: int = ROUNDS) -> list[Growth]:
    """Do the work `_WARM` and `rounds` times; the kinds that grew every time. Raises what the work raises."""
    for _ in range(_WARM):
        work()
    gc.collect()
    gc.freeze()  # what is there already is neither walked nor counted again: half a million objects with torch
    try:
        seen = [_read()]
        for _ in range(rounds):
            work()
            seen.append(_read())
    finally:
        gc.unfreeze()
    out = []
    for kind, (least, _) in _LEAST.items():
        values = [one.sums.get(kind) for one in seen]
        known = [value for value in values if value is not None]
        steps = [b - a for a, b in itertools.pairwise(known)]
        if len(known) == len(seen) and min(steps) >= least:
            name = _grown(seen[0].tensors, seen[-1].tensors) if kind == "tensors" else ""
            out.append(Growth(kind=kind, each_round=sum(steps) / len(steps), name=name))
    kinds = {one.kind for one in out}
    # what the others explain is not told twice
    return [one for one in out if not (one.kind == "process" and kinds & {"tensors", "objects", "threads"})]


@dataclass(frozen=True, slots=True)
class _Reading:
    sums: Mapping[str, float]
    tensors: Mapping[str, int]  # name -> bytes


def _read() -> _Reading:
    gc.collect()
    sums: dict[str, float] = {"threads": threading.active_count(), "objects": len(gc.get_objects())}
    tensors: dict[str, int] = {}
    torch = sys.modules.get("torch")
    if torch is not None:
        tensors = {name: size for name, (_, size) in import_module(_TENSORS).count_tensors().items()}
        sums["tensors"] = sum(tensors.values())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
            sums["cuda"] = torch.cuda.memory_allocated()
    try:
        sums["open files"] = len(os.listdir("/proc/self/fd"))
        sums["process"] = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        pass  # not Linux: these two are not known
    return _Reading(sums, tensors)


def _grown(first: Mapping[str, int], last: Mapping[str, int]) -> str:
    return max(last, key=lambda name: last[name] - first.get(name, 0), default="")


__all__ = ["ROUNDS", "Growth", "growth_of"]
