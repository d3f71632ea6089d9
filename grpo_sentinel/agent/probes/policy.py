"""Policy layer: log-probs, ratio, KL, entropy, advantages and loss, per rank, before any reduction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from grpo_sentinel.agent.probes import policy_terms as terms
from grpo_sentinel.agent.probes.pack import Harvest, Pack, Part, wide_dtype
from grpo_sentinel.agent.probes.partials import Bag, Merged, finite
from grpo_sentinel.agent.probes.tokens import repetition


@dataclass(frozen=True, slots=True)
class _Meta:
    names: tuple[str, ...]
    facts: dict[str, float]  # counted on the host, added over micro-batches
    settings: dict[str, float]
    leaks: tuple[str, ...]


def observe(
    *,
    logp_BT: torch.Tensor | None = None,
    mask_BT: torch.Tensor | None = None,
    advantages: torch.Tensor | None = None,
    old_logp_BT: torch.Tensor | None = None,
    ref_logp_BT: torch.Tensor | None = None,
    sampling_logp_BT: torch.Tensor | None = None,
    entropy_BT: torch.Tensor | None = None,
    completion_ids_BT: torch.Tensor | None = None,
    loss: torch.Tensor | float | None = None,
    loss_scale: float = 1.0,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
    beta: float = 0.0,
    vocab_size: int | None = None,
    on_policy: bool | None = None,
    group_size: int | None = None,
    scale_rewards: str | bool | None = "group",
    importance_sampling_level: str = "token",
) -> Pack:
    """Read one micro-batch as it is trained on: `logp_BT` from the training forward, T completion positions.

    advantages: B or B x T. `old_logp_BT` None with `on_policy` True means old = current (ratio 1), as TRL does.
    `loss` is the local loss of this micro-batch; `loss_scale` undoes a division (gradient accumulation): what is
    reported is loss * loss_scale. `scale_rewards`: "group" (by the group's sample std; the bound holds), "batch",
    "none".
    `importance_sampling_level` "sequence" (GSPO) takes the mean log-ratio of a row for all of its tokens. Without a
    mask every position counts. Raises ValueError when shapes contradict. Runs without autograd, never synchronises,
    changes and keeps no tensor.
    """
    inputs = {
        "old_logp": old_logp_BT,
        "ref_logp": ref_logp_BT,
        "sampling_logp": sampling_logp_BT,
        "advantages": advantages,
    }
    given = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    tokens = next((t for t in (logp_BT, entropy_BT, completion_ids_BT) if t is not None), None)
    bag = Bag()
    with torch.no_grad():
        mask = None
        if tokens is not None:
            mask = _mask(tokens, mask_BT, {**given, "entropy": entropy_BT, "completion_ids": completion_ids_BT})
        if logp_BT is not None and mask is not None:
            _token_terms(bag, logp_BT, mask, given, on_policy, (epsilon_low, epsilon_high), importance_sampling_level)
        if entropy_BT is not None and mask is not None:
            terms.entropy(bag, entropy_BT.detach().to(wide_dtype(entropy_BT.device)), mask)
        if completion_ids_BT is not None and mask is not None:
            repetition(bag, completion_ids_BT, mask)
        if advantages is not None:
            terms.advantages(bag, *_per_row_or_token(advantages.detach(), mask))
        if loss is not None:
            bag.put(
                ["loss"],
                loss.detach() * loss_scale if isinstance(loss, torch.Tensor) else torch.tensor([loss * loss_scale]),
            )
        values = bag.vector(None if tokens is None else tokens.device)
    leaks = tuple(name for name, tensor in given.items() if tensor.requires_grad)
    meta = _Meta(
        names=tuple(bag.names),
        facts=_facts(logp_BT, given, leaks),
        settings=_settings(beta, vocab_size, on_policy, group_size, scale_rewards),
        leaks=leaks,
    )
    return Pack("policy", values, finish, meta)


def _mask(like: torch.Tensor, mask: torch.Tensor | None, others: Mapping[str, torch.Tensor | None]) -> torch.Tensor:
    """Give the boolean token mask; raises ValueError naming what does not fit the log-probs."""
    for name, other in {"mask": mask, **others}.items():
        if other is not None and other.shape != like.shape and name != "advantages":
            raise ValueError(f"{name} of shape {tuple(other.shape)} does not fit tokens of shape {tuple(like.shape)}")
    return torch.ones_like(like, dtype=torch.bool) if mask is None else (mask != 0).to(like.device)


def _per_row_or_token(advantages: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    if advantages.dim() < 2 or advantages.shape[1] == 1:
        return advantages.flatten(), None
    return advantages, None if mask is None or mask.shape != advantages.shape else mask.to(advantages.device)


def _token_terms(
    bag: Bag,
    logp_BT: torch.Tensor,
    mask: torch.Tensor,
    given: Mapping[str, torch.Tensor],
    on_policy: bool | None,
    epsilon: tuple[float, float],
    level: str,
) -> None:
    device, wide = logp_BT.device, wide_dtype(logp_BT.device)
    moved = {name: tensor.detach().to(device) for name, tensor in given.items()}
    logp, old = logp_BT.detach().to(wide), moved.get("old_logp")
    terms.log_probs(bag, logp, mask)
    if old is not None:
        bag.count("old_nonfinite", mask & ~finite(old))
    if old is not None or on_policy:
        log_ratio = logp - (logp if old is None else old.to(wide))
        if level == "sequence":
            log_ratio = _row_mean(log_ratio, mask)
        advantage = moved.get("advantages")
        if advantage is not None:
            advantage = (advantage.unsqueeze(1) if advantage.dim() == 1 else advantage).to(wide).expand_as(logp)
        terms.ratio(bag, log_ratio, mask, advantage, *epsilon)
    if "ref_logp" in moved:
        terms.reference_kl(bag, logp_BT.detach(), moved["ref_logp"], mask)
    if "sampling_logp" in moved:
        trainer = logp if old is None else old.to(wide)  # the weights that the engine sampled with, where known
        terms.sampling_gap(bag, trainer, moved["sampling_logp"].to(wide), mask)


def _row_mean(log_ratio: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    kept = torch.where(mask, log_ratio, 0.0).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return kept.expand_as(log_ratio)


def _facts(logp: torch.Tensor | None, given: Mapping[str, torch.Tensor], leaks: Sequence[str]) -> dict[str, float]:
    facts = {"policy.input_grad_leaks": float(len(leaks))}
    if logp is not None:
        log_probs = [tensor for name, tensor in given.items() if name.endswith("logp")]
        facts["policy.loss_dtype_mismatch"] = float(sum(tensor.dtype != logp.dtype for tensor in log_probs))
        facts["policy.loss_device_mismatch"] = float(sum(tensor.device != logp.device for tensor in given.values()))
    return facts


def _settings(
    beta: float, vocab_size: int | None, on_policy: bool | None, group_size: int | None, scale: str | bool | None
) -> dict[str, float]:
    out = {"beta": float(beta)}
    if vocab_size:
        out["policy.entropy_max_nats"] = math.log(vocab_size)
    if on_policy is not None:
        out["policy.on_policy"] = float(on_policy)
    if group_size and group_size > 1 and (scale is True or str(scale).lower() == "group"):
        out["policy.advantage_abs_bound"] = (group_size - 1) / math.sqrt(group_size)
    return out


def finish(parts: Sequence[Part]) -> Harvest:
    """Merge the micro-batches' partials, weighted by their tokens, and turn them into signals."""
    merged = Merged(parts, [part.meta.names for part in parts])
    settings = parts[-1].meta.settings
    found: dict[str, float | None] = {name: value for name, value in settings.items() if name != "beta"}
    for name in {name for part in parts for name in part.meta.facts}:
        found[name] = sum(part.meta.facts.get(name, 0.0) for part in parts)
    on_policy = [part.meta.settings["policy.on_policy"] for part in parts if "policy.on_policy" in part.meta.settings]
    if on_policy:
        found["policy.on_policy"] = min(on_policy)
    found.update(_loss(merged))
    found.update(_log_probs(merged))
    found.update(_ratio(merged))
    found.update(_kl(merged, settings["beta"]))
    found.update(_sampling(merged))
    found.update(_advantages(merged))
    leaks = sorted({name for part in parts for name in part.meta.leaks})
    values = {name: float(value) for name, value in found.items() if value is not None}
    return Harvest(values, subjects={"policy.input_grad_leaks": ", ".join(leaks)} if leaks else {})


def _loss(merged: Merged) -> dict[str, float | None]:
    losses = merged.column("loss")
    usable = [loss for loss in losses if math.isfinite(loss)]
    if not losses:
        return {}
    return {
        "policy.loss": sum(usable) / len(usable) if usable else None,
        "policy.loss_nonfinite": float(len(losses) - len(usable)),
    }


def _log_probs(merged: Merged) -> dict[str, float | None]:
    return {
        "policy.logp_mean_nats": merged.mean("logp", "logp_count"),
        "policy.logp_min_nats": merged.low("logp"),
        "policy.logp_nonfinite": merged.sum("logp_nonfinite"),
        "policy.logp_positive": merged.sum("logp_positive"),
        "policy.old_logp_nonfinite": merged.sum("old_nonfinite"),
        "policy.ref_logp_nonfinite": merged.sum("ref_nonfinite"),
        "policy.entropy_nats": merged.mean("entropy", "entropy_count"),
        "policy.entropy_nonfinite": merged.sum("entropy_nonfinite"),
        "policy.entropy_first_nats": merged.mean("entropy_first", "entropy_first_count"),
        "policy.entropy_last_nats": merged.mean("entropy_last", "entropy_last_count"),
        "policy.repetition_ratio": merged.mean("repetition", "repetition_rows"),
        "policy.single_token_ratio": merged.mean("single", "single_rows"),
    }


def _ratio(merged: Merged) -> dict[str, float | None]:
    count = merged.sum("ratio_count")
    log_sum, log_squares, log_max = merged.log_sum("ratio"), merged.log_sum("ratio_squared"), merged.high("log_ratio")
    if not count or log_sum is None or log_squares is None or log_max is None:
        return {}
    low, high = merged.mean("clip_low", "clip_count"), merged.mean("clip_high", "clip_count")
    return {
        "policy.ratio_mean": _exp(log_sum - math.log(count)),
        "policy.ratio_max": _exp(log_max),
        "policy.log_ratio_abs_max": merged.high("log_ratio_abs"),
        "policy.ess_ratio": min(1.0, math.exp(2 * log_sum - log_squares - math.log(count))),
        "policy.approx_kl_nats": merged.mean("approx_kl", "ratio_count"),
        "policy.clip_low_ratio": low,
        "policy.clip_high_ratio": high,
        "policy.clip_ratio": None if low is None or high is None else low + high,
        "policy.pg_loss": merged.mean("pg", "clip_count"),
    }


def _kl(merged: Merged, beta: float) -> dict[str, float | None]:
    k3 = merged.mean("k3", "kl_count")
    return {
        "policy.kl_k1_nats": merged.mean("k1", "kl_count"),
        "policy.kl_k2_nats": merged.mean("k2", "kl_count"),
        "policy.kl_k3_nats": k3,
        "policy.kl_k3_max_nats": merged.high("k3"),
        "policy.kl_k3_min_nats": merged.low("k3"),
        "policy.kl_k3_overflow": merged.sum("k3_overflow"),
        "policy.kl_loss": None if k3 is None else beta * k3,
    }


def _sampling(merged: Merged) -> dict[str, float | None]:
    count, log_sum = merged.sum("gap_count"), merged.log_sum("gap")
    return {
        "policy.sampling_logp_nonfinite": merged.sum("gap_nonfinite"),
        "policy.sampling_gap_mean_nats": merged.mean("gap", "gap_count"),
        "policy.sampling_gap_max_nats": merged.high("gap"),
        "policy.sampling_correlation": merged.comoments("probability").correlation(),
        "policy.sampling_mult_error": None if not count or log_sum is None else _exp(log_sum - math.log(count)),
        "policy.sampling_confident_disagreements": merged.sum("gap_confident"),
        "policy.sampling_k3_nats": merged.mean("gap_k3", "gap_count"),
    }


def _advantages(merged: Merged) -> dict[str, float | None]:
    moments = merged.moments("advantage")
    return {
        "policy.advantage_mean": moments.mean if moments.count else None,
        "policy.advantage_std": moments.std(),
        "policy.advantage_abs_max": merged.high("advantage"),
        "policy.advantage_nonfinite": merged.sum("advantage_nonfinite"),
        "policy.advantage_zero_ratio": merged.mean("advantage_zero", "advantage_rows"),
    }


def _exp(x: float) -> float:
    return math.exp(x) if x < 709.0 else math.inf
