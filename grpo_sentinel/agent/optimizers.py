"""Hooks on the innermost torch optimizer: the one place that every engine passes on its way to the weights."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Steps(Protocol):
    """Who wants to know about optimizer steps."""

    def before_optimizer(self, optimizer: torch.optim.Optimizer) -> None: ...

    def after_optimizer(self, optimizer: torch.optim.Optimizer) -> None: ...


def innermost(optimizer: Any) -> torch.optim.Optimizer:
    """Unwrap `.optimizer` to the end (accelerate, DeepSpeed and schedulers' wrappers hold the real one there).

    Raises TypeError when what is left is no torch optimizer and has no step hooks.
    """
    for _ in range(8):
        inner = getattr(optimizer, "optimizer", None)
        if inner is None or inner is optimizer:
            break
        optimizer = inner
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"no torch optimizer inside {type(optimizer).__name__}: updates cannot be gated")
    return optimizer


class OptimizerHooks:
    """Calls a `Steps` before and after each step of the optimizers it is attached to."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._handles: list[Any] = []
        self._attached: set[int] = set()

    @property
    def attached(self) -> bool:
        """Tell whether any optimizer calls us."""
        return bool(self._handles)

    def attach(self, optimizer: Any) -> None:
        """Put the hooks on; a second call for the same optimizer changes nothing."""
        inner = innermost(optimizer)
        if id(inner) in self._attached:
            return
        self._attached.add(id(inner))
        steps = self._steps
        self._handles.append(inner.register_step_pre_hook(lambda opt, args, kwargs: steps.before_optimizer(opt)))
        self._handles.append(inner.register_step_post_hook(lambda opt, args, kwargs: steps.after_optimizer(opt)))

    def detach(self) -> None:
        """Take all hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._attached.clear()
