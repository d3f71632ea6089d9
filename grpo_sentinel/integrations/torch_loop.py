"""A PyTorch loop of one's own: the optimizer's hooks vote and gate, the loop calls `observe_*` and `end_step`.

agent = attach(model=model, optimizer=optimizer, scheduler=scheduler, vocab_size=..., group_size=...)
for batch in batches:
    agent.observe_data(batch)
    loss = ...; loss.backward()
    optimizer.step()                       # votes first; a non-finite update is skipped on all ranks
    optimizer.zero_grad()
    verdict = agent.end_step()
    if verdict.checkpoint:
        save(path); agent.checkpoint_saved(path)
    if verdict.halt:
        break
agent.close()
"""

from __future__ import annotations

from typing import Any

import torch

from grpo_sentinel.agent.agent import Agent
from grpo_sentinel.integrations.versions import versions


def follow(
    agent: Agent,
    model: torch.nn.Module | None,
    optimizer: Any,
    scheduler: Any,
    replicated: bool | None,
    config: dict[str, Any],
) -> None:
    """Watch a model and an optimizer; stamp when this rank comes to the first collective of a step under DDP."""
    agent.watch(model=model, optimizer=optimizer, replicated=replicated)
    if scheduler is not None:
        agent.observe_optimizer(scheduler=scheduler)
    agent.configure(trainer="torch", versions=versions(), **config)
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        handle = model.register_forward_pre_hook(lambda module, args: agent.clock.arrived())
        agent.on_close(handle.remove)
