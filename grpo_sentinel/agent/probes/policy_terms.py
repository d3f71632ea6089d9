"""Policy layer: the terms of the loss recomputed from log-probs, as partials on the device. Axes: B rows, T tokens."""

from __future__ import annotations

import torch

from grpo_sentinel.agent.probes.partials import Named, comoments, largest, log_sum_exp, moments, smallest, total

_POSITIVE = 1e-3  # rounding of a log-softmax in bf16 reaches this far above 0
_CONFIDENT = -0.6931471805599453  # ln 0.5
_DISAGREE_NATS = 2.0


def log_probs(logp: torch.Tensor, mask: torch.Tensor) -> Named:
    """Current log-probs of the sampled tokens: float64, masked."""
    fine = mask & logp.isfinite()
    return {
        "sum:logp": total(logp, fine),
        "sum:logp_count": fine.sum(),
        "sum:logp_nonfinite": (mask & ~logp.isfinite()).sum(),
        "sum:logp_positive": (mask & (logp > _POSITIVE)).sum(),
        "min:logp": smallest(logp, fine),
    }


def ratio(
    log_ratio: torch.Tensor, mask: torch.Tensor, advantage: torch.Tensor | None, low: float, high: float
) -> Named:
    """Importance ratio r = exp(log_ratio): mean, extremes, clip fractions, k3 to the old policy, effective sample size."""
    fine = mask & log_ratio.isfinite()
    r = log_ratio.exp()
    out = {
        "sum:ratio_count": fine.sum(),
        "lse:ratio": log_sum_exp(log_ratio, fine),
        "lse:ratio_squared": log_sum_exp(2 * log_ratio, fine),
        "max:log_ratio": largest(log_ratio, fine),
        "max:log_ratio_abs": largest(log_ratio.abs(), fine),
        "sum:approx_kl": total(torch.expm1(-log_ratio) + log_ratio, fine),
    }
    if advantage is None:
        return out
    known = fine & advantage.isfinite()
    clipped = r.clamp(1.0 - low, 1.0 + high)
    out["sum:clip_low"] = (known & (r < 1.0 - low) & (advantage < 0)).sum()
    out["sum:clip_high"] = (known & (r > 1.0 + high) & (advantage > 0)).sum()
    out["sum:clip_count"] = known.sum()
    out["sum:pg"] = total(-torch.minimum(r * advantage, clipped * advantage), known)
    return out


def reference_kl(logp: torch.Tensor, ref: torch.Tensor, mask: torch.Tensor) -> Named:
    """KL to the reference, per token: k1, k2, k3 (Schulman 2020, "Approximating KL divergence").

    Means are float64. Extremes and overflow are of k3 as the trainer computes it, in the log-probs' own dtype.
    """
    own = torch.promote_types(logp.dtype, ref.dtype)
    native = ref.to(own) - logp.to(own)
    native_k3 = native.exp() - native - 1
    difference = logp.to(mask_dtype(logp)) - ref.to(mask_dtype(ref))
    fine = mask & difference.isfinite()
    k3 = torch.expm1(-difference) + difference
    whole = fine & native_k3.isfinite()
    return {
        "sum:kl_count": fine.sum(),
        "sum:k1": total(difference, fine),
        "sum:k2": total(difference.square() / 2, fine),
        "sum:k3": total(k3, fine),
        "max:k3": largest(native_k3, whole),
        "min:k3": smallest(native_k3, whole),
        "sum:k3_overflow": (fine & native_k3.isinf()).sum(),
        "sum:ref_nonfinite": (mask & ~ref.isfinite()).sum(),
    }


def mask_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Give the wide dtype that this tensor's device can compute in."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def entropy(entropy_BT: torch.Tensor, mask: torch.Tensor) -> Named:
    """Entropy of the next-token distribution: mean, and over the first and last quarter of each completion's tokens."""
    fine = mask & entropy_BT.isfinite()
    index = mask.cumsum(1) - 1  # place among the row's own tokens
    length = mask.sum(1, keepdim=True)
    first, last = fine & (4 * index < length), fine & (4 * index >= 3 * length)
    return {
        "sum:entropy": total(entropy_BT, fine),
        "sum:entropy_count": fine.sum(),
        "sum:entropy_nonfinite": (mask & ~entropy_BT.isfinite()).sum(),
        "sum:entropy_first": total(entropy_BT, first),
        "sum:entropy_first_count": first.sum(),
        "sum:entropy_last": total(entropy_BT, last),
        "sum:entropy_last_count": last.sum(),
    }


def sampling_gap(trainer: torch.Tensor, engine: torch.Tensor, mask: torch.Tensor) -> Named:
    """Rollout engine against trainer on the same tokens: float64 log-probs of both."""
    gap = trainer - engine
    fine = mask & gap.isfinite()
    size = gap.abs()
    out = {
        "sum:gap_count": fine.sum(),
        "sum:gap": total(size, fine),
        "max:gap": largest(size, fine),
        "lse:gap": log_sum_exp(size, fine),
        "sum:gap_k3": total(torch.expm1(gap) - gap, fine),
        "sum:gap_confident": (fine & (engine >= _CONFIDENT) & (size > _DISAGREE_NATS)).sum(),
        "sum:gap_nonfinite": (mask & ~engine.isfinite()).sum(),
    }
    out.update(comoments("probability", trainer.exp(), engine.exp(), fine))
    return out


def advantages(advantage: torch.Tensor, mask: torch.Tensor | None) -> Named:
    """Advantages per row (B), or per token (B x T, masked). A row is zero when all of its advantages are."""
    wide = advantage.to(mask_dtype(advantage))
    keep = torch.ones_like(wide, dtype=torch.bool) if mask is None else mask
    fine = keep & wide.isfinite()
    rows = keep.any(1) if keep.dim() == 2 else keep
    zero = (~keep | (wide == 0)).all(1) if keep.dim() == 2 else wide == 0
    return {
        **moments("advantage", wide, fine),
        "max:advantage": largest(wide.abs(), fine),
        "sum:advantage_nonfinite": (keep & ~wide.isfinite()).sum(),
        "sum:advantage_zero": (rows & zero).sum(),
        "sum:advantage_rows": rows.sum(),
    }
