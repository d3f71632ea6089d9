"""What the numbers of one step mean: bounds first (no baseline is needed), then limits. Sources: MISSION S17-S24."""

from __future__ import annotations

import math
from dataclasses import asdict

import torch

from grpo_sentinel.preflight.findings import Findings
from grpo_sentinel.preflight.kl_coefficient import WANTED, advise
from grpo_sentinel.preflight.live.loading import Loaded
from grpo_sentinel.preflight.live.padding import PaddingGap
from grpo_sentinel.preflight.live.rollout import Batch
from grpo_sentinel.preflight.live.scoring import Scores, Terms, k3, masked_mean, own_error
from grpo_sentinel.preflight.policy import PolicyOptions
from grpo_sentinel.preflight.reward_head import MOST, HeadLoss

_TOLERANCE = {"float64": 1e-6, "float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}  # nats, mean over tokens
_KL_AT_START = {"float64": 1e-6, "float32": 1e-4, "float16": 1e-3, "bfloat16": 1e-2}
_KL_PADDED = 0.05  # where one of the two has more rows than tokens: they take a little probability
_MOST_KL = 1.0
_COLLAPSED = 0.01  # of ln(vocabulary)
_RANDOM = 0.95


def samples(found: Findings, policy: Loaded, batch: Batch, wanted: int) -> None:
    """What was sampled."""
    count, tokens = len(batch.samples), int(batch.completion_BC.sum())
    found.looked_at.append(
        f"{count} completions in groups of {batch.group_size}, {tokens:,} tokens, sampled by the policy in "
        f"{policy.dtype} on {policy.device.type}"
    )
    if count < wanted:
        found.not_seen.append(f"{wanted - count} of {wanted} samples: the time was up (--timeout, --device)")
    if batch.cut > count / 2:
        found.notes.append(f"{batch.cut} of {count} completions were cut at {batch.width} tokens (--max-tokens)")
    found.facts["samples"] = {"count": count, "tokens": tokens, "cut": batch.cut, "vocabulary": policy.vocabulary}


def numbers(found: Findings, policy: Loaded, batch: Batch, own: Scores) -> None:
    """Logits finite; no probability lost to the dtype (S24)."""
    tokens = max(1, int(batch.completion_BC.sum()))
    masked = own.infinite_logits
    if own.nonfinite_logits > masked:
        found.broken("non-finite-logits", f"{own.nonfinite_logits - masked:,} logits are NaN or +infinite",
                     "float16 overflows at 65,504: use bfloat16, and look at the weights")  # fmt: skip
    elif masked:
        found.doubtful("masked-logits", f"{masked:,} logits are -infinite: p log p and the KL on logits give NaN there",
                       "mask with a large negative number, or sum over the finite entries only")  # fmt: skip
    if own.lost_tokens:
        found.doubtful(
            "underflow", f"log(softmax) is -infinite for {own.lost_tokens} of {tokens:,} tokens in {policy.dtype}",
            "use log_softmax, in float32", own.lost_tokens,
        )  # fmt: skip
    elif own.lost_entries:
        share = own.lost_entries / (tokens * policy.vocabulary)
        found.notes.append(
            f"softmax in {policy.dtype} is exactly 0 for {share:.1%} of the vocabulary: log(softmax) and p log p by "
            "hand give infinities and NaN there; log_softmax does not"
        )
    bad = int((~torch.isfinite(own.logp_BC[batch.completion_BC.cpu()])).sum())
    if bad:
        found.broken("non-finite-log-probs", f"{bad} of {tokens:,} log-probs of sampled tokens are not finite",
                     "see logits, mask and dtype")  # fmt: skip
    found.facts["logits"] = {
        "largest": own.largest_logit, "non_finite": own.nonfinite_logits,
        "zero_probabilities": own.lost_entries / (tokens * policy.vocabulary),
    }  # fmt: skip
    found.looked_at.append("logits and log-probs: finite, and what softmax loses in this dtype")


def own_samples(found: Findings, policy: Loaded, batch: Batch, own: Scores) -> None:
    """Mean NLL of the policy's own samples is its entropy, within chance, and below ln(vocabulary)."""
    mask = batch.completion_BC.cpu()
    nll, entropy = masked_mean(-own.logp64_BC, mask), masked_mean(own.entropy64_BC, mask)
    top = math.log(policy.vocabulary)
    error = own_error(own, mask)
    found.facts["own_samples"] = {"nll": nll, "entropy": entropy, "standard_error": error, "ln_vocabulary": top}
    found.looked_at.append("mean NLL of its own samples against its entropy and ln(vocabulary)")
    if entropy > _RANDOM * top or nll > _RANDOM * top:
        found.broken(
            "weights-not-loaded",
            f"its entropy is {entropy:.3f} nats of at most ln({policy.vocabulary:,}) = {top:.3f}: it knows nothing",
            "the weights never loaded: see names, prefixes and the path",
        )
    elif abs(nll - entropy) > 6 * error + 0.02:
        found.broken(
            "samples-not-own",
            f"NLL of its own samples is {nll:.3f}, its entropy {entropy:.3f} nats (standard error {error:.3f})",
            "what samples is not what scores: see temperature, top_k, logit processors, and position ids",
        )
    elif entropy < _COLLAPSED * top:
        found.doubtful("entropy-collapsed", f"its entropy is {entropy:.2g} nats: the samples of a group are all alike",
                       "raise the temperature, or go back to an earlier checkpoint")  # fmt: skip


def precision(found: Findings, policy: Loaded, batch: Batch, own: Scores, reference: Scores | None) -> None:
    """Masked KL and entropy as the trainer computes them against float64 (S23)."""
    mask = batch.completion_BC.cpu()
    pairs = {"entropy": (masked_mean(own.entropy_BC, mask), masked_mean(own.entropy64_BC, mask))}
    if reference is not None:
        ours, exact = k3(own.logp_BC, reference.logp_BC), k3(own.logp64_BC, reference.logp64_BC)
        pairs["kl"] = (masked_mean(ours, mask), masked_mean(exact, mask))
    for name, (computed, exact_mean) in pairs.items():
        limit = _TOLERANCE[policy.dtype] * max(1.0, abs(exact_mean))
        if not abs(computed - exact_mean) <= limit:
            found.doubtful("precision", f"{name} is {computed:.4g} in {policy.dtype} and {exact_mean:.4g} in float64",
                           "upcast the logits to float32 before log_softmax")  # fmt: skip
    found.facts["float64"] = {name: {"computed": a, "float64": b} for name, (a, b) in pairs.items()}
    found.looked_at.append(f"masked {' and '.join(pairs)} against float64")


def padding(found: Findings, policy: Loaded, gap: PaddingGap) -> None:
    """Padding must change nothing (S23)."""
    limit = _TOLERANCE[policy.dtype]
    found.facts["padding"] = asdict(gap)
    found.looked_at.append(f"padding: {gap.samples} samples with more of it, and alone without any")
    if not max(gap.wider, gap.alone) <= limit:
        found.broken(
            "padding", f"log-probs move by {max(gap.wider, gap.alone):.3g} nats when padding is added or taken away "
            f"(limit {limit:g})", "pass attention_mask, and position_ids where positions are absolute",
        )  # fmt: skip


def reference_gap(
    found: Findings, batch: Batch, own: Scores, reference: Scores | None, trained: bool, dtype: str
) -> None:
    """KL to the reference: 0 before the first update, seldom above 1 after it (S18); k3 is never negative."""
    if reference is None:
        return
    mask = batch.completion_BC.cpu()
    kl_BC = k3(own.logp64_BC, reference.logp64_BC)
    mean, largest = masked_mean(kl_BC, mask), float(kl_BC[mask].max()) if bool(mask.any()) else math.nan
    found.facts["kl"] = {"mean": mean, "max": largest, "trained": trained}
    found.looked_at.append(f"KL to the reference {'of a trained policy' if trained else 'before the first update'}")
    if not math.isfinite(mean):
        found.broken("kl-not-finite", f"KL to the reference is {mean}", "look at the reference's weights and dtype")
    elif not trained and mean > (_KL_PADDED if "output_rows" in found.facts else _KL_AT_START[dtype]):
        found.broken(
            "kl-at-start", f"KL to the reference is {mean:.4g} before the first update, and 0 belongs there",
            "same weights, dtype, dropout off and chat template for both; --trained for a policy that was updated",
        )  # fmt: skip
    elif mean > _MOST_KL:
        found.doubtful("kl-high", f"KL to the reference is {mean:.3g} nats a token; 0.01 to 0.5 is usual",
                       "raise beta, lower the learning rate, or go back to an earlier checkpoint")  # fmt: skip


def reward_head(found: Findings, loss: HeadLoss | None) -> None:
    """Loss of the reward model's head where the data has labels (S20)."""
    if loss is None:
        found.not_seen.append("loss of the reward's head: the data holds neither chosen and rejected nor rewards")
        return
    found.facts["reward_head"] = {"kind": loss.kind, "loss": loss.value, "samples": loss.count}
    found.looked_at.append(f"loss of the reward's head on {loss.count} {loss.kind}")
    if loss.value > MOST:
        found.doubtful("head-loss", loss.says(), "see check reward: it does not tell these answers apart")


def coefficient(
    found: Findings, batch: Batch, own: Scores, reference: Scores | None, rewards: torch.Tensor | None,
    options: PolicyOptions,
) -> None:  # fmt: skip
    """Advice on kl_coef with its uncertainty (S22)."""
    if reference is None or rewards is None:
        return
    mask = batch.completion_BC.cpu()
    kl_BC = k3(own.logp64_BC, reference.logp64_BC).where(mask, 0.0)
    kls = (kl_BC.sum(1) / mask.sum(1).clamp(min=1)).tolist()
    advice = advise([float(one) for one in rewards.tolist()], [float(one) for one in kls], options.seed)
    if advice is None:
        found.not_seen.append("kl_coef: reward or KL does not vary yet; check a checkpoint after some steps")
        return
    found.facts["kl_coef"] = asdict(advice)
    few = "" if advice.samples >= WANTED else f", from {advice.samples} samples only"
    found.notes.append(
        f"kl_coef {advice.coefficient:.3g} (95 % interval {advice.low:.3g} to {advice.high:.3g}{few}): "
        "0.1 std(reward) / std(KL)" + ("" if advice.certain else "; uncertain, take it as an order of magnitude")
    )


def step(
    found: Findings, policy: Loaded, terms: Terms, weights_B: torch.Tensor, rewards: torch.Tensor | None, size: int
) -> None:
    """Every term apart and finite (S17), advantages inside their bound (S21), gradients finite."""
    parts = asdict(terms)
    bad = [name for name, value in parts.items() if not math.isfinite(value)]
    if bad:
        found.broken("non-finite-term", f"terms of the loss are not finite: {', '.join(bad)}",
                     "the first of data, reward, policy that is not finite is the cause", examples=bad)  # fmt: skip
    wrong = [name for name, one in policy.model.named_parameters()
             if one.grad is not None and not bool(torch.isfinite(one.grad).all())]  # fmt: skip
    if wrong:
        found.broken("non-finite-gradient", f"gradients of {len(wrong)} parameters are not finite",
                     "grpo-sentinel check gradients names sample and token", len(wrong), wrong)  # fmt: skip
    norms = [one.grad.double().norm() for one in policy.model.parameters() if one.grad is not None]
    norm = float(torch.stack(norms).norm()) if norms else 0.0
    if norm == 0.0:
        found.broken("no-gradient", "the loss gives no gradient at all", "see requires_grad, and advantages of 0")
    found.facts["terms"] = {**parts, "gradient_norm": norm}
    found.looked_at.append("one forward and backward: policy, KL and entropy terms apart, and the gradient")
    if rewards is None:
        return
    groups = weights_B.view(-1, size)
    dead = int((groups == 0).all(1).sum())
    found.facts["advantages"] = {
        "max": float(groups.abs().max()), "bound": (size - 1) / math.sqrt(size), "groups_without": dead,
        "reward_mean": float(rewards.mean()), "reward_std": float(rewards.std()),
    }  # fmt: skip
    if dead == len(groups):
        found.broken(
            "no-advantage",
            f"all {dead} groups have equal rewards: every advantage is 0",
            "prompts that are neither too easy nor too hard, or a reward that tells answers apart",
        )
    elif dead > 0.8 * len(groups):
        found.doubtful("few-advantages", f"{dead} of {len(groups)} groups have equal rewards",
                       "prompts that are neither too easy nor too hard; larger groups")  # fmt: skip


__all__ = [
    "coefficient", "numbers", "own_samples", "padding", "precision", "reference_gap", "samples", "step",
]  # fmt: skip
