"""Policy layer: log-probs, ratio, KL, entropy, advantages and loss, per rank, before any reduction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from grpo_sentinel.agent.probes import policy_terms as terms
from grpo_sentinel.agent.probes.advantages import advantage_terms
from grpo_sentinel.agent.probes.pack import Pack, refuse_unreadable, wide_dtype
from grpo_sentinel.agent.probes.partials import Bag
from grpo_sentinel.agent.probes.policy_finish import Meta, finish
from grpo_sentinel.agent.probes.tokens import repetition


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
    sampling_cap: float = 2.0,
    sampling_level: str = "token",
) -> Pack:
    """Read one micro-batch as it is trained on: `logp_BT` from the training forward, T completion positions.

    advantages: B or B x T. `old_logp_BT` None with `on_policy` True means old = current (ratio 1), as TRL does.
    `loss` is the local loss of this micro-batch; `loss_scale` undoes a division (gradient accumulation): what is
    reported is loss * loss_scale. `scale_rewards`: "group" (by the group's sample std; the bound holds), "batch",
    "none".
    `importance_sampling_level` "sequence" (GSPO) takes the mean log-ratio of a row for all of its tokens.
    `sampling_cap` is where the trainer truncates or masks its weights against the rollout engine (TIS), and
    `sampling_level` "sequence" says that it weights whole completions, by the product over their tokens. Without a
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
    refuse_unreadable({**inputs, "logp": logp_BT, "mask": mask_BT, "entropy": entropy_BT, "ids": completion_ids_BT})
    tokens = next((t for t in (logp_BT, entropy_BT, completion_ids_BT) if t is not None), None)
    bag = Bag()
    with torch.no_grad():
        mask = None
        if tokens is not None:
            mask = _mask(tokens, mask_BT, {**given, "entropy": entropy_BT, "completion_ids": completion_ids_BT})
        if mask is not None and mask.numel():
            epsilon = (epsilon_low, epsilon_high)
            profile = completion_ids_BT is not None
            levels, cut = (importance_sampling_level, sampling_level), (epsilon, sampling_cap)
            _token_terms(bag, logp_BT, entropy_BT, mask, given, on_policy, cut, levels, profile)
        if completion_ids_BT is not None and mask is not None:
            repetition(bag, completion_ids_BT, mask)
        if isinstance(loss, torch.Tensor):
            refuse_unreadable({"loss": loss})
            bag.put(["loss"], loss.detach())
        elif loss is not None:
            bag.put(["loss"], torch.tensor([loss]))
        if advantages is not None:
            advantage_terms(bag, advantages.detach(), mask)
        values = bag.vector(None if tokens is None else tokens.device)
    leaks = tuple(name for name, tensor in given.items() if tensor.requires_grad)
    meta = Meta(
        names=tuple(bag.names),
        columns=tuple(bag.columns),
        width=0 if tokens is None else tokens.shape[-1],
        facts=_facts(logp_BT, given, leaks),
        unit_ratio=bool(on_policy) and old_logp_BT is None and logp_BT is not None,
        settings=_settings(beta, loss_scale, vocab_size, on_policy, group_size, scale_rewards),
        leaks=leaks,
    )
    return Pack("policy", values, finish, meta)


def _mask(like: torch.Tensor, mask: torch.Tensor | None, others: Mapping[str, torch.Tensor | None]) -> torch.Tensor:
    """Give the boolean token mask; raises ValueError naming what does not fit the log-probs."""
    if like.dim() != 2:
        raise ValueError(f"tokens of shape {tuple(like.shape)}: rows x positions are needed")
    for name, other in {"mask": mask, **others}.items():
        if other is not None and other.shape != like.shape and name != "advantages":
            raise ValueError(f"{name} of shape {tuple(other.shape)} does not fit tokens of shape {tuple(like.shape)}")
    if mask is None:
        return torch.ones_like(like, dtype=torch.bool)
    return (mask if mask.dtype is torch.bool else mask != 0).to(like.device)


def _token_terms(
    bag: Bag,
    logp_BT: torch.Tensor | None,
    entropy_BT: torch.Tensor | None,
    mask: torch.Tensor,
    given: Mapping[str, torch.Tensor],
    on_policy: bool | None,
    cut: tuple[tuple[float, float], float],
    levels: tuple[str, str],
    profile: bool,
) -> None:
    """Stack what there is of log-probs and entropy, widen it once, and reduce it together.

    `cut`: where the ratio is clipped, and where weights against the rollout engine are cut; `levels` of both.
    `profile`: say where in the completion the KL sits.
    """
    epsilon, cap = cut
    level, sampling_level = levels
    device = mask.device
    kinds = {"logp": logp_BT, "entropy": entropy_BT}
    if logp_BT is not None:
        kinds.update({name: tensor for name, tensor in given.items() if name.endswith("logp")})
    held = {name: kind for name, kind in kinds.items() if kind is not None}
    if not held:
        return
    names = list(held)
    stacked = torch.stack([kind.to(device) for kind in held.values()]).to(wide_dtype(device))
    fine = dict(zip(names, terms.levels(bag, names, stacked, mask).unbind(0), strict=True))
    wide = dict(zip(names, stacked.unbind(0), strict=True))
    within = terms.quarters(mask) if "entropy" in wide or (profile and "ref_logp" in wide) else None
    if "entropy" in wide and within is not None:
        terms.entropy_by_place(bag, wide["entropy"], fine["entropy"], within)
    if logp_BT is None:
        return
    terms.log_prob_range(bag, wide["logp"], fine["logp"], mask)
    gaps = {}
    if "old_logp" in wide:
        log_ratio = wide["logp"] - wide["old_logp"]
        gaps["ratio"] = log_ratio = _row_mean(log_ratio, mask) if level == "sequence" else log_ratio
        if "advantages" in given:
            terms.clipping(bag, log_ratio, mask, _advantage(given["advantages"], device), *epsilon)
    elif on_policy and "advantages" in given:
        if given["advantages"].numel() == len(mask):
            # Advantages of rows are on their way to the host already: there only each row's tokens are missing.
            bag.column("pg_tokens", fine["logp"].sum(1))
        else:
            terms.unit_ratio(bag, fine["logp"], _advantage(given["advantages"], device))
    if "ref_logp" in wide:
        gaps["ref"] = wide["logp"] - wide["ref_logp"]
        own = torch.promote_types(logp_BT.dtype, given["ref_logp"].dtype)
        terms.overflowing_kl(bag, gaps["ref"], own, mask)
    trainer = wide.get("old_logp", wide["logp"])  # the weights that the engine sampled with, where known
    if "sampling_logp" in wide:
        gaps["engine"] = wide["sampling_logp"] - trainer
        terms.above_cap(bag, gaps["engine"], mask, cap, sequence=sampling_level == "sequence")
    if gaps:
        found = terms.gaps(bag, list(gaps), torch.stack(list(gaps.values())), mask)
        if "engine" in found:
            terms.probabilities(bag, trainer, wide["sampling_logp"], found["engine"])
        if "ref" in found and profile and within is not None:
            terms.kl_by_place(bag, found["ref"], within)


def _advantage(advantages: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Widen the advantages to B x 1 or B x T."""
    wide = advantages.detach().to(device, wide_dtype(device))
    return wide.unsqueeze(1) if wide.dim() == 1 else wide


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
    beta: float,
    loss_scale: float,
    vocab_size: int | None,
    on_policy: bool | None,
    group_size: int | None,
    scale: str | bool | None,
) -> dict[str, float]:
    out = {"beta": float(beta), "loss_scale": float(loss_scale)}
    if vocab_size:
        out["policy.entropy_max_nats"] = math.log(vocab_size)
    if on_policy is not None:
        out["policy.on_policy"] = float(on_policy)
    if group_size and group_size > 1 and (scale is True or str(scale).lower() == "group"):
        out["policy.advantage_abs_bound"] = (group_size - 1) / math.sqrt(group_size)
    return out
