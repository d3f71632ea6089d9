"""Policy layer: the terms of the loss recomputed from log-probs, as partials on the device. Axes: B rows, T tokens.

Everything of one shape is stacked and reduced together: on a small batch the number of kernels is the cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

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


@dataclass(frozen=True, slots=True)
class Gap:
    """What one difference of log-probs was reduced from, for terms that need it as well."""

    fine: torch.Tensor
    size: torch.Tensor  # |d|
    k3: torch.Tensor
    count: torch.Tensor


def gaps(bag: Bag, names: Sequence[str], gaps_KBT: torch.Tensor, mask: torch.Tensor) -> dict[str, Gap]:
    """K differences d of log-probs: sums of d, |d|, d^2 and k3(d) = exp(-d) - 1 + d, extremes, sums of exponentials.

    With d = logp - old: ratio and effective sample size. With d = logp - ref: KL in k1, k2, k3 (Schulman 2020,
    "Approximating KL divergence"). With d = engine - trainer: the rollout gap, and importance weights exp(-d).
    """
    fine = finite(gaps_KBT) & mask
    size = gaps_KBT.abs()
    k3 = torch.expm1(-gaps_KBT) + gaps_KBT
    sums = torch.where(fine, torch.stack([gaps_KBT, size, gaps_KBT * gaps_KBT, k3]), 0.0).sum((2, 3))
    bag.put([f"sum:{name}.{what}" for what in ("d", "abs", "square", "k3") for name in names], sums)
    powers = ["abs", "d"]
    terms = [k3, size, gaps_KBT]
    if names != ["ref"]:  # of the KL to the reference nobody wants the mean exponential
        twice = 2 * gaps_KBT
        terms += [twice, -twice]
        powers += ["2d", "-2d"]
    ends = torch.where(fine, torch.stack(terms), -math.inf)
    bag.put([f"max:{name}.{what}" for what in ("k3", "abs", "d") for name in names], ends[:3].amax((2, 3)))
    if names != ["ref"]:
        bag.put([f"lse:{name}.{what}" for what in powers for name in names], ends[1:].logsumexp((2, 3)))
    counts = fine.sum((1, 2))
    bag.put([f"sum:{name}.count" for name in names], counts)
    each = zip(names, fine.unbind(0), size.unbind(0), k3.unbind(0), counts.unbind(0), strict=True)
    return {name: Gap(*parts) for name, *parts in each}


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


def above_cap(bag: Bag, gap: torch.Tensor, mask: torch.Tensor, cap: float, *, sequence: bool) -> None:
    """Count importance weights exp(-d) above the cap, of tokens or multiplied over each row; d = engine - trainer."""
    known = finite(gap) & mask
    if sequence:
        gap, known = torch.where(known, gap, 0.0).sum(1), known.any(1)
    above = known & (gap < -math.log(cap))
    bag.put(["sum:weights", "sum:weights_above"], torch.stack([known, above]).flatten(1).sum(1))


def quarters(mask: torch.Tensor) -> torch.Tensor:
    """Mark the tokens up to the end of the first, second and third quarter of each completion's own: 3 x B x T."""
    place = mask.cumsum(1)  # 1-based among the row's own tokens
    return 4 * place < place[:, -1:] * _quarters(str(mask.device)) + 4


@lru_cache(maxsize=8)
def _quarters(device: str) -> torch.Tensor:
    return torch.arange(1, 4, device=device).view(3, 1, 1)


def kl_by_place(bag: Bag, gap: Gap, within: torch.Tensor) -> None:
    """k3 to the reference, summed over the first one to three quarters of each completion's own tokens."""
    sums = torch.where(within & gap.fine, gap.k3, 0.0).sum((1, 2))
    bag.put([f"sum:ref.until{k}" for k in (1, 2, 3)], sums)


def entropy_by_place(bag: Bag, entropy: torch.Tensor, fine: torch.Tensor, within: torch.Tensor) -> None:
    """Entropy over the first and the last quarter of each completion's own tokens."""
    both = torch.stack([within[0], ~within[2]]) & fine
    bag.put(["sum:entropy_first", "sum:entropy_last"], torch.where(both, entropy, 0.0).sum((1, 2)))
    bag.put(["sum:entropy_first_count", "sum:entropy_last_count"], both.sum((1, 2)))


def probabilities(bag: Bag, trainer: torch.Tensor, engine: torch.Tensor, gap: Gap) -> None:
    """Moments of both sides' probabilities, for their correlation; tokens that the engine was sure of and wrong."""
    both = torch.where(gap.fine, torch.stack([trainer, engine]).exp(), 0.0)
    means = both.sum((1, 2), keepdim=True) / gap.count.clamp(min=1)
    apart = torch.where(gap.fine, both - means, 0.0)
    products = (apart * apart.unsqueeze(1)).sum((2, 3))  # no `@`: it raises on CUDA in torch's deterministic mode
    bag.put(["mean_x:probability", "mean_y:probability"], means)
    bag.put([f"{field}:probability" for field in ("m2_x", "cross", "cross", "m2_y")], products)
    bag.put(["max:probability_gap"], torch.where(gap.fine, (both[0] - both[1]).abs(), -math.inf).amax())
    bag.put(["sum:confident"], ((engine >= _CONFIDENT) & (gap.size > _DISAGREE_NATS) & gap.fine).sum())
