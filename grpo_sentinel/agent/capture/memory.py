"""Memory snapshot: live tensors by shape and creator, and CUDA's own list of segments; plain data, bounded.

Creators are known for parameters, gradients, buffers and optimizer state; for the rest, autograd's name of the
operation that made the tensor stands in.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch

from grpo_sentinel.agent.probes.flat import plain_name

_MOST_GROUPS = 200
_MOST_SEGMENTS = 500


def snapshot(
    model: torch.nn.Module | None,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
    optimizer: torch.optim.Optimizer | None,
) -> dict[str, Any]:
    """List live tensors in groups of one shape, dtype, device and kind of creator, the largest first.

    Bytes are those of storages, each counted once, where it is seen first. Keeps no tensor.
    """
    creators = _creators(model, named_parameters, optimizer)
    groups: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    storages: set[tuple[str, int]] = set()
    total = tensors = 0
    for thing in gc.get_objects():
        try:
            if not issubclass(type(thing), torch.Tensor):  # isinstance would wake lazy modules and proxies
                continue
            here = getattr(thing, "_local_tensor", thing)
            if here.is_meta or here.layout is not torch.strided:
                continue
            storage = here.untyped_storage()
            place = (str(here.device), storage.data_ptr())
            size = 0 if place in storages else storage.nbytes()
        except (RuntimeError, ReferenceError, NotImplementedError, AttributeError):
            continue  # fake or functional tensors have no storage
        storages.add(place)
        kind, name = creators.get(id(thing)) or ("other", _made_by(thing))
        key = (str(list(here.shape)), str(here.dtype).removeprefix("torch."), str(here.device), kind)
        group = groups.setdefault(key, {"count": 0, "bytes": 0, "creators": []})
        group["count"] += 1
        group["bytes"] += size
        if name and name not in group["creators"] and len(group["creators"]) < 8:
            group["creators"].append(name)
        total, tensors = total + size, tensors + 1
    by_size = sorted(groups.items(), key=lambda item: (-item[1]["bytes"], item[0]))
    kept = [
        {"shape": shape, "dtype": dtype, "device": device, "kind": kind, **group}
        for (shape, dtype, device, kind), group in by_size[:_MOST_GROUPS]
    ]
    left_out = sum(group["bytes"] for _, group in by_size[_MOST_GROUPS:])
    return {"tensors": tensors, "bytes": total, "groups": kept, "bytes_left_out": left_out, "cuda": _cuda()}


def _creators(
    model: torch.nn.Module | None,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
    optimizer: torch.optim.Optimizer | None,
) -> dict[int, tuple[str, str]]:
    found: dict[int, tuple[str, str]] = {}
    names: dict[int, str] = {}
    for name, parameter in named_parameters:
        names[id(parameter)] = plain_name(name)
        found[id(parameter)] = ("parameter", plain_name(name))
        if parameter.grad is not None:
            found[id(parameter.grad)] = ("gradient", plain_name(name))
    for name, buffer in model.named_buffers() if model is not None else ():
        found[id(buffer)] = ("buffer", plain_name(name))
    for parameter, state in optimizer.state.items() if optimizer is not None else ():
        for key, value in state.items() if isinstance(state, dict) else ():
            found[id(value)] = ("optimizer state", f"{key} of {names.get(id(parameter), 'a parameter')}")
    return found


def _made_by(tensor: torch.Tensor) -> str:
    return tensor.grad_fn.name() if tensor.grad_fn is not None else ""


def _cuda() -> list[dict[str, Any]]:
    """Segments of the caching allocator, the largest first; [] without CUDA. Never waits for the device."""
    if not torch.cuda.is_initialized():
        return []
    segments = sorted(torch.cuda.memory_snapshot(), key=lambda one: -int(one["total_size"]))
    keys = ("device", "segment_type", "total_size", "allocated_size", "active_size")
    return [{key: one.get(key) for key in keys} for one in segments[:_MOST_SEGMENTS]]


__all__ = ["snapshot"]
