"""One pass over many tensors: sum of squares, smallest and largest element of each.

On the CPU each tensor is cut into pieces that stay in the cache between the two reads, so the second costs little.
Extremes come first: their loop has no vectors, and memory is no faster than it; the sum of squares then runs at the
cache's speed (the other way round both wait: 1.85 in place of 1.5 times one read). On an accelerator two multi-tensor
kernels do it. Sums of squares are float32
at least per piece and float64 over pieces. A NaN anywhere makes all of a tensor's numbers NaN, an infinity makes its
largest infinite; a finite largest with an infinite sum is an overflow of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from grpo_sentinel.agent.probes.pack import wide_dtype

PIECE = 1 << 19  # elements: 2 MiB of float32, in the second-level cache of two cores or the third of one
_DIRECT = (torch.float32, torch.float64)
_MULTI = (torch.float32, torch.bfloat16, torch.float16)  # the multi-tensor norm cannot widen the others to float32


@dataclass(frozen=True, slots=True)
class Extremes:
    """Raw results on the device of the first tensor."""

    raw: torch.Tensor  # wide, 1-D: sum of squares of every piece, then the smallest of every piece, then the largest
    pieces: tuple[int, ...]  # number of pieces of each tensor (0 for an empty one)

    @property
    def squares(self) -> torch.Tensor:
        """Sum of squares of every piece: a view."""
        return self.raw[: len(self.raw) // 3]

    def norm(self) -> torch.Tensor:
        """Give the L2 norm of everything: 0-d float64 on the device, not synchronised."""
        return self.squares.sum().sqrt()


@dataclass(frozen=True, slots=True)
class PerTensor:
    """Finished on the host, one number per tensor."""

    squares: list[float]
    largest: list[float]  # largest |x|; NaN when the tensor holds NaN, else infinite when it holds infinity

    @property
    def all_finite(self) -> bool:
        """Tell whether no tensor holds NaN or infinity."""
        return math.isfinite(sum(self.largest)) or all(map(math.isfinite, self.largest))

    def bad(self) -> list[int]:
        """List the places of tensors that hold NaN or infinity."""
        return [] if self.all_finite else [i for i, peak in enumerate(self.largest) if not math.isfinite(peak)]

    def peak(self) -> float | None:
        """Give the largest |x| of the tensors that are finite; None without any."""
        return max(self.largest if self.all_finite else filter(math.isfinite, self.largest), default=None)


def read(flats: Sequence[torch.Tensor]) -> Extremes:
    """Read 1-D floating or complex tensors. Never synchronises, never changes them."""
    device = flats[0].device if flats else torch.device("cpu")
    if device.type == "cuda" and all(f.device == device and f.dtype in _MULTI for f in flats):
        return _read_multi(flats)
    squares: list[torch.Tensor] = []
    low: list[torch.Tensor] = []
    high: list[torch.Tensor] = []
    pieces = []
    cut = device.type == "cpu"
    for tensor in flats:
        size = tensor.numel()
        parts = tensor.split(PIECE) if cut and size > 2 * PIECE else ((tensor,) if size else ())
        pieces.append(len(parts))
        for part in parts:
            if part.dtype in _DIRECT:
                least, most = torch.aminmax(part)
                squares.append(torch.dot(part, part))
                low.append(least)
                high.append(most)
            else:
                _read_other(part, squares, low, high)
    same = all(f.dtype is flats[0].dtype and f.device == device for f in flats)
    return Extremes(_join([*squares, *low, *high], device, same=same), tuple(pieces))


def finish(raw: torch.Tensor, pieces: tuple[int, ...]) -> PerTensor:
    """Join the pieces of each tensor on the host (`raw` float64 on the CPU); an empty tensor gets zeros."""
    squares, low, high = raw.view(3, -1).unbind(0)
    peak = torch.maximum(low.abs(), high.abs())  # propagates NaN
    owner = _owner(pieces)
    if owner is not None:
        squares = torch.zeros(len(pieces), dtype=torch.float64).index_add_(0, owner, squares)
        peak = torch.zeros(len(pieces), dtype=torch.float64).scatter_reduce_(0, owner, peak, "amax")
    # Squares below 1e-45 vanish in float32 and so does their sum: a norm is never smaller than its largest element.
    return PerTensor(torch.maximum(squares, peak * peak).tolist(), peak.tolist())


@lru_cache(maxsize=32)
def _owner(pieces: tuple[int, ...]) -> torch.Tensor | None:
    """Give the tensor of each piece; None where every tensor is one piece."""
    if all(count == 1 for count in pieces):
        return None
    return torch.repeat_interleave(torch.arange(len(pieces)), torch.tensor(pieces, dtype=torch.int64))


def _read_other(
    piece: torch.Tensor, squares: list[torch.Tensor], low: list[torch.Tensor], high: list[torch.Tensor]
) -> None:
    """Read what has to be converted first: a copy that stays in the cache."""
    if piece.dtype.is_complex:
        size = piece.abs()
        squares.append(torch.dot(size, size))
        low.append(size.amax())
        high.append(torch.view_as_real(piece).amax())  # sees the NaN of inf + NaN j, whose modulus is inf
        return
    wide = piece.float()
    squares.append(torch.dot(wide, wide))
    low.append(wide.amin())  # in the cache already, where these two take less time than `aminmax`
    high.append(wide.amax())


def _read_multi(flats: Sequence[torch.Tensor]) -> Extremes:
    full = [f for f in flats if f.numel()]
    norms = torch._foreach_norm(full, 2, dtype=torch.float32) if full else []
    peaks = torch._foreach_norm(full, float("inf")) if full else []
    device = flats[0].device
    peak = _join(peaks, device, same=len({p.dtype for p in peaks}) <= 1)
    pieces = tuple(1 if f.numel() else 0 for f in flats)
    return Extremes(torch.cat([_join(norms, device, same=True).square(), peak, peak]), pieces)


def _join(numbers: Sequence[torch.Tensor], device: torch.device, *, same: bool) -> torch.Tensor:
    """Stack 0-d tensors; `same`: of one dtype and device, where widening them together is much cheaper."""
    wide = wide_dtype(device)
    if not numbers:
        return torch.empty(0, dtype=wide, device=device)
    if same:
        return torch.stack(list(numbers)).to(wide)
    return torch.stack([n.to(device=device, dtype=wide, non_blocking=True) for n in numbers])
