"""Policy layer: log-probs, ratio, KL, entropy, advantages and loss of one micro-batch, per rank, before any reduction."""

from __future__ import annotations

import torch

from grpo_sentinel.agent.probes.pack import Pack


def observe(
    *,
    logp_BT: torch.Tensor | None = None,
    mask_BT: torch.Tensor | None = None,
    advantages: torch.Tensor | None = None,
    old_logp_BT: torch.Tensor | None = None,
    ref_logp_BT: torch.Tensor | None = None,
    sampling_logp_BT: torch.Tensor | None = None,
    entropy_BT: torch.Tensor | None = None,
    completion_ids_BT: torch.Tensor | None = None,
    loss: torch.Tensor | float | None = None,
    loss_scale: float = 1.0,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
    beta: float = 0.0,
    vocab_size: int | None = None,
    on_policy: bool | None = None,
    group_size: int | None = None,
    scale_rewards: str | bool | None = "group",
) -> Pack:
    """Read one micro-batch as it is trained on: `logp_BT` from the training forward, T completion positions.

    advantages: B or B x T. `old_logp_BT` None with `on_policy` True means old = current (ratio 1), as TRL does.
    `loss` is the local loss of this micro-batch; `loss_scale` undoes a division (gradient accumulation): the reported
    loss is loss * loss_scale. `scale_rewards`: "group" (sample std of the group; the bound holds), "batch", "none".
    Runs without autograd, never synchronises, changes and keeps no tensor.
    """
    raise NotImplementedError
