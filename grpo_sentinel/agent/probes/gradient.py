"""Gradient layer: every parameter's norm, max and non-finite state, and a sample for mean and percentiles."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from grpo_sentinel.agent.probes.pack import Pack


class GradientPack(Pack):
    """A pack with the local L2 norm still on the device, for the gate."""

    norm: torch.Tensor  # 0-d float64, the L2 norm of what this rank holds; not finite when any gradient is not, or on overflow


def observe(
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
    *,
    norm_preclip: torch.Tensor | float | None = None,
    clip_limit: float | None = None,
    group_of: object = None,
    sample_size: int = 8192,
) -> GradientPack:
    """Read the gradients before clipping: `.grad` of every named parameter, as local shards (DTensor, FSDP, ZeRO).

    `norm_preclip` is the global norm that the trainer computed (tensor or float); without it the local one stands in.
    `clip_limit` is max_grad_norm (None, 0 or inf: no clipping). Does not synchronise, concatenates no gradients.
    """
    raise NotImplementedError
