"""Gradient layer: hooks that see each rank's own gradient before DDP's all-reduce, to name the rank that is wrong.

A tensor hook on a leaf runs before the gradient is accumulated, and DDP reduces after that: the hook sees what this
rank alone computed. FSDP hands the hooks' tensors over in another shape or not at all: there nothing fires, and
nothing is reported.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from grpo_sentinel.agent.probes.flat import flat, plain_name
from grpo_sentinel.agent.probes.pack import Harvest, NonFinite, Pack, Part, vector


@dataclass(frozen=True, slots=True)
class _Meta:
    names: tuple[str, ...]
    micro_batches: tuple[int, ...]  # of each value


class LocalWatch:
    """Arms and disarms one tensor hook per trainable parameter; nothing is read until `pack`."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._seen: list[tuple[str, int, torch.Tensor]] = []
        self._micro_batch = 0
        self._seconds = 0.0

    @property
    def armed(self) -> bool:
        """Tell whether hooks are registered."""
        return bool(self._handles)

    def arm(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        """Register the hooks; arming twice changes nothing. The hooks never change a gradient and never raise."""
        if self._handles:
            return
        for name, parameter in {id(p): (n, p) for n, p in named_parameters}.values():
            if parameter.requires_grad:
                self._handles.append(parameter.register_hook(self._hook(plain_name(name))))

    def disarm(self) -> None:
        """Remove the hooks and forget what they saw."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._seen = []
        self._micro_batch = 0

    def micro_batch(self) -> None:
        """Mark the border between two micro-batches: after each backward, or before each forward."""
        if self._seen and self._seen[-1][1] == self._micro_batch:
            self._micro_batch += 1

    def pack(self) -> Pack | None:
        """Hand over what the hooks saw since the last call, at the end of the step; None when nothing fired.

        Gives `gradient.norm_before_reduce`, `gradient.local_nonfinite_tensors`, `gradient.worst_micro_batch` and, in
        `Harvest.nonfinite`, names with where="before_reduce". Never synchronises.
        """
        seen, self._seen, self._micro_batch = self._seen, [], 0
        if not seen:
            return None
        with torch.no_grad():
            values = vector([norm for _, _, norm in seen])
        meta = _Meta(tuple(name for name, _, _ in seen), tuple(micro for _, micro, _ in seen))
        return Pack("local gradients", values, finish, meta)

    def take_seconds(self) -> float:
        """Give the host time that the hooks took since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def look(gradient: torch.Tensor) -> None:
            started = time.perf_counter()
            try:
                with torch.no_grad():
                    view = flat(gradient)
                    if view is not None and view.numel():
                        wide = torch.float64 if view.dtype in (torch.float64, torch.complex128) else torch.float32
                        if view.dtype.is_complex:
                            view = torch.view_as_real(view)
                        self._seen.append((name, self._micro_batch, torch.linalg.vector_norm(view, dtype=wide)))
            except Exception:  # noqa: BLE001 - inside the user's backward: a lost look is better than a lost step
                self._seen.append((name, self._micro_batch, torch.tensor(-1.0)))
            self._seconds += time.perf_counter() - started

        return look


def finish(parts: Sequence[Part]) -> Harvest:
    """Name the tensors whose own gradient was not finite, and the micro-batch that carried the most."""
    names: dict[str, None] = {}
    squares: dict[int, float] = {}
    for part in parts:
        for name, micro, norm in zip(part.meta.names, part.meta.micro_batches, part.values.tolist(), strict=True):
            if norm == -1.0:
                continue  # the hook could not look
            squares[micro] = squares.get(micro, 0.0) + norm * norm
            if not math.isfinite(norm):
                names[name] = None
    values = {"gradient.local_nonfinite_tensors": float(len(names))}
    if squares:
        values["gradient.norm_before_reduce"] = math.sqrt(sum(squares.values()))
        values["gradient.worst_micro_batch"] = float(max(squares, key=lambda micro: _badness(squares[micro])))
    return Harvest(values, nonfinite=(NonFinite("before_reduce", tuple(names)),) if names else ())


def _badness(square: float) -> float:
    return math.inf if math.isnan(square) else square
