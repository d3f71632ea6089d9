"""What the schedule says the learning rate of the present step is, read without advancing it."""

from __future__ import annotations

from typing import Any

import torch

from grpo_sentinel.agent.optimizers import innermost


def expected_rate(scheduler: Any) -> float | None:
    """Give the rate that `scheduler` last set for the first group; None when it has not set any or cannot say.

    A scheduler remembers what it set (`get_last_lr`), and between its steps nothing else should set a rate: what the
    group holds at the optimizer's step is compared with this. Never advances the schedule, never synchronises.
    """
    try:
        rates = scheduler.get_last_lr()
    except (AttributeError, AssertionError, NotImplementedError):  # DeepSpeed's assert that a step was made
        return None
    rate = rates[0] if rates else None
    if isinstance(rate, torch.Tensor):
        return float(rate) if rate.device.type == "cpu" else None
    return None if rate is None else float(rate)


def moves(scheduler: Any, optimizer: Any) -> bool:
    """Tell whether a scheduler sets the rates of this innermost optimizer; True where it does not say whose."""
    for _ in range(8):
        inner = getattr(scheduler, "scheduler", None)
        if inner is None or inner is scheduler:
            break
        scheduler = inner
    own = getattr(scheduler, "optimizer", None)
    try:
        return own is None or innermost(own) is optimizer
    except TypeError:
        return True
