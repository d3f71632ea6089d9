"""Policy layer: the terms of the loss recomputed from log-probs, as partials on the device. Axes: B rows, T tokens."""

from __future__ import annotations

import torch

from grpo_sentinel.agent.probes.pack import wide_dtype
from grpo_sentinel.agent.probes.partials import Bag, finite

_POSITIVE = 1e-3  # rounding of a log-softmax in bf16 reaches this far above 0
_CONFIDENT = -0.6931471805599453  # ln 0.5
_DISAGREE_NATS = 2.0


def log_probs(bag: Bag, logp: torch.Tensor, mask: torch.Tensor) -> None:
    """Current log-probs of the sampled tokens: float64, masked."""
    known = finite(logp)
    fine = mask & known
    bag.total("logp", logp, fine)
    bag.count("logp_count", fine)
    bag.count("logp_nonfinite", mask & ~known)
    bag.count("logp_positive", mask & (logp > _POSITIVE))
    bag.low("logp", logp, fine)


def ratio(
    bag: Bag, log_ratio: torch.Tensor, mask: torch.Tensor, advantage: torch.Tensor | None, low: float, high: float
) -> None:
    """Importance ratio r = exp(log_ratio): mean, extremes, clip fractions, k3 to the old policy, sample size."""
    fine = mask & finite(log_ratio)
    bag.count("ratio_count", fine)
    bag.log_sum("ratio", log_ratio, fine)
    bag.log_sum("ratio_squared", 2 * log_ratio, fine)
    bag.high("log_ratio", log_ratio, fine)
    bag.high("log_ratio_abs", log_ratio.abs(), fine)
    bag.total("approx_kl", torch.expm1(-log_ratio) + log_ratio, fine)
    if advantage is None:
        return
    r = log_ratio.exp()
    known = fine & finite(advantage)
    bag.count("clip_low", known & (r < 1.0 - low) & (advantage < 0))
    bag.count("clip_high", known & (r > 1.0 + high) & (advantage > 0))
    bag.count("clip_count", known)
    bag.total("pg", -torch.minimum(r * advantage, r.clamp(1.0 - low, 1.0 + high) * advantage), known)


def reference_kl(bag: Bag, logp: torch.Tensor, ref: torch.Tensor, mask: torch.Tensor) -> None:
    """KL to the reference, per token: k1, k2, k3 (Schulman 2020, "Approximating KL divergence").

    Means are float64. Extremes and overflow are of k3 as the trainer computes it, in the log-probs' own dtype.
    """
    own, wide = torch.promote_types(logp.dtype, ref.dtype), wide_dtype(logp.device)
    native = ref.to(own) - logp.to(own)
    native_k3 = (native.exp() - native - 1).to(wide)
    difference = logp.to(wide) - ref.to(wide)
    fine = mask & finite(difference)
    whole = fine & finite(native_k3)
    bag.count("kl_count", fine)
    bag.total("k1", difference, fine)
    bag.total("k2", difference.square() / 2, fine)
    bag.total("k3", torch.expm1(-difference) + difference, fine)
    bag.high("k3", native_k3, whole)
    bag.low("k3", native_k3, whole)
    bag.count("k3_overflow", fine & native_k3.isinf())
    bag.count("ref_nonfinite", mask & ~finite(ref))


def entropy(bag: Bag, entropy_BT: torch.Tensor, mask: torch.Tensor) -> None:
    """Entropy of the next-token distribution: mean, and over the first and last quarter of each completion's tokens."""
    known = finite(entropy_BT)
    fine = mask & known
    index = mask.cumsum(1) - 1  # place among the row's own tokens
    length = mask.sum(1, keepdim=True)
    first, last = fine & (4 * index < length), fine & (4 * index >= 3 * length)
    for name, keep in (("entropy", fine), ("entropy_first", first), ("entropy_last", last)):
        bag.total(name, entropy_BT, keep)
        bag.count(f"{name}_count", keep)
    bag.count("entropy_nonfinite", mask & ~known)


def sampling_gap(bag: Bag, trainer: torch.Tensor, engine: torch.Tensor, mask: torch.Tensor) -> None:
    """Rollout engine against trainer on the same tokens: float64 log-probs of both."""
    gap = trainer - engine
    fine = mask & finite(gap)
    size = gap.abs()
    bag.count("gap_count", fine)
    bag.total("gap", size, fine)
    bag.high("gap", size, fine)
    bag.log_sum("gap", size, fine)
    bag.total("gap_k3", torch.expm1(gap) - gap, fine)
    bag.count("gap_confident", fine & (engine >= _CONFIDENT) & (size > _DISAGREE_NATS))
    bag.count("gap_nonfinite", mask & ~finite(engine))
    bag.comoments("probability", trainer.exp(), engine.exp(), fine)


def advantages(bag: Bag, advantage: torch.Tensor, mask: torch.Tensor | None) -> None:
    """Advantages per row (B), or per token (B x T, masked). A row is zero when all of its advantages are."""
    wide = advantage.to(wide_dtype(advantage.device))
    known = finite(wide)
    keep = torch.ones_like(known) if mask is None else mask
    rows = keep.any(1) if keep.dim() == 2 else keep
    zero = (~keep | (wide == 0)).all(1) if keep.dim() == 2 else wide == 0
    bag.moments("advantage", wide, keep & known)
    bag.high("advantage", wide.abs(), keep & known)
    bag.count("advantage_nonfinite", keep & ~known)
    bag.count("advantage_zero", rows & zero)
    bag.count("advantage_rows", rows)
