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
    single: tuple[bool, ...]  # which of them are float32


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
    subjects = _spreads(raw, layout, values) if "row_sums" in raw else {}
    if "moment_squares" in raw:
        values["optimizer.nonfinite_moments"] = float((~raw["moment_squares"].isfinite()).sum())
    if "digest" in raw:
        values["optimizer.parameter_digest"] = float(raw["digest"])
    named = (NonFinite("weights", tuple(layout.names[i] for i in bad)),) if bad else ()
    return Harvest(values, nonfinite=named, subjects=subjects)


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
    if "image_same" in raw and layout.facts.get("optimizer.learning_rate", 1.0):
        rows = torch.tensor(layout.single)[layout.plan.owner].double() * layout.plan.weight
        out["optimizer.bf16_image_same_ratio"] = float(raw["image_same"] @ rows / (layout.plan.width * rows.sum()))
    return out


def _spreads(raw: dict[str, torch.Tensor], layout: Layout, values: dict[str, float]) -> dict[str, str]:
    """Largest and smallest standard deviation over the tensors of two elements or more; names those of the weights."""
    plan, subjects = layout.plan, {}
    kinds = ["weights", *(f"moment{order}" for order in (1, 2) if f"moment{order}" in raw)]
    squares = [raw["row_squares"], *(raw[kind] for kind in kinds[1:])]
    known = _by_tensor(plan.weight * plan.width, layout) > 1.5
    for kind, sums, square in zip(kinds, raw["row_sums"].view(len(kinds), -1), squares, strict=True):
        count = _by_tensor(torch.full_like(sums, plan.width), layout)
        mean = _by_tensor(sums, layout) / count
        spread = (_by_tensor(square, layout) / count - mean * mean).clamp(min=0).sqrt()
        places = (known & spread.isfinite()).nonzero().flatten()
        if not len(places):
            continue
        for what, index in (("max", spread[places].argmax()), ("min", spread[places].argmin())):
            values[f"optimizer.tensor_std_{what}[{kind}]"] = float(spread[places][index])
            if kind == "weights":
                subjects[f"optimizer.tensor_std_{what}[{kind}]"] = layout.names[int(places[index])]
    return subjects


def _by_tensor(per_row: torch.Tensor, layout: Layout) -> torch.Tensor:
    return torch.zeros(len(layout.names), dtype=torch.float64).index_add_(0, layout.plan.owner, per_row)


def _estimate(row_squares: torch.Tensor, plan: Rows) -> float:
    """Scale each sampled row up to the elements it stands for; exact where a tensor was read whole."""
    return math.sqrt(float(torch.dot(row_squares, plan.weight)))
