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
    stretches = part.values.split([length for _, length in layout.fields])
    raw = {name: stretch for (name, _), stretch in zip(layout.fields, stretches, strict=True)}
    per = norms.finish(raw["squares"], raw["low"], raw["high"], layout.pieces)
    values = dict(layout.facts)
    values.update(_weights(per))
    values.update(_updates(raw, layout, values.get("optimizer.weight_norm", math.nan)))
    for order in (1, 2):
        if f"moment{order}" in raw:
            values[f"optimizer.moment{order}_norm"] = _estimate(raw[f"moment{order}"], layout.plan)
    if "moment_squares" in raw:
        values["optimizer.nonfinite_moments"] = float((~raw["moment_squares"].isfinite()).sum())
    if "digest" in raw:
        values["optimizer.parameter_digest"] = float(raw["digest"][0])
    bad = (~per.largest.isfinite()).nonzero().flatten().tolist()
    return Harvest(values, nonfinite=(NonFinite("weights", tuple(layout.names[i] for i in bad)),) if bad else ())


def _weights(per: norms.PerTensor) -> dict[str, float]:
    out = {
        "optimizer.weight_norm": math.sqrt(float(per.squares.sum())),
        "optimizer.nonfinite_weights": float((~per.largest.isfinite()).sum()),
    }
    finite = per.largest[per.largest.isfinite()]
    if len(finite):
        out["optimizer.weight_abs_max"] = float(finite.max())
    return out


def _updates(raw: dict[str, torch.Tensor], layout: Layout, weight_norm: float) -> dict[str, float]:
    if "update" not in raw:
        return {}
    norm = _estimate(raw["update"], layout.plan)
    changed = torch.zeros(len(layout.names), dtype=torch.float64).index_add_(0, layout.plan.owner, raw["changed"])
    out = {
        "optimizer.update_norm": norm,
        "optimizer.sampled_tensors": float(len(layout.names)),
        "optimizer.unchanged_tensors": float((changed == 0).sum()),
    }
    if weight_norm > 0:
        out["optimizer.update_ratio"] = norm / weight_norm
    if "meant" in raw and float(raw["meant"][0]) and layout.facts.get("optimizer.learning_rate", 1.0):
        out["optimizer.bf16_swallowed_ratio"] = float(raw["swallowed"][0] / raw["meant"][0])
    return out


def _estimate(row_squares: torch.Tensor, plan: Rows) -> float:
    """Scale each sampled row up to the elements it stands for; exact where a tensor was read whole."""
    return math.sqrt(float((row_squares * plan.weight).sum()))
