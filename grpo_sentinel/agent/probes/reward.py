"""Reward layer: the raw scores of every reward function, before the trainer's nan-mean, and the groups inside them.

The score matrix is small (rows x functions), so it is copied whole and all mathematics is done on the host in float64.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from grpo_sentinel.agent.probes.groups import digest
from grpo_sentinel.agent.probes.model_state import observe_model
from grpo_sentinel.agent.probes.pack import Pack, refuse_unreadable, vector
from grpo_sentinel.agent.probes.reward_finish import History, Meta, finish

__all__ = ["CallMeter", "History", "finish", "observe", "observe_model"]


class CallMeter:
    """Times the calls of reward functions and counts those that raised."""

    def __init__(self) -> None:
        self._slowest: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    @contextmanager
    def measure(self, func: str) -> Iterator[None]:
        """Wrap one call: `with meter.measure("accuracy"): ...`. An exception is counted and passes through."""
        started, failed = time.perf_counter(), True
        try:
            yield
            failed = False
        finally:
            self._failures[func] = self._failures.get(func, 0) + failed
            self._slowest[func] = max(self._slowest.get(func, 0.0), time.perf_counter() - started)

    def harvest(self) -> dict[str, float]:
        """Give the slowest call of each function since the last harvest, and its failures since the start."""
        slowest, self._slowest = self._slowest, {}
        out = {f"reward.func_latency_seconds[{func}]": seconds for func, seconds in slowest.items()}
        out.update({f"reward.func_failures[{func}]": float(count) for func, count in self._failures.items()})
        return out


def observe(
    rewards_BF: torch.Tensor,
    func_names: Sequence[str],
    *,
    weights: Sequence[float] | torch.Tensor | None = None,
    group_size: int | None = None,
    completion_lengths_B: torch.Tensor | Sequence[int] | None = None,
    completions_B: Sequence[Any] | None = None,
    prompts_B: Sequence[Any] | None = None,
    sources_B: Sequence[Any] | None = None,
    history: History | None = None,
) -> Pack:
    """Read the raw scores of one generation batch; NaN stands for None. Groups are adjacent rows of `group_size`.

    The combined reward is the weighted sum over functions, NaN where every function is NaN (a function that returned
    None for a row is left out of that row, as TRL does). `completions_B` are texts, chats or ids, of which digests are
    kept: are scores those of their own completion? `prompts_B` likewise, for how often each was solved over the run;
    `sources_B` names the data set that each row comes from. `history` is updated at harvest. Functions of one name are
    told apart by a number (`length`, `length#2`). Raises ValueError when names do not fit the matrix. Never
    synchronises.
    """
    refuse_unreadable({"rewards": rewards_BF})
    scores_BF = rewards_BF.detach()
    scores_BF = scores_BF.unsqueeze(1) if scores_BF.dim() == 1 else scores_BF
    if scores_BF.dim() != 2 or scores_BF.shape[1] != len(func_names):
        raise ValueError(
            f"rewards of shape {tuple(rewards_BF.shape)} do not fit the {len(func_names)} names {list(func_names)}"
        )
    if weights is not None and len(weights) != len(func_names):
        raise ValueError(f"{len(weights)} weights do not fit the {len(func_names)} names {list(func_names)}")
    pieces = [scores_BF]
    known: tuple[float, ...] | None = (1.0,) * len(func_names)
    if isinstance(weights, torch.Tensor):
        known = None
        pieces.append(weights)
    elif weights is not None:
        known = tuple(float(weight) for weight in weights)
    lengths: tuple[float, ...] | bool = False
    if completion_lengths_B is not None and len(completion_lengths_B) == len(scores_BF):
        lengths = isinstance(completion_lengths_B, torch.Tensor) or tuple(map(float, completion_lengths_B))
    if isinstance(completion_lengths_B, torch.Tensor) and lengths:
        pieces.append(completion_lengths_B)
    keys: tuple[str, ...] = ()
    if completions_B is not None and len(completions_B) == len(scores_BF):
        keys = tuple(map(digest, completions_B))
    prompts = tuple(map(digest, prompts_B)) if prompts_B is not None and len(prompts_B) == len(scores_BF) else ()
    sources = tuple(sources_B) if sources_B is not None and len(sources_B) == len(scores_BF) else ()
    meta = Meta(_distinct(func_names), known, len(scores_BF), group_size, lengths, history, keys, prompts, sources)
    with torch.no_grad():
        return Pack("reward", vector(pieces), finish, meta)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    out: list[str] = []
    for name in names:
        repeats = sum(other == name or other.startswith(f"{name}#") for other in out)
        out.append(f"{name}#{repeats + 1}" if repeats else name)
    return tuple(out)
