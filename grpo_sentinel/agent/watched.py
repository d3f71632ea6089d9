"""The model as it is watched: its parameters by name, how they lie on the ranks, and where their gradients are kept."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from grpo_sentinel.agent.probes.sources import copies_of_shards

Named = list[tuple[str, torch.nn.Parameter]]


class GradientSource(Protocol):
    """Where an engine keeps this rank's gradients between its backward and its step."""

    def gradients(self) -> Sequence[tuple[str, Any]]: ...

    def scale(self) -> float:
        """What the engine has multiplied them by."""
        ...


class Watched:
    """Holds the parameters that are watched; the model itself only weakly."""

    def __init__(self) -> None:
        self.parameters: Named = []
        self.device: torch.device | None = None
        self.replicated = False  # every rank holds the same parameters
        self.sharded = False  # this rank holds a part of the gradients only ...
        self.copies = 1  # ... and so many ranks hold the same part; 0 where that differs between parameters
        self.source: GradientSource | None = None  # of an engine that does not keep gradients in `.grad`
        self._model: weakref.ref[torch.nn.Module] | None = None  # whose parameters these are, if all of them

    @property
    def model(self) -> torch.nn.Module | None:
        """The model, where it was given whole and is still there."""
        return None if self._model is None else self._model()

    @property
    def uneven(self) -> bool:
        """Tell whether the loop runs under torch's `Join`, where a rank without input makes no more steps."""
        config = getattr(self.model, "_join_config", None)  # of DDP; set on all ranks when the context begins
        return bool(getattr(config, "enable", False))

    def take(
        self,
        model: torch.nn.Module | None,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None,
        replicated: bool | None,
    ) -> None:
        """Take a model, or the parameters of one by name."""
        if named_parameters is None and model is not None:
            named_parameters, self._model = model.named_parameters(), weakref.ref(model)
        if named_parameters is not None:
            self.parameters = _plain(named_parameters)
            self.device = next((parameter.device for _, parameter in self.parameters), None)
        ddp = isinstance(model, torch.nn.parallel.DistributedDataParallel)
        self.replicated = ddp if replicated is None else replicated
        self.sharded = self.sharded or _is_sharded(model, self.parameters)
        self.copies = copies_of_shards(model, self.parameters) if self.sharded else 1

    def look_again(self) -> dict[str, Any] | None:
        """Take the model's parameters anew where they are others by now, and say which: adapters come and go."""
        model = self.model
        if model is None:
            return None
        found = _plain(model.named_parameters())
        before = {id(parameter): name for name, parameter in self.parameters}
        now = {id(parameter): name for name, parameter in found}
        if before.keys() == now.keys():
            return None
        added = [name for key, name in now.items() if key not in before]
        gone = [name for key, name in before.items() if key not in now]
        self.parameters = found
        return {"added": added[:8], "gone": gone[:8], "added_count": len(added), "gone_count": len(gone)}

    def gradients(self) -> Iterable[tuple[str, Any]]:
        """This rank's gradients by name, where the trainer or its engine keeps them; None for those without."""
        if self.source is not None:
            return self.source.gradients()
        return ((name, parameter.grad) for name, parameter in self.parameters)

    def drop_gradients(self) -> None:
        """Take every gradient away."""
        for _, parameter in self.parameters:
            parameter.grad = None

    def forget(self) -> None:
        """Let go of the model."""
        self.parameters, self._model = [], None


def own_norm(named_gradients: Iterable[tuple[str, Any]]) -> torch.Tensor | None:
    """Compute the L2 norm of the gradients that this rank holds; None without any. Never synchronises."""
    gradients = [g.detach() for _, g in named_gradients if g is not None and not g.is_sparse]
    local = [g.to_local() if hasattr(g, "to_local") else g for g in gradients]
    if not local:
        return None
    norms = torch._foreach_norm(local, 2, dtype=torch.float32)
    return torch.linalg.vector_norm(torch.stack([norm.double().to(norms[0].device) for norm in norms]))


def _plain(named: Iterable[tuple[str, torch.nn.Parameter]]) -> Named:
    return [(name.removeprefix("module."), parameter) for name, parameter in named]


def _is_sharded(model: torch.nn.Module | None, parameters: Named) -> bool:
    """FSDP1 by its wrapper, anywhere inside the model; FSDP2 by its DTensors."""
    wrapped = model is not None and any(type(part).__name__ == "FullyShardedDataParallel" for part in model.modules())
    return wrapped or any(hasattr(parameter, "to_local") for _, parameter in parameters)
