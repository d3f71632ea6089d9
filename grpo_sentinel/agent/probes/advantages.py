"""Policy layer: advantages, one per row (the usual case, copied whole) or one per token (reduced on the device)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from grpo_sentinel.agent.probes.pack import wide_dtype
from grpo_sentinel.agent.probes.partials import Bag, Merged, finite
from grpo_sentinel.stats import Moments


def advantage_terms(bag: Bag, advantages: torch.Tensor, mask: torch.Tensor | None) -> None:
    """Put per-token advantages (B x T) into the bag reduced, per-row ones (B, B x 1) as they are."""
    if advantages.dim() < 2 or advantages.shape[1] == 1:
        bag.column("advantage", advantages)
        return
    wide = advantages.to(wide_dtype(advantages.device))
    keep = (
        mask.to(wide.device)
        if mask is not None and mask.shape == wide.shape
        else torch.ones_like(wide, dtype=torch.bool)
    )
    fine = finite(wide) & keep
    count, rows = fine.sum(), keep.any(1)
    mean = torch.where(fine, wide, 0.0).sum() / count.clamp(min=1)
    bag.put(["n:advantage", "sum:advantage_nonfinite"], torch.stack([count, keep.sum() - count]))
    bag.put(["mean:advantage", "m2:advantage"], torch.stack([mean, torch.where(fine, wide - mean, 0.0).square().sum()]))
    bag.put(["max:advantage"], torch.where(fine, wide.abs(), -math.inf).amax())
    zero = (~keep | (wide == 0)).all(1) & rows
    bag.put(["sum:advantage_zero", "sum:advantage_rows"], torch.stack([zero, rows]).sum(1))


def advantage_signals(merged: Merged, rows: Sequence[float]) -> dict[str, float | None]:
    """Merge the micro-batches of either kind; `rows`: the per-row ones. A row is zero when all its advantages are."""
    moments = Moments.of(rows)
    for part in merged.parts:
        if part.get("n:advantage"):
            top = part["max:advantage"]
            moments = moments.merge(
                Moments(part["n:advantage"], part["mean:advantage"], part["m2:advantage"], -top, top)
            )
    count = len(rows) + (merged.sum("advantage_rows") or 0.0)
    if not count:
        return {}
    zero = list(rows).count(0.0) + (merged.sum("advantage_zero") or 0.0)
    return {
        "policy.advantage_mean": moments.mean if moments.count else None,
        "policy.advantage_std": moments.std(),
        "policy.advantage_abs_max": max(moments.high, -moments.low) if moments.count else None,
        "policy.advantage_nonfinite": moments.nonfinite + (merged.sum("advantage_nonfinite") or 0.0),
        "policy.advantage_zero_ratio": zero / count,
    }
