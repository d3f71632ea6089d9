"""Optimizer layer: what one step did to the weights, from a fixed hashed sample, and the exact state of the weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from grpo_sentinel.agent.probes.pack import Pack


class OptimizerProbe:
    """Watches one optimizer; keeps index plans and counters, no tensor of the user beyond one step."""

    def __init__(self, *, sample_per_tensor: int = 64, full_every: int = 16, replicated: bool = True) -> None:
        """`replicated`: every rank holds the same weights (DDP), so a digest of them can be compared."""

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember the sampled weights (a small copy on the device), from the inner optimizer's step pre-hook."""
        raise NotImplementedError

    def after_step(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
        learning_rate_expected: float | None = None,
        scaler: object | None = None,
        engine: object | None = None,
        skipped: bool = False,
    ) -> Pack:
        """Compare with `before_step` and read weights, moments and static facts, from the step post-hook.

        `skipped`: the gate stopped this update. Also works when `before_step` was never called (no update signals).
        Also call it, with applied=False by absence of before_step, after a step that an engine skipped. Never
        synchronises.
        """
        raise NotImplementedError

    def digest(self, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        """Digest the bits of a fixed sample of the weights: 0-d float64 on the device, an integer below 2**52.

        Equal weights give equal digests on every rank; for the step vote. Never synchronises.
        """
        raise NotImplementedError
