"""Data layer: which weights sampled a batch, where an asynchronous trainer knows it. Axes: B rows, T tokens.

A version counts the hand-overs of weights to the rollout engine. Within a completion versions only rise: an engine that
takes new weights while it decodes goes on with them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_NONE_YET = torch.iinfo(torch.int64).min


def version_columns(versions: torch.Tensor, mask: torch.Tensor | None, rows: int) -> dict[str, torch.Tensor]:
    """Give each row's oldest and newest version, and how many it spans: of B or B x 1 versions, or of B x T tokens.

    Masked tokens do not count; a row without any is as new as can be. Empty where the shape fits neither rows nor mask,
    and for tensors that hold no numbers to compare (meta, complex, sparse). To be called without autograd.
    """
    if versions.is_meta or versions.dtype.is_complex or versions.layout is not torch.strided:
        return {}
    wide = versions.detach().long()
    wide = wide if mask is None else wide.to(mask.device, non_blocking=True)
    tokens = mask is not None and mask.shape == wide.shape
    if not tokens and wide.numel() == rows and wide.shape[:1] == (rows,):
        one = wide.reshape(rows)
        return {"version_old": one, "version_new": one, "version_count": torch.ones_like(one)}
    if wide.dim() != 2 or wide.shape[0] != rows or not wide.shape[1] or (mask is not None and not tokens):
        return {}
    kept = torch.ones_like(wide, dtype=torch.bool) if mask is None else mask != 0
    newest = torch.where(kept, wide, _NONE_YET).cummax(1).values
    rises = (newest[:, 1:] > newest[:, :-1]) & (newest[:, :-1] > _NONE_YET)
    oldest = torch.where(kept, wide, -(_NONE_YET + 1)).amin(1)
    return {"version_old": oldest, "version_new": newest[:, -1], "version_count": rises.sum(1) + 1}


def version_rows(
    oldest: Sequence[float], newest: Sequence[float], counts: Sequence[float], current: float
) -> dict[str, list[float]]:
    """Judge each row by the trainer's own version: its lag, is it ahead, does it span more than two versions."""
    known = [old <= new for old, new in zip(oldest, newest, strict=True)]
    return {
        "version_lag": [current - old if fine else 0.0 for old, fine in zip(oldest, known, strict=True)],
        "version_ahead": [float(fine and new > current) for new, fine in zip(newest, known, strict=True)],
        "version_spans": [float(fine and count > 2) for count, fine in zip(counts, known, strict=True)],
    }
