"""Local, flat, readable views of tensors of any kind: what every whole-tensor probe reads through.

DTensor (FSDP2, TP)   -> its local shard, without a collective
sparse                -> the values, coalesced (duplicates summed; on CUDA this is a synchronising call)
transposed and the like -> the same storage in storage order (norm, max and samples do not care for the order)
expanded, strided with gaps -> a contiguous copy of that one tensor
meta, quantised, integer, float8 -> None: unread, counted as such, never taken for zero
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.", "module.")
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_PLAIN_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@lru_cache(maxsize=65536)
def plain_name(name: str) -> str:
    """Take the wrappers of DDP, FSDP, checkpointing and torch.compile out of a parameter's name."""
    for wrapper in _WRAPPERS[:3]:
        name = name.replace(wrapper, "")
    while name.startswith(_WRAPPERS[3]):
        name = name[len(_WRAPPERS[3]) :]
    return name


def local(tensor: Any) -> torch.Tensor:
    """Give the part of a tensor that this rank holds. Never communicates."""
    while hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return tensor.detach()


def flat(tensor: Any) -> torch.Tensor | None:
    """View the local part of a tensor as one dimension, floating or complex; None when it cannot be read.

    To be called without autograd. The view shares memory with the tensor (a copy only for sparse, expanded and gapped
    ones) and must not outlive the call that made it.
    """
    if type(tensor) in _PLAIN_TYPES and tensor.dtype in _PLAIN_DTYPES and tensor.layout is torch.strided:
        if tensor.is_contiguous() and not tensor.is_meta:
            return tensor.view(-1)  # nearly every tensor there is: the checks below cost more than the view
    elif getattr(tensor, "is_meta", False):
        return None
    here = local(tensor)
    if here.is_meta or here.is_quantized or not (here.dtype.is_floating_point or here.dtype.is_complex):
        return None
    if here.dtype.itemsize < 2:
        return None  # float8 has no arithmetic, and its scale lies elsewhere
    if here.layout != torch.strided:
        if here.layout != torch.sparse_coo:
            return None
        here = here.coalesce().values()
    if here.is_contiguous():
        return _real_bits(here).view(-1)
    if _is_permuted(here):
        return _real_bits(torch.as_strided(here, (here.numel(),), (1,)))
    return _real_bits(here).reshape(-1)


def _is_permuted(tensor: torch.Tensor) -> bool:
    """Tell whether the elements lie gapless in storage, only in another order (a transpose, channels_last)."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _real_bits(tensor: torch.Tensor) -> torch.Tensor:
    # A lazily conjugated or negated view cannot be looked at as real numbers; both are rare, and copies.
    return tensor.resolve_conj().resolve_neg() if tensor.dtype.is_complex else tensor
