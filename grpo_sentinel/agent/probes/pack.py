"""What a probe hands over: raw partials still on the device, and how to finish them once they are on the host.

    tensors --observe()--> Pack (device, not synchronised) --Readback--> Part (host) --finish()--> Harvest (floats)

Several packs of one probe in one step (the micro-batches) are finished together, so a mean is weighted by its counts
and never a mean of means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Finish = Callable[[Sequence["Part"]], "Harvest"]


@dataclass(frozen=True, slots=True)
class NonFinite:
    """Names of the tensors that hold NaN or infinity, and where they were seen (body of the event `nonfinite`)."""

    where: str  # "before_reduce" | "after_reduce" | "weights" | "moments"
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Harvest:
    """Finished statistics of one step: signal name to value; a signal that does not apply is absent, never 0."""

    values: dict[str, float] = field(default_factory=dict)
    nonfinite: tuple[NonFinite, ...] = ()
    samples: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Rows (0-based, in the order the micro-batches came) behind a signal: `{"data.empty_rows": (3, 7)}`."""
    subjects: dict[str, str] = field(default_factory=dict)
    """Who is behind a signal, for a finding or a note: `{"gradient.top_share": "lm_head.weight"}`."""

    def names_at(self, where: str) -> tuple[str, ...]:
        """List the non-finite tensors seen at one place."""
        return tuple(name for found in self.nonfinite if found.where == where for name in found.names)


@dataclass(frozen=True, slots=True)
class Pack:
    """Raw partials of one probe call.

    `values` is 1-D, float64 (float32 on devices without it), on the source's device and not synchronised. It never
    aliases a tensor of the user. `meta` is what the host knew at the call (names, sizes); `finish` turns all packs of
    one probe into signals.
    """

    probe: str
    values: torch.Tensor
    finish: Finish
    meta: Any = None


@dataclass(frozen=True, slots=True)
class Part:
    """A pack after its readback: `values` is a 1-D float64 CPU tensor."""

    values: torch.Tensor
    meta: Any


def wide_dtype(device: torch.device) -> torch.dtype:
    """Give the widest float of a device: float64, or float32 where there is none (MPS)."""
    return torch.float32 if device.type == "mps" else torch.float64


def refuse_unreadable(named: Mapping[str, torch.Tensor | None]) -> None:
    """Raise ValueError for a tensor that would be read wrongly or not at all: meta, sparse, complex."""
    for name, tensor in named.items():
        if tensor is None:
            continue
        if tensor.is_meta or tensor.dtype.is_complex or tensor.layout is not torch.strided:
            kind = "meta" if tensor.is_meta else "complex" if tensor.dtype.is_complex else "sparse"
            raise ValueError(f"{name} is a {kind} tensor; only dense tensors of real numbers can be read here")


def vector(numbers: Sequence[torch.Tensor], device: torch.device | None = None) -> torch.Tensor:
    """Join tensors of any shape and real dtype into one wide 1-D vector on one device. Never synchronises.

    To be called without autograd.
    """
    if not numbers:
        return torch.empty(0, dtype=torch.float64)
    where = numbers[0].device if device is None else device
    wide = wide_dtype(where)
    pieces = [n if n.dim() == 1 else n.reshape(-1) for n in numbers]
    pieces = [n if n.device == where else n.to(where, non_blocking=True) for n in pieces]
    if wide not in {piece.dtype for piece in pieces}:
        pieces[0] = pieces[0].to(wide)
    # Joining promotes to the widest: one kernel instead of a conversion each. A new tensor even for one piece.
    return torch.cat(pieces)


def merge(harvests: Sequence[Harvest | Mapping[str, float]]) -> Harvest:
    """Put the harvests of different probes together; a later value of the same name wins."""
    values: dict[str, float] = {}
    nonfinite: list[NonFinite] = []
    samples: dict[str, tuple[int, ...]] = {}
    subjects: dict[str, str] = {}
    for one in harvests:
        if not isinstance(one, Harvest):
            values.update(one)
            continue
        values.update(one.values)
        nonfinite.extend(one.nonfinite)
        samples.update(one.samples)
        subjects.update(one.subjects)
    return Harvest(values, tuple(nonfinite), samples, subjects)
