"""Reward layer: the raw scores of every reward function, before the trainer's nan-mean, and the groups inside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from grpo_sentinel.agent.probes.pack import Pack


class History:
    """What reward signals remember between steps: the largest combined reward of the run so far."""

    def __init__(self) -> None:
        self.ceiling = float("-inf")


class CallMeter:
    """Times the calls of reward functions and counts those that raised."""

    @contextmanager
    def measure(self, func: str) -> Iterator[None]:
        """Wrap one call: `with meter.measure("accuracy"): ...`. An exception is counted and passes through."""
        raise NotImplementedError
        yield

    def harvest(self) -> dict[str, float]:
        """Give `reward.func_latency_seconds[f]` of the calls since the last harvest, and failures since the start."""
        raise NotImplementedError


def observe(
    rewards_BF: torch.Tensor,
    func_names: Sequence[str],
    *,
    weights: Sequence[float] | torch.Tensor | None = None,
    group_size: int | None = None,
    completion_lengths_B: torch.Tensor | Sequence[int] | None = None,
    history: History | None = None,
) -> Pack:
    """Read the raw scores of one generation batch; NaN stands for None. Groups are adjacent rows of `group_size`.

    The combined reward is the weighted sum over functions, NaN where every function is NaN (a function that returned
    None for a row is left out of that row, as TRL does); with an infinite score it is infinite.
    """
    raise NotImplementedError
