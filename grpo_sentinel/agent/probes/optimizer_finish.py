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
    dtypes: tuple[torch.dtype, ...]  # of the same
    optimizer: int  # which one, where a loop has several


_ROOT_OF_SQUARES = ("update_norm", "weight_norm", "moment1_norm", "moment2_norm")
_ADDED = (
    "nonfinite_weights", "nonfinite_moments", "sampled_tensors", "unchanged_tensors", "stale_parameters",
    "state_shape_mismatch",
)  # fmt: skip
_LARGEST = ("weight_abs_max", "low_precision_weights", "step_skipped", "scaler_skips", "tensor_std_max")
_SMALLEST = ("step_applied", "tensor_std_min", "unheld_parameters")
_RATES = ("learning_rate", "learning_rate_expected")
_DIGESTS = 1 << 52


def finish(parts: Sequence[Part]) -> Harvest:
    """Turn the raw numbers of a step into signals, of all optimizers together; see the catalogue for their meaning.

    Of an optimizer that was called several times the last call counts.
    """
    newest = {part.meta.optimizer: part for part in parts}
    found = [_one(part) for part in newest.values()]
    values = found[0].values if len(found) == 1 else _together([one.values for one in found])
    _shares(values)
    return Harvest(
        values,
        nonfinite=tuple(bad for one in found for bad in one.nonfinite),
        subjects={signal: name for one in found for signal, name in one.subjects.items()},
    )


def _together(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """Merge what several optimizers say; the learning rate is of the one that has a schedule, else of the first."""
    out: dict[str, float] = {}
    scheduled = next((values for values in found if "optimizer.learning_rate_expected" in values), found[0])
    for name in {name: None for values in found for name in values}:
        numbers = [values[name] for values in found if name in values]
        kind = name.partition(".")[2].partition("[")[0]
        if kind in _ROOT_OF_SQUARES:
            out[name] = math.sqrt(math.fsum(number * number for number in numbers))
        elif kind in _ADDED or not kind:
            out[name] = sum(numbers)
        elif kind in _LARGEST:
            out[name] = max(numbers)
        elif kind in _SMALLEST:
            out[name] = min(numbers)
        elif kind == "parameter_digest":
            digest = 0
            for number in numbers:
                digest = (digest * 31 + int(number)) % _DIGESTS
            out[name] = float(digest)
        else:
            out[name] = scheduled.get(name, numbers[0]) if kind in _RATES else numbers[-1]
    return out


def _shares(values: dict[str, float]) -> None:
    """Divide what can be divided only now that the parts are together."""
    weight, update = values.get("optimizer.weight_norm", 0.0), values.get("optimizer.update_norm")
    if update is not None and weight > 0:
        values["optimizer.update_ratio"] = update / weight
    for signal, part, whole in (
        ("optimizer.bf16_swallowed_ratio", "swallowed", "meant"),
        ("optimizer.bf16_image_same_ratio", "image_same", "image_of"),
        ("optimizer.gradient_spike_ratio", "spiked", "spiked_of"),
    ):
        top, bottom = values.pop(part, 0.0), values.pop(whole, 0.0)
        if bottom:
            values[signal] = top / bottom


def _one(part: Part) -> Harvest:
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
    values.update(_updates(raw, layout))
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


def _updates(raw: dict[str, torch.Tensor], layout: Layout) -> dict[str, float]:
    """Give the signals, and without a layer's name the sums that shares are made of."""
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
    for name in ("spiked", "spiked_of"):
        if name in raw:
            out[name] = float(raw[name] @ layout.plan.weight)
    if not layout.facts.get("optimizer.learning_rate", 1.0):
        return out
    if "meant" in raw:
        out["meant"], out["swallowed"] = float(raw["meant"]), float(raw["swallowed"])
    if "image_same" in raw:
        single = torch.tensor([dtype is torch.float32 for dtype in layout.dtypes])
        rows = single[layout.plan.owner].double() * layout.plan.weight
        out["image_same"], out["image_of"] = float(raw["image_same"] @ rows), float(layout.plan.width * rows.sum())
    return out


def _spreads(raw: dict[str, torch.Tensor], layout: Layout, values: dict[str, float]) -> dict[str, str]:
    """Largest and smallest standard deviation over the real tensors of two elements or more; names the weights."""
    plan, subjects = layout.plan, {}
    kinds = ["weights", *(f"moment{order}" for order in (1, 2) if f"moment{order}" in raw)]
    known = _by_tensor(plan.weight * plan.width, layout) > 1.5
    known &= torch.tensor([not dtype.is_complex for dtype in layout.dtypes], dtype=torch.bool)
    for kind, sums, square in zip(
        kinds, *(raw[x].view(len(kinds), -1) for x in ("row_sums", "row_squares")), strict=True
    ):
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
