"""Optimizer layer, on the host: from the raw rows of a step to its signals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grpo_sentinel.agent.probes import norms
from grpo_sentinel.agent.probes.pack import Harvest, NonFinite, Part
from grpo_sentinel.agent.probes.sample import Rows


@dataclass(frozen=True, slots=True)
class Layout:
    """What the vector of one call holds, and what the host knew."""

    fields: tuple[tuple[str, int], ...]  # name and length of each stretch
    names: tuple[str, ...]  # of the weight tensors
    pieces: tuple[int, ...]
    plan: Rows
    facts: dict[str, float]


def finish(parts: Sequence[Part]) -> Harvest:
    """Turn the raw numbers of a step's last pack into signals; see the catalogue for each one's meaning."""
    part = parts[-1]
    layout: Layout = part.meta
    stretches = part.values.split_with_sizes([length for _, length in layout.fields])
    raw = {name: stretch for (name, _), stretch in zip(layout.fields, stretches, strict=True)}
    per = norms.finish(raw["weights"], layout.pieces)
    bad = per.bad()
    values = dict(layout.facts)
    values["optimizer.weight_norm"] = math.sqrt(sum(per.squares))
    values["optimizer.nonfinite_weights"] = float(len(bad))
    peak = per.peak()
    if peak is not None:
        values["optimizer.weight_abs_max"] = peak
    values.update(_updates(raw, layout, values["optimizer.weight_norm"]))
    for order in (1, 2):
        if f"moment{order}" in raw:
            values[f"optimizer.moment{order}_norm"] = _estimate(raw[f"moment{order}"], layout.plan)
    if "moment_squares" in raw:
        values["optimizer.nonfinite_moments"] = float((~raw["moment_squares"].isfinite()).sum())
    if "digest" in raw:
        values["optimizer.parameter_digest"] = float(raw["digest"])
    return Harvest(values, nonfinite=(NonFinite("weights", tuple(layout.names[i] for i in bad)),) if bad else ())


def _updates(raw: dict[str, torch.Tensor], layout: Layout, weight_norm: float) -> dict[str, float]:
    if "update" not in raw:
        return {}
    norm = _estimate(raw["update"], layout.plan)
    count = len(layout.names)
    changed = torch.zeros(count, dtype=torch.float64).index_add_(0, layout.plan.owner, raw["changed"])
    out = {
        "optimizer.update_norm": norm,
        "optimizer.sampled_tensors": float(count),
        "optimizer.unchanged_tensors": float(count - int(changed.count_nonzero())),
    }
    if weight_norm > 0:
        out["optimizer.update_ratio"] = norm / weight_norm
    if "meant" in raw and float(raw["meant"]) and layout.facts.get("optimizer.learning_rate", 1.0):
        out["optimizer.bf16_swallowed_ratio"] = float(raw["swallowed"] / raw["meant"])
    return out


def _estimate(row_squares: torch.Tensor, plan: Rows) -> float:
    """Scale each sampled row up to the elements it stands for; exact where a tensor was read whole."""
    return math.sqrt(float(torch.dot(row_squares, plan.weight)))
