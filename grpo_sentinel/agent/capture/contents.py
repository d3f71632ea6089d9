"""What goes into one captured file, by worth, within a budget of bytes.

batch/<micro>/<name>    what the loss was computed from     policy/<micro>/<name>   log-probs, where they were kept
rng/before/, rng/after/ random states                       reward/scores           raw scores that were not finite
gradient/<parameter>    this rank's part, those that are not finite first
weight/<parameter>      trainable weights, where all of them still fit
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from grpo_sentinel.agent.capture.files import to_host
from grpo_sentinel.agent.probes.flat import local

_IDS = ("ids", "labels")
_MOST_NAMES = 64
_MOST_GRADIENTS = 16
_MOST_POSITIONS = 4096


@dataclass(slots=True)
class Contents:
    """Tensors on the host and facts about them, gathered within `room` bytes."""

    room: int
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, tensor: Any) -> bool:
        """Take one tensor; what does not fit is named in `left_out`."""
        here = local(tensor)
        size = here.numel() * here.element_size()
        if size > self.room:
            self.omit(name, f"{size:,} bytes do not fit")
            return False
        copied = to_host(here)
        if copied is None:
            self.omit(name, "cannot be copied")
            return False
        self.room -= size
        self.tensors[name] = copied
        return True

    def omit(self, name: str, why: str) -> None:
        """Note that something is not there."""
        if len(self.left_out) < _MOST_NAMES:
            self.left_out[name] = why

    def add_batches(self, batches: Sequence[Mapping[str, torch.Tensor]], samples: str, let_go: int) -> None:
        """Take the micro-batches; token ids in full, as SHA-256 of each row, or not at all."""
        hashes: dict[str, list[str]] = {}
        rows: dict[str, list[int]] = {}
        for micro, batch in enumerate(batches):
            for name, tensor in batch.items():
                key = f"batch/{micro}/{name}"
                if name.endswith(_IDS) and samples != "full":
                    if samples == "hashed":
                        hashes[key] = _row_hashes(tensor)
                    self.omit(key, f"token ids are not kept (samples: {samples})")
                elif self.add(key, tensor) and (bad := _bad_rows(self.tensors[key])):
                    rows[key] = bad
        self.facts["micro_batches"] = len(batches)
        self.facts["offending_rows"] = rows
        if hashes:
            self.facts["row_sha256"] = hashes
        if let_go:
            self.omit("batch", f"{let_go} tensors were no longer held by the loop")
        elif not batches:
            self.omit("batch", "no batch was observed in this step")

    def add_gradients(self, gradients: Iterable[tuple[str, Any]], named: Sequence[str]) -> None:
        """Take the gradients that are not finite; when none is, the largest. `named`: found before clipping."""
        held = [(name, local(gradient)) for name, gradient in gradients if gradient is not None]
        held = [(name, gradient) for name, gradient in held if not gradient.is_meta and gradient.numel()]
        norms = _norms([gradient for _, gradient in held])
        bad = {name for (name, _), norm in zip(held, norms, strict=True) if not math.isfinite(norm)}
        order = sorted(zip(held, norms, strict=True), key=lambda one: (_rank(one[0][0], named, bad), -_size(one[1])))
        self.facts["gradient_norms"] = {
            name: norm if math.isfinite(norm) else str(norm) for (name, _), norm in order[:_MOST_NAMES]
        }
        self.facts.setdefault("nonfinite_gradients", [name for (name, _), _ in order if name in bad][:_MOST_NAMES])
        for (name, gradient), _ in order[:_MOST_GRADIENTS]:
            if not self.add(f"gradient/{name}", gradient) and name in bad:
                self._add_positions(name, gradient)

    def _add_positions(self, name: str, gradient: torch.Tensor) -> None:
        """Take where a gradient that is too large is not finite, and what stands there."""
        flat = gradient.detach().reshape(-1)
        where = (~torch.isfinite(flat)).nonzero().flatten()[:_MOST_POSITIONS]
        self.add(f"gradient_positions/{name}", where)
        self.add(f"gradient_values/{name}", flat[where])

    def add_weights(self, parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        """Take the trainable weights when all of them fit, and a fingerprint of all in any case."""
        named = [(name, local(parameter)) for name, parameter in parameters if parameter.requires_grad]
        named = [(name, weight) for name, weight in named if not weight.is_meta and weight.numel()]
        self.facts["weight_norms"] = dict(
            zip([name for name, _ in named[:_MOST_NAMES]], _norms([w for _, w in named[:_MOST_NAMES]]), strict=True)
        )
        size = sum(weight.numel() * weight.element_size() for _, weight in named)
        if size > self.room:
            self.omit("weight", f"{size:,} bytes of trainable weights do not fit")
            return
        for name, weight in named:
            self.add(f"weight/{name}", weight)


def _norms(tensors: Sequence[torch.Tensor]) -> list[float]:
    """L2 norms of tensors, read in one copy per device."""
    out = [0.0] * len(tensors)
    places: dict[torch.device, list[int]] = {}
    for at, tensor in enumerate(tensors):
        places.setdefault(tensor.device, []).append(at)
    for indices in places.values():
        norms = torch.stack([_norm(tensors[at]) for at in indices]).tolist()
        for at, norm in zip(indices, norms, strict=True):
            out[at] = norm
    return out


def _norm(tensor: torch.Tensor) -> torch.Tensor:
    here = tensor.detach()
    here = here.to_dense() if here.layout is not torch.strided else here
    wide = None if here.dtype.is_complex else torch.float32
    return torch.linalg.vector_norm(here.reshape(-1), dtype=wide).float()


def _size(norm: float) -> float:
    return norm if math.isfinite(norm) else math.inf


def _rank(name: str, named: Sequence[str], bad: set[str]) -> int:
    return 0 if name in named else 1 if name in bad else 2


def _row_hashes(ids: torch.Tensor) -> list[str]:
    """SHA-256 of every row, as little-endian int64."""
    host = local(ids).cpu().to(torch.int64)
    rows = host.reshape(len(host) if host.dim() else 1, -1).tolist()
    return [hashlib.sha256(b"".join(n.to_bytes(8, "little", signed=True) for n in row)).hexdigest() for row in rows]


def _bad_rows(tensor: torch.Tensor) -> list[int]:
    """Rows that hold a value that is not finite."""
    if not tensor.dtype.is_floating_point or not tensor.dim() or not tensor.numel():
        return []
    bad = ~torch.isfinite(tensor.reshape(len(tensor), -1)).all(dim=1)
    return [int(row) for row in bad.nonzero().flatten()[:_MOST_NAMES]]
