"""Gradient layer: every parameter's norm, max and non-finite state, and a hashed sample for mean and percentiles.

On the device: three numbers per tensor (per cache-sized piece on the CPU) and a sample of a few thousand elements. All
sums, names and percentiles are made on the host at harvest. No gradient is copied, joined or kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from grpo_sentinel.agent.probes import norms, sample
from grpo_sentinel.agent.probes.flat import flat, local, plain_name
from grpo_sentinel.agent.probes.pack import Harvest, NonFinite, Pack, Part, vector

_BLOCK = re.compile(r"^(.*?\.\d+)\.")
_LINEAR = ("norm_local", "norm_preclip", "abs_max", "abs_mean", "abs_p50", "abs_p95", "abs_p99", "std", "group_norm")
_QUANTILES = {"gradient.abs_p50": 0.50, "gradient.abs_p95": 0.95, "gradient.abs_p99": 0.99}


@dataclass(frozen=True, slots=True)
class GradientPack(Pack):
    """A pack with the local L2 norm still on the device, for the gate."""

    norm: torch.Tensor | None = None
    """0-d float64: L2 norm of what this rank holds; not finite when any gradient is not, or when it overflows."""


@dataclass(frozen=True, slots=True)
class _Meta:
    names: tuple[str, ...]
    elements: int
    pieces: tuple[int, ...]
    groups: tuple[str, ...]  # group of each name
    facts: dict[str, float]
    clip_limit: float | None
    global_norm: bool  # the norm over all ranks is known here
    scale: float


@lru_cache(maxsize=65536)
def block_of(name: str) -> str:
    """Name the block of layers of a parameter: `model.layers.3.mlp.up_proj.weight` -> `model.layers.3`."""
    found = _BLOCK.match(name)
    return found.group(1) if found else name.rpartition(".")[0] or name


def observe(
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
    *,
    norm_preclip: torch.Tensor | float | None = None,
    clip_limit: float | None = None,
    sharded: bool | None = None,
    group_of: Callable[[str], str] = block_of,
    sample_size: int = 8192,
) -> GradientPack:
    """Read the gradients before clipping: `.grad` of every named parameter, as local shards (DTensor, FSDP1, FSDP2).

    `norm_preclip` is the global norm that the trainer computed (tensor or float). Without it the local one stands in,
    unless gradients are sharded: then there is none (the daemon adds the ranks' `gradient.norm_local`). `sharded`: None
    looks for DTensor; say True for FSDP1, whose pieces look like plain tensors. `clip_limit` is max_grad_norm (None,
    0 or inf: no clipping). A parameter that stands twice (tied weights) counts once. Does not synchronise (but for
    sparse gradients on CUDA), joins no gradients, changes and keeps none. Raises nothing for empty, 0-d, complex or
    frozen parameters; gradients that cannot be read are counted in `gradient.unread_tensors`.
    """
    seen: set[int] = set()
    named: list[tuple[str, Any]] = []
    missing = 0
    for name, parameter in named_parameters:
        if id(parameter) in seen:
            continue
        seen.add(id(parameter))
        gradient = parameter.grad
        if gradient is not None:
            named.append((name, gradient))
        elif parameter.requires_grad:
            missing += 1
    return observe_tensors(
        named,
        missing=missing,
        norm_preclip=norm_preclip,
        clip_limit=clip_limit,
        sharded=sharded,
        group_of=group_of,
        sample_size=sample_size,
    )


def observe_tensors(
    named_gradients: Iterable[tuple[str, Any]],
    *,
    missing: int = 0,
    norm_preclip: torch.Tensor | float | None = None,
    clip_limit: float | None = None,
    sharded: bool | None = None,
    group_of: Callable[[str], str] = block_of,
    sample_size: int = 8192,
    scale: float = 1.0,
) -> GradientPack:
    """Do what `observe` does for gradients listed one by one, as `sources` lists them for DeepSpeed.

    `scale`: what the engine has multiplied them by (fp16 loss scaling); the signals are of the true gradients.
    """
    names, flats = [], []
    shards = False
    facts = {"gradient.missing_tensors": float(missing), "gradient.unread_tensors": 0.0, "gradient.sparse_tensors": 0.0}
    with torch.no_grad():
        for name, gradient in named_gradients:
            view = flat(gradient)
            if view is None:
                facts["gradient.unread_tensors"] += 1
                continue
            if gradient.layout is not torch.strided:
                facts["gradient.sparse_tensors"] += 1
            if type(gradient) is not torch.Tensor:
                shards = shards or hasattr(gradient, "to_local")
            names.append(plain_name(name))
            flats.append(view)
        extremes = norms.read(flats)
        norm = extremes.norm()
        device = norm.device
        preclip = _preclip(norm_preclip, norm, shards if sharded is None else sharded)
        values = vector(
            [
                extremes.raw,
                *([] if preclip is None else [preclip]),
                _sampled(flats, sample_size),
            ],
            device,
        )
    meta = _Meta(
        names=tuple(names),
        elements=sum(view.numel() for view in flats),
        pieces=extremes.pieces,
        groups=tuple(group_of(name) for name in names),
        facts=facts,
        clip_limit=clip_limit,
        global_norm=preclip is not None,
        scale=scale,
    )
    return GradientPack("gradient", values, finish, meta, norm)


def _preclip(given: torch.Tensor | float | None, norm: torch.Tensor, sharded: bool) -> torch.Tensor | None:
    """Find the global norm without a collective: 0-d, or None when this rank does not know it."""
    if isinstance(given, torch.Tensor):
        if any(not placement.is_replicate() for placement in getattr(given, "placements", ())):
            return None  # a partial result: full_tensor() would be a collective
        return local(given)
    if given is not None:
        return torch.tensor(float(given), dtype=torch.float64)
    return None if sharded else norm


def _sampled(flats: Sequence[torch.Tensor], size: int) -> torch.Tensor:
    numels = tuple(view.numel() for view in flats)
    if not sum(numels) or not size:
        return torch.empty(0)
    plan = sample.spread(numels, tuple(str(view.device) for view in flats), size)
    taken = sample.gather(flats, plan)
    # The modulus alone: a complex gradient has no sign to average, and the host reads real numbers.
    return taken.abs() if taken.dtype.is_complex else taken


def finish(parts: Sequence[Part]) -> Harvest:
    """Turn the raw numbers of a step's last pack into signals; see the catalogue for each one's meaning."""
    part = parts[-1]
    meta: _Meta = part.meta
    count, known = 3 * sum(meta.pieces), int(meta.global_norm)
    raw, preclip, sampled = part.values.split_with_sizes([count, known, len(part.values) - count - known])
    per = norms.finish(raw, meta.pieces)
    values = {"gradient.tensors": float(len(meta.names)), **meta.facts}
    values.update(_norms(per, meta))
    values.update(_clipping(preclip.tolist(), meta.clip_limit))
    values.update(_counts(per, empty=meta.pieces.count(0)))
    values.update(_distribution(sampled, values["gradient.norm_local"], meta.elements))
    if meta.scale != 1.0:
        values.update({name: x / meta.scale for name, x in values.items() if name[9:].partition("[")[0] in _LINEAR})
    bad = per.bad()
    nonfinite = (NonFinite("after_reduce", tuple(meta.names[i] for i in bad)),) if bad else ()
    subjects = {}
    if "gradient.top_share" in values:
        subjects["gradient.top_share"] = meta.names[per.squares.index(max(per.squares))]
    return Harvest(values, nonfinite, subjects=subjects)


def _norms(per: norms.PerTensor, meta: _Meta) -> dict[str, float]:
    total = sum(per.squares)
    values = {"gradient.norm_local": math.sqrt(total)}
    peak = per.peak()
    if peak is not None:
        values["gradient.abs_max"] = peak
    if 0 < total < math.inf:
        values["gradient.top_share"] = max(per.squares) / total
    by_group: dict[str, float] = {}
    for group, square in zip(meta.groups, per.squares, strict=True):
        by_group[group] = by_group.get(group, 0.0) + square
    values.update({f"gradient.group_norm[{group}]": math.sqrt(square) for group, square in by_group.items()})
    return values


def _clipping(known: list[float], limit: float | None) -> dict[str, float]:
    values = {"gradient.norm_preclip": known[0]} if known else {}
    if limit is None or not 0 < limit < math.inf:
        return {**values, "gradient.clip_coefficient": 1.0}
    values["gradient.clip_limit"] = limit
    for norm in known:
        # torch.nn.utils.clip_grad_norm_: the coefficient is clamped to 1, and NaN stays NaN.
        values["gradient.clip_coefficient"] = norm if math.isnan(norm) else min(1.0, limit / (norm + 1e-6))
    return values


def _counts(per: norms.PerTensor, *, empty: int) -> dict[str, float]:
    nan = infinite = overflow = 0.0
    if not per.all_finite:
        nan, infinite = float(sum(map(math.isnan, per.largest))), float(sum(map(math.isinf, per.largest)))
    else:
        overflow = float(math.inf in per.squares)
    return {
        "gradient.nonfinite_tensors": nan + infinite,
        "gradient.nan_tensors": nan,
        "gradient.inf_tensors": infinite,
        "gradient.norm_overflow": overflow,
        "gradient.zero_tensors": float(per.largest.count(0.0) - empty),  # nothing in it is not zero in it
    }


def _distribution(sampled: torch.Tensor, norm: float, elements: int) -> dict[str, float]:
    """Mean, deviation and percentiles of |g|; the deviation takes its second moment from the exact norm."""
    total = float(sampled.sum())
    if not math.isfinite(total):
        sampled = sampled[sampled.isfinite()]
        total = float(sampled.sum())
    count = len(sampled)
    if not count:
        return {}
    size = sampled.abs()
    values = {"gradient.abs_mean": float(size.mean())}
    for name, q in _QUANTILES.items():
        values[name] = float(size.kthvalue(math.ceil(q * count)).values)  # a tenth of the cost of sorting
    if count == elements:
        values["gradient.std"] = float(sampled.std(correction=0))
    elif math.isfinite(norm):
        mean = total / count
        values["gradient.std"] = math.sqrt(max(0.0, norm * norm / elements - mean * mean))
    return values
