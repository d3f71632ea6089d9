"""Around the update: the gate on the innermost torch optimizer, and a look at the weights before and after.

Step hooks of the innermost optimizer are the one place that every engine passes on its way to the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from grpo_sentinel.agent.core import Outcome
from grpo_sentinel.agent.guard import Guard
from grpo_sentinel.records import Phase

if TYPE_CHECKING:
    from grpo_sentinel.agent.observing import Observer


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


def drop_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Take the gradients of every group away: the step that follows changes neither weights nor moments."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


class UpdateWatch:
    """Votes before an update, closes the gate, and has the weights looked at; knows whether an update was made."""

    def __init__(
        self,
        vote: Callable[[], Outcome],
        vote_later: Callable[[torch.optim.Optimizer], bool],
        observer: Observer,
        guard: Guard,
        *,
        enter: Callable[[Phase], None],
        leave: Callable[[Phase], None],
    ) -> None:
        self.applied = False
        self._vote = vote
        self._vote_later = vote_later  # whether an update after the step's first is to be skipped
        self._stepped: set[int] = set()  # optimizers of this step
        self._skip = False  # the present update
        self._observer = observer
        self._guard = guard
        self._enter = enter
        self._leave = leave
        self._looked = False

    def before_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Vote if nobody has, and take the gradients away when the update is to be skipped.

        The vote saw the gradients of the first update. Another optimizer, or the same one once more, may step after a
        backward of its own.
        """
        again = id(optimizer) in self._stepped
        self._skip = self._vote().skip and not again
        if self._stepped and not self._skip:
            self._skip = self._vote_later(optimizer)
        self._stepped.add(id(optimizer))
        self._enter(Phase.OPTIMIZER)
        if self._skip:
            drop_gradients(optimizer)  # not guarded: half a gate is worse than none
        else:
            self._look_before(optimizer)

    def after_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at what the step did to the weights."""
        if id(optimizer) not in self._stepped:
            self._skip = self._vote().skip  # it was given a closure and did not call it
        self.applied = self.applied or not self._skip
        self._look_after(optimizer, skipped=self._skip)
        self._leave(Phase.OPTIMIZER)

    def before_engine(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at the weights before an engine's step, which may call its inner optimizer several times or never."""
        self._enter(Phase.OPTIMIZER)
        if not self._vote().skip:
            self._look_before(optimizer)

    def after_engine(self, optimizer: torch.optim.Optimizer, *, applied: bool) -> None:
        """Look at what an engine's step did to the weights."""
        self.applied = applied and not self._vote().skip
        self._look_after(optimizer, skipped=not self.applied)
        self._leave(Phase.OPTIMIZER)

    def end_step(self, *, skipped: bool) -> None:
        """Look at the weights when no hook of ours was called: a scaler has skipped the optimizer."""
        if not self._looked:
            self._look_after(None, skipped=skipped)

    def next_step(self) -> None:
        """Forget the step."""
        self.applied = self._looked = False
        self._stepped.clear()

    def _look_before(self, optimizer: torch.optim.Optimizer) -> None:
        if self._observer.recording:
            self._guard.run("optimizer", self._observer.before_update, optimizer)

    def _look_after(self, optimizer: torch.optim.Optimizer | None, *, skipped: bool) -> None:
        self._looked = True
        if self._observer.recording:
            self._guard.run("optimizer", self._observer.after_update, optimizer, skipped=skipped)


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
        self._handles.append(inner.register_step_pre_hook(partial(_before_step, steps)))
        self._handles.append(inner.register_step_post_hook(lambda opt, args, kwargs: steps.after_optimizer(opt)))

    def detach(self) -> None:
        """Take all hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._attached.clear()


def _before_step(steps: Steps, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    """Come once the gradients are there: before the step, or after the first call of the closure that makes them."""
    at_place = len(args) > 1  # args[0] is the optimizer
    closure = args[1] if at_place else kwargs.get("closure")
    if not callable(closure):
        return steps.before_optimizer(optimizer)
    seen = False

    def closure_then_gate() -> Any:
        nonlocal seen
        loss = closure()
        if not seen:  # LBFGS calls it many times
            seen = True
            steps.before_optimizer(optimizer)
        return loss

    if at_place:
        return (args[0], closure_then_gate, *args[2:]), kwargs
    return args, {**kwargs, "closure": closure_then_gate}
