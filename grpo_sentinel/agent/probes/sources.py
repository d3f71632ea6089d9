"""Gradients of this rank under engines that do not keep them in `.grad`: lists of (name, tensor), never a collective.

plain, DDP, FSDP1, FSDP2   parameter.grad                              (`gradient.observe` reads it)
ZeRO-1, ZeRO-2             engine.optimizer.averaged_gradients         its own partition, before engine.step()
ZeRO-3                     deepspeed.utils.safe_get_local_grad(p)      its own partition
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist


def deepspeed_gradients(engine: Any, named_parameters: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """List what this rank holds of the gradients of a DeepSpeed engine, between its backward and its step.

    Empty when there is none (before a backward, or inside gradient accumulation).
    """
    named = list(named_parameters)
    stage = engine.zero_optimization_stage()
    if stage >= 3:
        return _stage_3(named)
    if stage in (1, 2):
        return _partitioned(engine.optimizer, {id(parameter): name for name, parameter in named})
    return [(name, parameter.grad) for name, parameter in named if parameter.grad is not None]


def _stage_3(named: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    from deepspeed.utils import safe_get_local_grad

    found = ((name, safe_get_local_grad(parameter)) for name, parameter in named if parameter.requires_grad)
    return [(name, gradient) for name, gradient in found if gradient is not None]


def _partitioned(optimizer: Any, names: dict[int, str]) -> list[tuple[str, Any]]:
    found = []
    for group, gradients in (getattr(optimizer, "averaged_gradients", None) or {}).items():
        owners = optimizer.params_in_partition[group]
        for index, gradient in enumerate(gradients or ()):
            # The list is padded at its end to a whole partition: what has no owner is zero padding.
            owner = names.get(id(owners[index])) if index < len(owners) else None
            if gradient is not None:
                found.append((owner or f"zero_group_{group}.{index}", gradient))
    return found


def copies_of_shards(model: torch.nn.Module | None, named_parameters: Sequence[tuple[str, Any]]) -> int:
    """Count the ranks that hold the same part of a sharded model: 1, or the replicas of hybrid sharding.

    0 where it is not the same number for all parameters (tensor parallelism beside sharding, or parameters left out
    of it): parts of such a model cannot be added up.
    """
    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    found = {_dtensor_copies(p, world) for _, p in named_parameters if hasattr(p, "device_mesh")}
    plain = any(not hasattr(parameter, "device_mesh") for _, parameter in named_parameters)
    wrappers = [] if model is None else [m for m in model.modules() if type(m).__name__ == "FullyShardedDataParallel"]
    for wrapper in wrappers:
        whole = str(getattr(wrapper, "sharding_strategy", "")).endswith("NO_SHARD")
        found.add(world if whole else world // wrapper.process_group.size())
    if plain and not wrappers:
        found.add(world)
    return found.pop() if len(found) == 1 else 0


def _dtensor_copies(parameter: Any, world: int) -> int:
    mesh, copies = parameter.device_mesh, 1
    for dimension, placement in enumerate(parameter.placements):
        if placement.is_replicate():
            copies *= mesh.size(dimension)
    return int(copies * (world // mesh.size()))
