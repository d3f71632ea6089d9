"""Does a rollout engine on the trainer's own device give its memory back when it is put to sleep?

TRL's colocated vLLM sleeps between generation and training (`vllm_enable_sleep_mode`). Where it does not let go, the
training step has that much less, and runs out of memory later, with an error that names the trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from grpo_sentinel.agent.agent import Agent
from grpo_sentinel.integrations.patches import Patches

FreeMemory = Callable[[], tuple[int, int]]  # bytes of the device: free, total


def watch_sleep(
    agent: Agent, trainer: Any, patches: Patches, free_memory: FreeMemory = torch.cuda.mem_get_info
) -> bool:
    """Measure the device's free memory around every sleep of the engine; False where there is nothing to measure.

    What the driver says of the device; no kernel is started or waited for. Other processes of the device count as well.
    """
    holders = (getattr(trainer, "vllm_generation", None), trainer)
    engine = next(
        (llm for holder in holders if callable(getattr(llm := getattr(holder, "llm", None), "sleep", None))), None
    )
    if engine is None or (free_memory is torch.cuda.mem_get_info and not torch.cuda.is_available()):
        return False
    share = float(getattr(trainer.args, "vllm_gpu_memory_utilization", 0.0) or 0.0)

    def wrapper(method: Callable[..., Any]) -> Callable[..., Any]:
        def sleep(*args: Any, **kwargs: Any) -> Any:
            before = agent.guard.run("engine sleep", free_memory)
            result = method(*args, **kwargs)
            if before is not None:
                agent.guard.run("engine sleep", note, before)
            return result

        return sleep

    def note(before: tuple[int, int]) -> None:
        free, total = free_memory()
        found = {"memory.engine_released_bytes": float(max(0, free - before[0]))}
        if share:
            found["memory.engine_budget_bytes"] = share * total
        agent.observer.known(found)

    return patches.wrap(engine, "sleep", wrapper)
