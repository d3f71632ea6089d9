"""Policy layer, on the host: from the partials of a step's micro-batches to its signals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_sentinel.agent.probes.advantages import advantage_signals
from grpo_sentinel.agent.probes.pack import Harvest, Part
from grpo_sentinel.agent.probes.partials import Merged
from grpo_sentinel.agent.probes.policy_terms import unit_ratio_of_rows
from grpo_sentinel.agent.probes.tokens import repetition_signals

_KINDS = ("logp", "old_logp", "ref_logp", "sampling_logp", "entropy")


@dataclass(frozen=True, slots=True)
class Meta:
    """What the host knew about one micro-batch."""

    names: tuple[str, ...]  # of the leading values
    columns: tuple[tuple[str, int], ...]  # name and length of the columns that follow: one number per row
    width: int  # token positions of a row
    facts: dict[str, float]  # counted on the host, added over micro-batches
    settings: dict[str, float]
    unit_ratio: bool  # the old log-probs are the current ones
    leaks: tuple[str, ...]


def finish(parts: Sequence[Part]) -> Harvest:
    """Merge the micro-batches' partials, weighted by their tokens, and turn them into signals."""
    cut = [_cut(part) for part in parts]
    merged = Merged([partials for partials, _ in cut])
    settings = parts[-1].meta.settings
    found: dict[str, float | None] = {name: value for name, value in settings.items() if name.startswith("policy.")}
    for name in {name for part in parts for name in part.meta.facts}:
        found[name] = sum(part.meta.facts.get(name, 0.0) for part in parts)
    on_policy = [part.meta.settings["policy.on_policy"] for part in parts if "policy.on_policy" in part.meta.settings]
    if on_policy:
        found["policy.on_policy"] = min(on_policy)
    found.update(_loss(merged, [part.meta.settings["loss_scale"] for part in parts]))
    found.update(_levels(merged))
    found.update(_ratio(merged))
    found.update(_kl(merged, settings["beta"]))
    found.update(_sampling(merged))
    rows = [advantage for _, columns in cut for advantage in columns.get("advantage", ())]
    found.update(advantage_signals(merged, rows))
    leaks = sorted({name for part in parts for name in part.meta.leaks})
    values = {name: float(value) for name, value in found.items() if value is not None}
    return Harvest(values, subjects={"policy.input_grad_leaks": ", ".join(leaks)} if leaks else {})


def _cut(part: Part) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Cut one vector into named partials and columns, and add the partials that follow from others."""
    meta: Meta = part.meta
    numbers: list[float] = part.values.tolist()
    partials = dict(zip(meta.names, numbers))  # noqa: B905 - the columns follow
    columns, start = {}, len(meta.names)
    for name, length in meta.columns:
        columns[name] = numbers[start : start + length]
        start += length
    tokens = partials.get("sum:tokens", 0.0)
    for kind in _KINDS:
        if (count := partials.get(f"sum:{kind}_count")) is not None:
            partials[f"sum:{kind}_nonfinite"] = tokens - count
    partials.update(repetition_signals(columns, meta.width - 3))
    if "sum:engine.count" in partials:
        partials["n:probability"] = partials["sum:engine.count"]
    if "sum:ref.until3" in partials:
        partials["sum:ref.until4"] = partials["sum:ref.k3"]
    if "pg_tokens" in columns:
        partials.update(unit_ratio_of_rows(columns["pg_tokens"], columns["advantage"]))
    if meta.unit_ratio:
        partials.update(_unit_ratio(partials.get("sum:logp_count", 0.0)))
    return partials, columns


def _unit_ratio(count: float) -> dict[str, float]:
    """Give the partials of a ratio that is 1 for every token."""
    out = dict.fromkeys(("max:ratio.d", "max:ratio.abs", "sum:ratio.k3", "sum:clipped", "sum:clip_low"), 0.0)
    log_count = math.log(count) if count else -math.inf
    return {**out, "sum:ratio.count": count, "lse:ratio.d": log_count, "lse:ratio.2d": log_count}


def _loss(merged: Merged, scales: Sequence[float]) -> dict[str, float | None]:
    pairs = zip(merged.parts, scales, strict=True)
    losses = [part["loss"] * scale for part, scale in pairs if "loss" in part]
    usable = [loss for loss in losses if math.isfinite(loss)]
    if not losses:
        return {}
    return {
        "policy.loss": sum(usable) / len(usable) if usable else math.nan,
        "policy.loss_nonfinite": float(len(losses) - len(usable)),
    }


def _levels(merged: Merged) -> dict[str, float | None]:
    return {
        "policy.logp_mean_nats": _level(merged, "logp"),
        "policy.logp_min_nats": merged.low("logp"),
        "policy.logp_nonfinite": merged.sum("logp_nonfinite"),
        "policy.logp_positive": merged.sum("logp_positive"),
        "policy.old_logp_nonfinite": merged.sum("old_logp_nonfinite"),
        "policy.ref_logp_nonfinite": merged.sum("ref_logp_nonfinite"),
        "policy.sampling_logp_nonfinite": merged.sum("sampling_logp_nonfinite"),
        "policy.entropy_nats": _level(merged, "entropy"),
        "policy.entropy_nonfinite": merged.sum("entropy_nonfinite"),
        "policy.entropy_first_nats": merged.mean("entropy_first", "entropy_first_count"),
        "policy.entropy_last_nats": merged.mean("entropy_last", "entropy_last_count"),
        "policy.repetition_ratio": merged.mean("repetition", "repetition_rows"),
        "policy.single_token_ratio": merged.mean("single", "single_rows"),
    }


def _level(merged: Merged, kind: str) -> float | None:
    """Give the mean of the finite tokens; NaN where there are tokens and none is finite."""
    mean = merged.mean(kind, f"{kind}_count")
    return math.nan if mean is None and merged.sum(f"{kind}_nonfinite") else mean


def _ratio(merged: Merged) -> dict[str, float | None]:
    count = merged.sum("ratio.count")
    log_sum, log_squares, log_max = merged.log_sum("ratio.d"), merged.log_sum("ratio.2d"), merged.high("ratio.d")
    if not count or log_sum is None or log_squares is None or log_max is None:
        return {}
    clipped = merged.mean("clipped", "pg_count")
    low = merged.mean("clip_low", "pg_count")
    return {
        "policy.ratio_mean": _exp(log_sum - math.log(count)),
        "policy.ratio_max": _exp(log_max),
        "policy.log_ratio_abs_max": merged.high("ratio.abs"),
        "policy.ess_ratio": min(1.0, math.exp(2 * log_sum - log_squares - math.log(count))),
        "policy.approx_kl_nats": merged.mean("ratio.k3", "ratio.count"),
        "policy.clip_low_ratio": low,
        "policy.clip_high_ratio": None if low is None or clipped is None else clipped - low,
        "policy.clip_ratio": clipped,
        "policy.pg_loss": merged.mean("pg", "pg_count"),
    }


def _kl(merged: Merged, beta: float) -> dict[str, float | None]:
    k3, squares = merged.mean("ref.k3", "ref.count"), merged.mean("ref.square", "ref.count")
    return {
        "policy.kl_k1_nats": merged.mean("ref.d", "ref.count"),
        "policy.kl_k2_nats": None if squares is None else squares / 2,
        "policy.kl_k3_nats": k3,
        "policy.kl_k3_max_nats": merged.high("ref.k3"),
        "policy.kl_position_share": _largest_share([merged.sum(f"ref.until{k}") for k in (1, 2, 3, 4)]),
        "policy.kl_k3_overflow": merged.sum("k3_overflow"),
        "policy.kl_loss": None if k3 is None else beta * k3,
    }


def _sampling(merged: Merged) -> dict[str, float | None]:
    count, log_sum = merged.sum("engine.count"), merged.log_sum("engine.abs")
    gap, k3 = merged.mean("engine.d", "engine.count"), merged.mean("engine.k3", "engine.count")
    mean = None if gap is None or k3 is None else k3 + 1.0 - gap  # w = k3 + 1 + ln w, and ln w = -d
    return {
        "policy.sampling_gap_mean_nats": merged.mean("engine.abs", "engine.count"),
        "policy.sampling_gap_max_nats": merged.high("engine.abs"),
        "policy.sampling_correlation": merged.comoments("probability").correlation(),
        "policy.sampling_mult_error": None if not count or log_sum is None else _exp(log_sum - math.log(count)),
        "policy.sampling_confident_disagreements": merged.sum("confident"),
        "policy.sampling_k3_nats": k3,
        "policy.sampling_ppl_ratio": None if gap is None else _exp(gap),
        "policy.sampling_weight_mean": mean,
        "policy.sampling_ess_ratio": _sample_size(mean, count, merged.log_sum("engine.-2d")),
        "policy.sampling_capped_ratio": merged.mean("weights_above", "weights"),
        "policy.sampling_probability_gap_max": merged.high("probability_gap"),
    }


def _sample_size(mean: float | None, count: float | None, log_squares: float | None) -> float | None:
    """(sum w)^2 / (n sum w^2) from the mean of n weights and the logarithm of the sum of their squares."""
    if not mean or not count or log_squares is None or not math.isfinite(mean):
        return None
    return min(1.0, math.exp(2 * math.log(mean) + math.log(count) - log_squares))


def _largest_share(until: Sequence[float | None]) -> float | None:
    """Give the largest part in the whole, from running sums; None where there is nothing to share."""
    known = [value for value in until if value is not None]
    if len(known) < len(until) or not known or not 0 < known[-1] < math.inf:
        return None
    return max(b - a for a, b in zip([0.0, *known], known)) / known[-1]  # noqa: B905 - pairs of neighbours


def _exp(x: float) -> float:
    return math.exp(x) if x < 709.0 else math.inf
