"""Ranges of single settings, whatever the trainer calls them: the table that `check config` judges numbers by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from grpo_sentinel.preflight.look import Level


@dataclass(frozen=True, slots=True)
class Range:
    """One way in which a number is wrong; `message` takes the value as {0}."""

    name: str
    wrong: Callable[[float], bool]
    level: Level
    code: str
    message: str
    remedy: str


_B, _D, _L = Level.BROKEN, Level.DOUBTFUL, Level.LOSS
RANGES = (
    Range("accumulation", lambda x: x < 1, _B, "accumulation-zero", "{0} micro-batches per step: nothing is trained",
          "use 1 or more"),
    Range("micro_batch", lambda x: x < 1, _B, "micro-batch-zero", "{0} samples per micro-batch", "use 1 or more"),
    Range("epsilon", lambda x: x <= 0, _B, "epsilon", "{0}: every ratio is clipped, and the policy does not move",
          "0.2 is usual"),
    Range("epsilon", lambda x: x >= 1, _B, "epsilon", "{0}: ratios down to 0 pass, so nothing is clipped below",
          "0.2 is usual"),
    Range("epsilon", lambda x: x > 0.5, _D, "epsilon", "{0} lets the policy move far in one step",
          "0.2 is usual, up to 0.3"),
    Range("beta", lambda x: x < 0, _B, "beta", "{0} rewards distance from the reference", "use 0 or more"),
    Range("beta", lambda x: x > 1, _D, "beta", "{0}: the KL term outweighs the reward", "0 to 0.1 is usual"),
    Range("learning_rate", lambda x: x <= 0, _B, "learning-rate", "{0}: nothing is learned",
          "1e-6 is usual, with adapters 1e-5"),
    Range("warmup_ratio", lambda x: x >= 1, _B, "warmup", "{0} of all steps: the learning rate is never reached",
          "0.03 is usual"),
    Range("warmup_ratio", lambda x: x > 0.5, _D, "warmup", "{0}: more than half of the steps are below the rate",
          "0.03 is usual"),
    Range("temperature", lambda x: x <= 0, _B, "temperature",
          "{0}: all completions of a group are the same, advantages are 0", "0.6 to 1.0"),
    Range("temperature", lambda x: x < 0.1, _D, "temperature",
          "{0}: completions of a group are nearly the same, few groups have an advantage", "0.6 to 1.0"),
    Range("temperature", lambda x: x > 2, _D, "temperature", "{0}: completions are close to random", "0.6 to 1.0"),
    Range("top_k", lambda x: x == 1, _B, "temperature",
          "{0}: all completions of a group are the same, advantages are 0", "leave it off (TRL 0, vLLM -1)"),
    Range("top_p", lambda x: not 0 < x <= 1, _B, "temperature", "{0} is no share of probability", "1.0, or 0.9 to 1.0"),
    Range("completion_length", lambda x: x < 1, _B, "context", "{0} tokens: there is no completion", "512 or more"),
    Range("completion_length", lambda x: x < 8, _D, "context", "{0} tokens: nearly every completion is cut off",
          "512 or more, where the answer is not a single word"),
    Range("save_limit", lambda x: x == 1, _L, "one-checkpoint",
          "{0}: the checkpoint written at a halt, good or not, deletes the last one", "keep 2 or more"),
    Range("max_grad_norm", lambda x: x < 0, _B, "max-grad-norm", "{0} turns gradients round, or is refused",
          "1.0 is usual"),
    Range("engine_memory", lambda x: not 0 < x <= 1, _B, "engine-memory", "{0} is no share of the GPU's memory",
          "0.3 to 0.6 beside a trainer"),
)  # fmt: skip
"""The first line of a name that is wrong is told, the others of that name are not."""


__all__ = ["RANGES", "Range"]
