"""Data layer: ids, masks, lengths and shapes of the micro-batches, each read before its forward.

On the device a few numbers per row; sums, shares and the rows to blame are made on the host. A batch whose shapes
contradict each other is still read as far as it goes: what does not fit is counted, not raised.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from grpo_sentinel.agent.probes.data_finish import Meta, Tally, finish
from grpo_sentinel.agent.probes.groups import observe_groups
from grpo_sentinel.agent.probes.layout import Layout, check_layout
from grpo_sentinel.agent.probes.pack import Pack, vector
from grpo_sentinel.agent.probes.versions import version_columns

_SECTIONS = ("prompt", "completion", "input")
_MASKS = ("prompt_mask", "completion_mask", "attention_mask")

__all__ = ["Tally", "finish", "observe", "observe_groups"]


def observe(
    *,
    prompt_ids_BP: torch.Tensor | None = None,
    prompt_mask_BP: torch.Tensor | None = None,
    completion_ids_BC: torch.Tensor | None = None,
    completion_mask_BC: torch.Tensor | None = None,
    input_ids_BT: torch.Tensor | None = None,
    attention_mask_BT: torch.Tensor | None = None,
    advantages_B: torch.Tensor | None = None,
    weight_versions: torch.Tensor | None = None,
    weight_version: float | None = None,
    stale_dropped: float | None = None,
    others: Mapping[str, torch.Tensor] | None = None,
    vocab_size: int | None = None,
    pad_id: int | None = None,
    eos_id: int | Collection[int] | None = None,
    unk_id: int | None = None,
    max_prompt_length: int | None = None,
    max_completion_length: int | None = None,
    group_size: int | None = None,
    model_device: torch.device | None = None,
    so_far: Tally | None = None,
) -> Pack:
    """Read one micro-batch before its forward. Give what there is: prompt and completion (TRL), or whole sequences.

    With whole sequences `completion_mask_BC` (B x T then) marks the tokens that enter the loss. `others` are more
    tensors of the batch by name (`old_per_token_logps`, `ref_per_token_logps`, `rewards`, `labels`), looked at for
    shape, device and dtype only. Asynchronous trainers give `weight_versions`, integers of the weights that sampled
    each row (B) or completion token (B x T), `weight_version` that the trainer has now, and in `stale_dropped` how many
    samples it has thrown away as too old since the last call. `so_far` is the tally of the step's earlier
    micro-batches; at harvest this one is added to it, and the signals are of all of them. Raises nothing for shapes
    that contradict each other. Never synchronises, changes or keeps a tensor.
    """
    named = {
        "prompt_ids": prompt_ids_BP,
        "prompt_mask": prompt_mask_BP,
        "completion_ids": completion_ids_BC,
        "completion_mask": completion_mask_BC,
        "input_ids": input_ids_BT,
        "attention_mask": attention_mask_BT,
        "advantages": advantages_B,
        "weight_versions": weight_versions,
        **(others or {}),
    }
    layout = check_layout({name: tensor for name, tensor in named.items() if tensor is not None}, model_device)
    ends = (eos_id,) if isinstance(eos_id, int) else tuple(eos_id or ())
    with torch.no_grad():
        columns = _columns_of(layout, vocab_size, unk_id, ends)
        if weight_versions is not None and weight_version is not None and layout.rows:
            columns.update(version_columns(weight_versions, layout.completion()[1], layout.rows))
        values = vector(list(columns.values()))
    limits = {
        "vocab_size": vocab_size,
        "group_size": group_size,
        "max_prompt_length": max_prompt_length,
        "max_completion_length": max_completion_length,
        "pad_id": pad_id,
        "weight_version": weight_version,
    }
    facts = layout.facts()
    if stale_dropped is not None:
        facts["data.stale_dropped"] = float(stale_dropped)
    meta = Meta(
        columns=tuple(columns),
        rows=layout.rows,
        width=_width(layout),
        positions=sum(tensor.numel() for name, tensor in layout.fitting.items() if name.endswith("_ids")),
        limits={name: float(limit) for name, limit in limits.items() if limit is not None},
        facts=facts,
        subjects=layout.subjects(),
        so_far=so_far,
    )
    return Pack("data", values, finish, meta)


def _columns_of(
    layout: Layout, vocab_size: int | None, unk_id: int | None, ends: tuple[int, ...]
) -> dict[str, torch.Tensor]:
    """Make one number per row of each kind; all sections side by side, since the number of kernels is the cost."""
    fit = layout.fitting
    sections = [name for name in _SECTIONS if f"{name}_ids" in fit and fit[f"{name}_ids"].shape[1]]
    ids = _side_by_side([fit[f"{name}_ids"] for name in sections])
    masks = {name: fit[name] for name in _MASKS if name in fit}
    raw = _side_by_side(list(masks.values()))
    out: dict[str, torch.Tensor] = {}
    marks: dict[str, torch.Tensor] = {}
    both = None
    if raw is not None:
        both = raw if raw.dtype is torch.bool else raw != 0
        marks = dict(zip(masks, both.split_with_sizes([mask.shape[1] for mask in masks.values()], 1), strict=True))
        out.update({name: mark.sum(1) for name, mark in marks.items()})
        if both is not raw:
            out["nonbinary"] = (raw != both).sum(1)
    if ids is not None and ids.dtype.itemsize < 4:
        ids = ids.long()  # a vocabulary size may not fit into them
    if ids is not None:
        out["id_min"], out["id_max"] = torch.aminmax(ids, dim=1)
        if vocab_size is not None:
            out["oov"] = (ids.clamp(0, vocab_size - 1) != ids).sum(1)  # padding too: it is looked up as well
        if unk_id is not None:
            owners = ["attention_mask" if name == "input" else f"{name}_mask" for name in sections]
            kept = both if owners == list(marks) else _side_by_side([marks[name] for name in owners if name in marks])
            found = ids == unk_id
            out["unknown"] = (found & kept if kept is not None and kept.shape == found.shape else found).sum(1)
    if "prompt_mask" in marks and masks["prompt_mask"].shape[1]:
        out["prompt_last"] = marks["prompt_mask"][:, -1]
    completion = fit.get("completion_ids", fit.get("input_ids"))
    mark = marks.get("completion_mask")
    if completion is not None and ends and (mark is None or mark.shape == completion.shape):
        out.update(_ends(completion, mark, ends))
    return out


def _width(layout: Layout) -> int:
    completion = layout.fitting.get("completion_ids", layout.fitting.get("input_ids"))
    return 0 if completion is None else completion.shape[1]


def _side_by_side(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    return torch.cat(list(tensors), 1) if len(tensors) > 1 else (tensors[0] if tensors else None)


def _ends(ids: torch.Tensor, mask: torch.Tensor | None, ends: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Mark completions with an end inside their mask, those with one anywhere, and give each one's last id."""
    found = ids == ends[0]
    for other in ends[1:]:
        found = found | (ids == other)
    out = {"ended": (found if mask is None else found & mask).any(1)}
    if ids.shape[1]:
        out.update({"end_anywhere": found.any(1), "last_id": ids[:, -1]})
    return out
