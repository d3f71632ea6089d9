"""Data layer: ids, masks, lengths and shapes of one micro-batch, before its forward."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from grpo_sentinel.agent.probes.pack import Pack


def observe(
    *,
    prompt_ids_BP: torch.Tensor | None = None,
    prompt_mask_BP: torch.Tensor | None = None,
    completion_ids_BC: torch.Tensor | None = None,
    completion_mask_BC: torch.Tensor | None = None,
    input_ids_BT: torch.Tensor | None = None,
    attention_mask_BT: torch.Tensor | None = None,
    advantages_B: torch.Tensor | None = None,
    others: Mapping[str, torch.Tensor] | None = None,
    vocab_size: int | None = None,
    pad_id: int | None = None,
    eos_id: int | Collection[int] | None = None,
    unk_id: int | None = None,
    max_prompt_length: int | None = None,
    max_completion_length: int | None = None,
    group_size: int | None = None,
    model_device: torch.device | None = None,
) -> Pack:
    """Read one micro-batch before its forward. Give what there is: prompt and completion (TRL), or whole sequences.

    `others` are more tensors of the batch by name (`old_per_token_logps`, `ref_per_token_logps`, `rewards`, `labels`),
    looked at for shape, device and dtype only. Never synchronises, never changes a tensor, keeps none.
    """
    raise NotImplementedError


def observe_groups(
    prompts: Sequence[object], completions: Sequence[object] | None = None, *, group_size: int
) -> dict[str, float]:
    """Judge the groups of a generation batch on the host: one prompt per group, duplicates inside and across groups.

    `prompts` and `completions` are in trainer order (a group's members adjacent): texts, chat lists, or id sequences.
    """
    raise NotImplementedError
