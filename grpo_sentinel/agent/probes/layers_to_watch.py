"""Which modules of a model the activation watch hooks: blocks, activation functions and routers, a sample of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

_BLOCK = re.compile(r"^(?:[^.]*[^.\d][^.]*\.)*\d+$")  # one number in the name, at its end: model.layers.3
_ACTIVATIONS = (
    torch.nn.ReLU,
    torch.nn.ReLU6,
    torch.nn.LeakyReLU,
    torch.nn.GELU,
    torch.nn.SiLU,
    torch.nn.Mish,
    torch.nn.ELU,
)
_NAMED_SO = re.compile(r"(GELU|SiLU|ReLU|Mish)\w*$")  # transformers' own: NewGELUActivation, ReLUSquaredActivation
_ROUTERS = ("gate", "router")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Router:
    """A module that chooses experts for tokens."""

    module: torch.nn.Module
    experts: int
    chosen: int  # per token


@dataclass(frozen=True, slots=True)
class Watched:
    """Modules by name, for the time of one call."""

    blocks: list[tuple[str, torch.nn.Module]]
    activations: list[tuple[str, torch.nn.Module]]
    routers: list[tuple[str, Router]]


def find(model: torch.nn.Module, most: int) -> Watched:
    """List at most `most` of each kind, evenly spaced over the model's depth, the first and the last among them.

    Where the model has no numbered blocks, the leaves that hold parameters stand for them.
    """
    named = [(name.removeprefix("module."), module) for name, module in model.named_modules() if name]
    blocks = [(name, module) for name, module in named if _BLOCK.match(name) and next(module.children(), None)]
    leaves = [(name, module) for name, module in named if not next(module.children(), None)]
    if not blocks:
        blocks = [(name, module) for name, module in leaves if next(module.parameters(recurse=False), None) is not None]
    activations = [(name, module) for name, module in leaves if _is_activation(module)]
    return Watched(_spaced(blocks, most), _spaced(activations, most), _spaced(_routers(named), most))


def is_compiled(model: torch.nn.Module) -> bool:
    """Tell whether torch.compile has a part in it: a hook there would have everything compiled anew."""
    return any(
        type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
        for part in model.modules()
    )


def _is_activation(module: torch.nn.Module) -> bool:
    kind = type(module)
    return kind in _ACTIVATIONS or (kind.__name__.endswith("Activation") and bool(_NAMED_SO.search(kind.__name__)))


def _routers(named: Sequence[tuple[str, torch.nn.Module]]) -> list[tuple[str, Router]]:
    by_name = dict(named)
    out = []
    for name, module in named:
        if name.rpartition(".")[2] not in _ROUTERS and not type(module).__name__.endswith("Router"):
            continue
        owners = (module, by_name.get(name.rpartition(".")[0]))
        experts = next((found for owner in owners if (found := _count(owner, "num_experts", "n_routed_experts"))), 0)
        chosen = next((found for owner in owners if (found := _count(owner, "top_k", "num_experts_per_tok"))), 0)
        if experts > 1 and chosen:
            out.append((name, Router(module, experts, chosen)))
    return out


def _count(owner: torch.nn.Module | None, *names: str) -> int:
    found = next((value for name in names if isinstance(value := getattr(owner, name, None), int)), 0)
    return int(found)


def _spaced(items: Sequence[Item], most: int) -> list[Item]:
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]
