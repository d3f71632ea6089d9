"""Gradient layer: is anything left of the step before when this step's first gradient arrives?

A tensor hook on a leaf runs before the gradient is added to `.grad`: at the first backward of a step that must be None
or zero. Whatever `zero_grad` a loop calls, and wherever it calls it, comes before that moment. Three small parameters
are looked at, from the beginning, the middle and the end of the model: what is forgotten is forgotten for all.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from grpo_sentinel.agent.probes.flat import flat
from grpo_sentinel.agent.probes.pack import Harvest, Pack, Part, vector

_PLACES = 3


class CarriedWatch:
    """Holds its hooks and what they saw in the present step; never a parameter."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._seen: dict[int, torch.Tensor | None] = {}  # place -> norm of what was there, None: nothing
        self._watched: tuple[int, ...] = ()

    def arm(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Look at these parameters' gradients; nothing is done where the same ones are watched."""
        chosen = _chosen([parameter for parameter in parameters if parameter.requires_grad and parameter.numel()])
        watched = tuple(map(id, chosen))
        if watched == self._watched:
            return
        self.disarm()
        self._watched = watched
        for place, parameter in enumerate(chosen):
            self._handles.append(parameter.register_hook(self._hook(place, weakref.ref(parameter))))

    def disarm(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._seen, self._watched = [], {}, ()

    def pack(self) -> Pack | Mapping[str, float] | None:
        """Give `gradient.carried_norm`, at the end of the step; None when no hook fired. Never synchronises."""
        seen, self._seen = self._seen, {}
        if not seen:
            return None
        held = [norm for norm in seen.values() if norm is not None]
        if not held:
            return {"gradient.carried_norm": 0.0}
        with torch.no_grad():
            return Pack("carried", vector(held), finish, None)

    def _hook(self, place: int, parameter: weakref.ref[torch.nn.Parameter]) -> Callable[[torch.Tensor], None]:
        def look(gradient: torch.Tensor) -> None:
            if place in self._seen:
                return  # a later micro-batch: what is there is this step's own
            try:
                owner = parameter()
                held = None if owner is None or owner.grad is None else flat(owner.grad)
                with torch.no_grad():
                    self._seen[place] = None if held is None else torch.linalg.vector_norm(held, dtype=torch.float32)
            except Exception:  # noqa: BLE001 - inside the user's backward: a lost look is better than a lost step
                self._seen[place] = None

        return look


def finish(parts: Sequence[Part]) -> Harvest:
    """Give the largest norm of the places."""
    return Harvest({"gradient.carried_norm": max(max(part.values.tolist()) for part in parts)})


def _chosen(parameters: Sequence[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    """Pick the smallest of the first, the middle and the last third."""
    third = -(-len(parameters) // _PLACES)
    thirds = [parameters[start : start + third] for start in range(0, len(parameters), third)] if parameters else []
    return [min(part, key=torch.numel) for part in thirds]
