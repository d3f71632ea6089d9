"""One pass over many tensors: sum of squares, smallest and largest element of each.

On the CPU each tensor is cut into pieces that stay in the cache between the two reads (sum of squares, then
extremes), so the second costs little; on an accelerator two multi-tensor kernels do it. Sums of squares are float32
at least per piece and float64 over pieces. A NaN anywhere makes all of a tensor's numbers NaN, an infinity makes its
largest infinite; a finite largest with an infinite sum is an overflow of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grpo_sentinel.agent.probes.pack import wide_dtype

PIECE = 1 << 18  # elements: 1 MiB of float32, half in each core's second-level cache
_DIRECT = (torch.float32, torch.float64)
_MULTI = (torch.float32, torch.bfloat16, torch.float16)  # the multi-tensor norm cannot widen the others to float32


@dataclass(frozen=True, slots=True)
class Extremes:
    """Raw results, one element per piece: 1-D, on the device of the first tensor."""

    squares: torch.Tensor  # float64
    low: torch.Tensor  # float64
    high: torch.Tensor
    pieces: tuple[int, ...]  # number of pieces of each tensor (0 for an empty one)

    def norm(self) -> torch.Tensor:
        """Give the L2 norm of everything: 0-d float64 on the device, not synchronised."""
        return self.squares.sum().sqrt()


@dataclass(frozen=True, slots=True)
class PerTensor:
    """Finished on the host, one element per tensor: float64 CPU tensors."""

    squares: torch.Tensor
    largest: torch.Tensor  # largest |x|; NaN when the tensor holds NaN, else infinite when it holds infinity

    def nan(self) -> torch.Tensor:
        """Mark tensors that hold NaN."""
        return self.largest.isnan()

    def infinite(self) -> torch.Tensor:
        """Mark tensors that hold an infinity and no NaN."""
        return self.largest.isinf()


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
                squares.append(torch.dot(part, part))
                least, most = torch.aminmax(part)
                low.append(least)
                high.append(most)
            else:
                _read_other(part, squares, low, high)
    same = all(f.dtype == flats[0].dtype and f.device == device for f in flats)
    joined = [_join(numbers, device, same=same) for numbers in (squares, low, high)]
    return Extremes(joined[0], joined[1], joined[2], tuple(pieces))


def finish(squares: torch.Tensor, low: torch.Tensor, high: torch.Tensor, pieces: Sequence[int]) -> PerTensor:
    """Join the pieces of each tensor on the host; an empty tensor gets zeros."""
    owner = torch.repeat_interleave(torch.arange(len(pieces)), torch.tensor(pieces, dtype=torch.int64))
    largest = torch.maximum(low.abs(), high.abs())  # propagates NaN
    total = torch.zeros(len(pieces), dtype=torch.float64).index_add_(0, owner, squares)
    peak = torch.zeros(len(pieces), dtype=torch.float64).scatter_reduce_(0, owner, largest, "amax")
    # Squares below 1e-45 vanish in float32 and so does their sum: a norm is never smaller than its largest element.
    return PerTensor(torch.maximum(total, peak.square()), peak)


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
    least, most = torch.aminmax(wide)
    low.append(least)
    high.append(most)


def _read_multi(flats: Sequence[torch.Tensor]) -> Extremes:
    full = [f for f in flats if f.numel()]
    norms = torch._foreach_norm(full, 2, dtype=torch.float32) if full else []
    peaks = torch._foreach_norm(full, float("inf")) if full else []
    device = flats[0].device
    peak = _join(peaks, device, same=len({p.dtype for p in peaks}) <= 1)
    pieces = tuple(1 if f.numel() else 0 for f in flats)
    return Extremes(_join(norms, device, same=True).square(), peak, peak, pieces)


def _join(numbers: Sequence[torch.Tensor], device: torch.device, *, same: bool) -> torch.Tensor:
    """Stack 0-d tensors; `same`: of one dtype and device, where widening them together is much cheaper."""
    wide = wide_dtype(device)
    if not numbers:
        return torch.empty(0, dtype=wide, device=device)
    if same:
        return torch.stack(list(numbers)).to(wide)
    return torch.stack([n.to(device=device, dtype=wide, non_blocking=True) for n in numbers])
