"""DeepSpeed engines, in a loop of one's own or under accelerate: ZeRO 0 to 3, read as local partitions.

    engine.backward -> engine.step, at the accumulation boundary:
        gradients of this rank's partition -> vote -> [overflow check, clipping, inner optimizer: gate] -> weights

`engine.step` is the only place where gradients are complete and not yet used: under accelerate it is called inside
`accelerator.backward`, and what transformers calls before its own optimizer step comes too late. DeepSpeed calls no
hook for an update that it skips itself, so the vote does not wait for one.

    agent = attach(engine, vocab_size=..., group_size=...)      # then agent.end_step() after each engine.step()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from grpo_sentinel.agent.agent import Agent
from grpo_sentinel.agent.optimizers import drop_gradients, innermost
from grpo_sentinel.agent.probes.sources import deepspeed_gradients
from grpo_sentinel.integrations.patches import Patches
from grpo_sentinel.integrations.versions import versions
from grpo_sentinel.records import Phase


class EngineSource:
    """Lists what this rank holds of an engine's gradients."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def gradients(self) -> Sequence[tuple[str, Any]]:
        """List (name, gradient), without a collective; empty inside accumulation."""
        return deepspeed_gradients(self._engine, self._engine.module.named_parameters())

    def scale(self) -> float:
        """Give the loss scale that the gradients still carry."""
        scale = getattr(self._engine.optimizer, "loss_scale", 1.0)
        return float(scale) if isinstance(scale, (int, float)) else 1.0


class Stage3Weights:
    """What ZeRO-3's inner optimizer steps: it holds the flat float32 partitions only while it is called."""

    def __init__(self, zero: Any, inner: torch.optim.Optimizer) -> None:
        self._zero = zero
        self._inner = inner

    @property
    def state(self) -> Any:
        """The moments, by partition."""
        return self._inner.state

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One group of all partitions of this rank, with the first group's settings."""
        return [{**self._inner.param_groups[0], "params": list(self._zero.fp32_partitioned_groups_flat)}]


def follow(agent: Agent, engine: Any, config: dict[str, Any]) -> None:
    """Watch an engine in a loop of one's own; the loop calls `agent.end_step()` after each optimizer step."""
    patches = Patches()
    agent.on_close(patches.undo)
    facts = {"zero_stage": int(engine.zero_optimization_stage()), "versions": versions("deepspeed")}
    agent.configure(trainer="deepspeed", **facts, **config)
    watch_engine(agent, engine, patches)


def watch_engine(agent: Agent, engine: Any, patches: Patches) -> None:
    """Wrap `engine.step` and put the gate on the inner optimizer."""
    stage = engine.zero_optimization_stage()
    agent.watch(model=engine.module, replicated=stage == 0 and engine.dp_world_size > 1)
    agent.observer.model.source = EngineSource(engine)
    agent.observer.model.sharded = stage > 0
    agent.observer.model.copies = int(engine.dp_world_size == agent.core.world)  # with other parallelism: not known
    agent.observe_optimizer(engine=engine, scheduler=engine.lr_scheduler)
    agent.core.scaled = bool(engine.fp16_enabled() and engine.dynamic_loss_scale())
    inner = innermost(engine.optimizer)
    handle = inner.register_step_pre_hook(lambda optimizer, args, kwargs: _gate(agent, optimizer))
    agent.on_close(handle.remove)
    held: Any = Stage3Weights(engine.optimizer, inner) if stage == 3 else inner
    patches.wrap(engine, "step", lambda method: _step(agent, engine, held, method))


def _step(agent: Agent, engine: Any, held: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    def step(*args: Any, **kwargs: Any) -> Any:
        if not engine.is_gradient_accumulation_boundary():
            return method(*args, **kwargs)
        agent.leave(Phase.BACKWARD)
        agent.look_at_gradients(clip_limit=float(engine.gradient_clipping() or 0.0))
        agent.vote()
        agent.updates.before_engine(held)
        result = method(*args, **kwargs)
        norm = agent.guard.run("engine norm", engine.get_global_grad_norm)
        agent.take_norm(None if norm is None else float(norm))
        agent.updates.after_engine(held, applied=bool(engine.was_step_applied()))
        return result

    return step


def _gate(agent: Agent, optimizer: torch.optim.Optimizer) -> None:
    """Stop the update of one group: ZeRO calls its inner optimizer once per group."""
    if agent.vote().skip:
        drop_gradients(optimizer)
