"""Policy layer: the terms of the loss recomputed from log-probs, as partials on the device. Axes: B rows, T tokens.

Everything of one shape is stacked and reduced together: on a small batch the number of kernels is the cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from grpo_sentinel.agent.probes.partials import Bag, finite

_POSITIVE = 1e-3  # rounding of a log-softmax in bf16 reaches this far above 0
_CONFIDENT = -0.6931471805599453  # ln 0.5
_DISAGREE_NATS = 2.0


def levels(bag: Bag, names: Sequence[str], levels_KBT: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sum and count inside the mask of K kinds of log-prob or entropy, and its tokens; gives what is fine.

    What is not fine is counted on the host: tokens - count.
    """
    fine = finite(levels_KBT) & mask
    bag.put(["sum:" + name for name in names], torch.where(fine, levels_KBT, 0.0).sum((1, 2)))
    bag.put(["sum:" + name + "_count" for name in names], fine.sum((1, 2)))
    bag.put(["sum:tokens"], mask.sum())
    return fine


def log_prob_range(bag: Bag, logp: torch.Tensor, fine: torch.Tensor, mask: torch.Tensor) -> None:
    """Smallest finite current log-prob, and those above 0."""
    bag.put(["min:logp"], torch.where(fine, logp, math.inf).amin())
    bag.put(["sum:logp_positive"], ((logp > _POSITIVE) & mask).sum())


def gaps(bag: Bag, names: Sequence[str], gaps_KBT: torch.Tensor, mask: torch.Tensor) -> None:
    """K differences d of log-probs: sums of d, |d|, d^2 and k3(d) = exp(-d) - 1 + d, extremes, sums of exponentials.

    With d = logp - old: ratio and effective sample size. With d = logp - ref: KL in k1, k2, k3 (Schulman 2020,
    "Approximating KL divergence"). With d = engine - trainer: the rollout gap.
    """
    fine = finite(gaps_KBT) & mask
    size = gaps_KBT.abs()
    k3 = torch.expm1(-gaps_KBT) + gaps_KBT
    sums = torch.where(fine, torch.stack([gaps_KBT, size, gaps_KBT.square(), k3]), 0.0).sum((2, 3))
    ends = torch.where(fine, torch.stack([gaps_KBT, size, k3]), -math.inf)
    bag.put([f"sum:{name}.{what}" for what in ("d", "abs", "square", "k3") for name in names], sums)
    bag.put([f"max:{name}.{what}" for what in ("d", "abs", "k3") for name in names], ends.amax((2, 3)))
    bag.put([f"sum:{name}.count" for name in names], fine.sum((1, 2)))
    if names != ["ref"]:  # of the KL to the reference nobody wants the mean exponential
        powers = torch.stack([ends[0], 2 * ends[0], ends[1]])
        bag.put([f"lse:{name}.{what}" for what in ("d", "2d", "abs") for name in names], powers.logsumexp((2, 3)))


def unit_ratio(bag: Bag, fine: torch.Tensor, advantage: torch.Tensor) -> None:
    """Take the policy-gradient term where old and current log-probs are the same: r = 1, nothing is clipped."""
    known = finite(advantage) & fine
    bag.put(["sum:pg"], -torch.where(known, advantage, 0.0).sum())
    bag.put(["sum:pg_count"], known.sum())


def unit_ratio_of_rows(tokens: Sequence[float], advantages: Sequence[float]) -> dict[str, float]:
    """Do what `unit_ratio` does for advantages of rows, from the number of tokens of each: on the host."""
    pairs = [(n, a) for n, a in zip(tokens, advantages, strict=True) if math.isfinite(a)]
    return {"sum:pg": -math.fsum(n * a for n, a in pairs), "sum:pg_count": sum([n for n, _ in pairs])}


def clipping(
    bag: Bag, log_ratio: torch.Tensor, mask: torch.Tensor, advantage: torch.Tensor, low: float, high: float
) -> None:
    """Clip fractions and the policy-gradient term -min(r A, clip(r) A): clipping acts where its side is smaller."""
    known = finite(log_ratio + advantage) & mask
    ratio = log_ratio.exp()
    plain, cut = ratio * advantage, ratio.clamp(1.0 - low, 1.0 + high) * advantage
    clipped = (cut < plain) & known
    counts = torch.stack([known, clipped, clipped & (advantage < 0)]).sum((1, 2))
    bag.put(["sum:pg_count", "sum:clipped", "sum:clip_low"], counts)
    bag.put(["sum:pg"], -torch.where(known, torch.minimum(plain, cut), 0.0).sum())


def overflowing_kl(bag: Bag, gap: torch.Tensor, dtype: torch.dtype, mask: torch.Tensor) -> None:
    """Count tokens whose k3 to the reference overflows in the dtype that the loss computes it in; d = logp - ref."""
    beyond = -math.log(torch.finfo(dtype).max)
    bag.put(["sum:k3_overflow"], ((gap < beyond) & (gap > -math.inf) & mask).sum())


def kl_by_place(bag: Bag, gap: torch.Tensor, mask: torch.Tensor) -> None:
    """k3 to the reference, summed over the first one to four quarters of each completion's own tokens."""
    place, length = 4 * mask.cumsum(1), mask.sum(1, keepdim=True)  # 1-based among the row's own tokens
    within = torch.stack([place < k * length + 4 for k in (1, 2, 3, 4)]) & (finite(gap) & mask)
    sums = torch.where(within, torch.expm1(-gap) + gap, 0.0).sum((2, 1))
    bag.put([f"sum:ref.until{k}" for k in (1, 2, 3, 4)], sums)


def entropy_by_place(bag: Bag, entropy: torch.Tensor, fine: torch.Tensor, mask: torch.Tensor) -> None:
    """Entropy over the first and the last quarter of each completion's own tokens."""
    place = mask.cumsum(1)  # 1-based among the row's own tokens
    length = place[:, -1:]
    early = 4 * place
    both = torch.stack([early < length + 4, early >= 3 * length + 4]) & fine
    bag.put(["sum:entropy_first", "sum:entropy_last"], torch.where(both, entropy, 0.0).sum((1, 2)))
    bag.put(["sum:entropy_first_count", "sum:entropy_last_count"], both.sum((1, 2)))


def probabilities(bag: Bag, trainer: torch.Tensor, engine: torch.Tensor, mask: torch.Tensor) -> None:
    """Moments of both sides' probabilities, for their correlation; tokens that the engine was sure of and wrong."""
    gap = trainer - engine
    fine = finite(gap) & mask
    count = fine.sum()
    both = torch.where(fine, torch.stack([trainer, engine]).exp(), 0.0)
    means = both.sum((1, 2), keepdim=True) / count.clamp(min=1)
    dx, dy = torch.where(fine, both - means, 0.0).unbind(0)
    squares = torch.stack([dx * dx, dy * dy, dx * dy]).sum((1, 2))
    bag.put(
        [f"{field}:probability" for field in ("n", "mean_x", "mean_y")], torch.cat([count.view(1), means.flatten()])
    )
    bag.put([f"{field}:probability" for field in ("m2_x", "m2_y", "cross")], squares)
    # the squared importance weights; their mean follows from k3 on the host
    bag.put(["lse:weight.2"], torch.where(fine, 2 * gap, -math.inf).logsumexp((0, 1)))
    bag.put(["max:probability_gap"], torch.where(fine, (both[0] - both[1]).abs(), -math.inf).amax())
    bag.put(["sum:confident"], ((engine >= _CONFIDENT) & (gap.abs() > _DISAGREE_NATS) & fine).sum())
