"""Data layer: ids, masks, lengths and shapes of the micro-batches, each read before its forward.

On the device a few numbers per row; sums, shares and the rows to blame are made on the host. A batch whose shapes
contradict each other is still read as far as it goes: what does not fit is counted, not raised.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from grpo_sentinel.agent.probes.groups import observe_groups
from grpo_sentinel.agent.probes.layout import Layout, check_layout
from grpo_sentinel.agent.probes.pack import Harvest, Pack, Part, vector

__all__ = ["finish", "observe", "observe_groups"]


@dataclass(frozen=True, slots=True)
class _Meta:
    columns: tuple[str, ...]
    rows: int
    positions: int  # prompt and completion positions, padding included
    limits: dict[str, float]
    facts: dict[str, float]
    subjects: dict[str, str]


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

    With whole sequences `completion_mask_BC` (B x T then) marks the tokens that enter the loss. `others` are more
    tensors of the batch by name (`old_per_token_logps`, `ref_per_token_logps`, `rewards`, `labels`), looked at for
    shape, device and dtype only. Raises nothing for shapes that contradict each other. Never synchronises, changes or
    keeps a tensor.
    """
    named = {
        "prompt_ids": prompt_ids_BP,
        "prompt_mask": prompt_mask_BP,
        "completion_ids": completion_ids_BC,
        "completion_mask": completion_mask_BC,
        "input_ids": input_ids_BT,
        "attention_mask": attention_mask_BT,
        "advantages": advantages_B,
        **(others or {}),
    }
    layout = check_layout({name: tensor for name, tensor in named.items() if tensor is not None}, model_device)
    ends = (eos_id,) if isinstance(eos_id, int) else tuple(eos_id or ())
    with torch.no_grad():
        columns = _ids(layout, vocab_size, unk_id, ends)
        columns.update(_masks(layout))
        columns.update(_truncated(layout, columns, ends, pad_id, max_completion_length))
        values = vector([column.expand(layout.rows) for column in columns.values()])
    limits = {"vocab_size": vocab_size, "group_size": group_size, "max_prompt_length": max_prompt_length}
    meta = _Meta(
        columns=tuple(columns),
        rows=layout.rows,
        positions=sum(tensor.numel() for name, tensor in layout.fitting.items() if name.endswith("_ids")),
        limits={name: float(limit) for name, limit in limits.items() if limit is not None},
        facts=layout.facts(),
        subjects=layout.subjects(),
    )
    return Pack("data", values, finish, meta)


def _ids(layout: Layout, vocab_size: int | None, unk_id: int | None, ends: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Per row: smallest and largest id, ids outside the vocabulary (padding too: it is looked up as well), unknowns."""
    out: dict[str, torch.Tensor] = {}
    for section in ("prompt", "completion", "input"):
        ids = layout.fitting.get(f"{section}_ids")
        if ids is None or not ids.shape[1]:
            continue
        least, most = ids.amin(1), ids.amax(1)
        out["id_min"] = torch.minimum(out["id_min"], least) if "id_min" in out else least
        out["id_max"] = torch.maximum(out["id_max"], most) if "id_max" in out else most
        mask = layout.mask_of(section)
        if vocab_size is not None:
            _add(out, "oov", ((ids < 0) | (ids >= vocab_size)).sum(1))
        if unk_id is not None:
            _add(out, "unknown", ((ids == unk_id) & mask if mask is not None else ids == unk_id).sum(1))
    ids, mask = layout.completion()
    if ids is not None and ends:
        out["ended"] = (_any_of(ids, ends) & mask if mask is not None else _any_of(ids, ends)).any(1)
    return out


def _masks(layout: Layout) -> dict[str, torch.Tensor]:
    """Per row: unmasked tokens of prompt, completion and whole sequence, elements not 0 or 1, right padding."""
    out: dict[str, torch.Tensor] = {}
    for name in ("prompt_mask", "completion_mask", "attention_mask"):
        mask = layout.fitting.get(name)
        if mask is None:
            continue
        out[name] = (mask != 0).sum(1)
        if mask.dtype != torch.bool:
            _add(out, "nonbinary", ((mask != 0) & (mask != 1)).sum(1))
    mask = layout.fitting.get("prompt_mask")
    if mask is not None and mask.shape[1]:
        out["right_padded"] = (mask[:, -1] == 0) & (out["prompt_mask"] > 0)
    return out


def _truncated(
    layout: Layout, columns: Mapping[str, torch.Tensor], ends: tuple[int, ...], pad_id: int | None, limit: int | None
) -> dict[str, torch.Tensor]:
    """Mark completions that reached the limit without an end; also those that the trainer then masked out whole."""
    ids, _ = layout.completion()
    if limit is None or not ends or ids is None or "completion_mask" not in columns:
        return {}
    length = columns["completion_mask"]
    full = length >= limit
    if "completion_ids" in layout.fitting and ids.shape[1] >= limit:
        endless = ~_any_of(ids, ends).any(1)
        full = full | ((length == 0) & endless & ((ids[:, -1] != pad_id) if pad_id is not None else endless))
    return {"truncated": full & ~columns["ended"]}


def _any_of(ids: torch.Tensor, wanted: tuple[int, ...]) -> torch.Tensor:
    found = ids == wanted[0]
    for other in wanted[1:]:
        found = found | (ids == other)
    return found


def _add(out: dict[str, torch.Tensor], name: str, more: torch.Tensor) -> None:
    out[name] = out[name] + more if name in out else more


def finish(parts: Sequence[Part]) -> Harvest:
    """Join the micro-batches' rows and turn them into signals; see the catalogue for each one's meaning."""
    values: dict[str, float] = {}
    subjects: dict[str, str] = {}
    for part in parts:
        for name, fact in part.meta.facts.items():
            values[name] = values.get(name, 0.0) + fact
        subjects.update(part.meta.subjects)
    shared = set.intersection(*(set(part.meta.columns) for part in parts))
    cut = [_columns(part) for part in parts if part.meta.rows]
    rows = {name: torch.cat([columns[name] for columns in cut]) for name in shared} if cut else {}
    limits = parts[-1].meta.limits
    values["data.samples"] = float(sum(part.meta.rows for part in parts))
    values.update({f"data.{name}": limits[name] for name in ("vocab_size", "group_size") if name in limits})
    if values["data.samples"]:
        values.update(_counts(rows))
        values.update(_lengths(rows, limits.get("max_prompt_length")))
        values.update(_shares(rows, values, sum(part.meta.positions for part in parts)))
    return Harvest(values, samples=_blamed(rows), subjects=subjects)


def _columns(part: Part) -> dict[str, torch.Tensor]:
    return dict(zip(part.meta.columns, part.values.split(part.meta.rows), strict=True))


def _counts(rows: Mapping[str, torch.Tensor]) -> dict[str, float]:
    totals = {
        "oov": "out_of_vocabulary",
        "nonbinary": "nonbinary_mask",
        "right_padded": "right_padded_prompts",
    }
    out = {f"data.{signal}": float(rows[name].sum()) for name, signal in totals.items() if name in rows}
    if "id_min" in rows:
        out["data.token_id_min"] = float(rows["id_min"].min())
        out["data.token_id_max"] = float(rows["id_max"].max())
    if (total := _total(rows)) is not None:
        out["data.tokens"] = float(total.sum())
        out["data.empty_rows"] = float((total == 0).sum())
        out["data.sequence_length_imbalance"] = float((total.max() - total.min()) / total.mean().clamp(min=1.0))
    if "prompt_mask" in rows:
        out["data.empty_prompt_rows"] = float((rows["prompt_mask"] == 0).sum())
    if "completion_mask" in rows:
        out["data.completion_tokens"] = float(rows["completion_mask"].sum())
        out["data.masked_completions"] = float((rows["completion_mask"] == 0).sum())
    return out


def _lengths(rows: Mapping[str, torch.Tensor], max_prompt_length: float | None) -> dict[str, float]:
    out = {}
    if (prompt := _prompt(rows)) is not None:
        out["data.prompt_length_mean"] = float(prompt.mean())
        out["data.prompt_length_max"] = float(prompt.max())
        if max_prompt_length:
            out["data.prompt_clip_ratio"] = float((prompt >= max_prompt_length).double().mean())
    if "completion_mask" in rows:
        completion = rows["completion_mask"]
        out["data.completion_length_mean"] = float(completion.mean())
        out["data.completion_length_min"] = float(completion.min())
        out["data.completion_length_max"] = float(completion.max())
    return out


def _shares(rows: Mapping[str, torch.Tensor], counts: Mapping[str, float], positions: int) -> dict[str, float]:
    out = {}
    samples, tokens = counts["data.samples"], counts.get("data.tokens")
    if tokens is not None and positions:
        out["data.pad_ratio"] = max(0.0, 1.0 - tokens / positions)
    if tokens and "unknown" in rows:
        out["data.unk_ratio"] = float(rows["unknown"].sum()) / tokens
    if "data.masked_completions" in counts:
        out["data.masked_completion_ratio"] = counts["data.masked_completions"] / samples
    for name, signal in (("ended", "data.eos_ratio"), ("truncated", "data.truncated_ratio")):
        if name in rows:
            out[signal] = float(rows[name].mean())
    return out


def _total(rows: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    if "attention_mask" in rows:
        return rows["attention_mask"]
    if "prompt_mask" in rows and "completion_mask" in rows:
        return rows["prompt_mask"] + rows["completion_mask"]
    return None


def _prompt(rows: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    if "prompt_mask" in rows or "attention_mask" not in rows or "completion_mask" not in rows:
        return rows.get("prompt_mask")
    return rows["attention_mask"] - rows["completion_mask"]


def _blamed(rows: Mapping[str, torch.Tensor], limit: int = 16) -> dict[str, tuple[int, ...]]:
    """List the first rows behind each count."""
    marks = {"data.out_of_vocabulary": rows.get("oov"), "data.right_padded_prompts": rows.get("right_padded")}
    for name, signal in (("prompt_mask", "data.empty_prompt_rows"), ("completion_mask", "data.masked_completions")):
        if name in rows:
            marks[signal] = rows[name] == 0
    if (total := _total(rows)) is not None:
        marks["data.empty_rows"] = total == 0
    found = {signal: mark.nonzero().flatten()[:limit].tolist() for signal, mark in marks.items() if mark is not None}
    return {signal: tuple(indices) for signal, indices in found.items() if indices}
