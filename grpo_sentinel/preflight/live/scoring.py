"""Log-probs and entropies of completions, as a trainer computes them and in float64, and the terms of the loss.

Axes: B samples, C completion tokens, V vocabulary. `k3 = exp(d) - 1 - d` with d = ref - logp (Schulman 2020,
"Approximating KL divergence"); entropy H = -sum_V p log p in nats.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Any

import torch

from grpo_sentinel.preflight.live.loading import Loaded
from grpo_sentinel.preflight.live.rollout import Batch

ROWS_AT_ONCE = 4
EPSILON = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What one model says of one batch, on the CPU; float64 but for `logp_BC` and `entropy_BC` (the model's way)."""

    logp_BC: torch.Tensor
    entropy_BC: torch.Tensor
    logp64_BC: torch.Tensor
    entropy64_BC: torch.Tensor
    varentropy64_BC: torch.Tensor  # variance of -log p under the model's own distribution
    nonfinite_logits: int = 0
    infinite_logits: int = 0  # of them -inf: entries that were masked out
    largest_logit: float = 0.0
    lost_tokens: int = 0  # sampled tokens whose probability is 0 in the model's dtype
    lost_entries: int = 0  # entries of the vocabulary of which it is


def logits_of(model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor, width: int) -> torch.Tensor:
    """Logits that predict the last `width` tokens, B x C x V; without position ids, as TRL calls the model."""
    extra = {"logits_to_keep": width + 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    out = model(input_ids=ids_BT, attention_mask=mask_BT.long(), use_cache=False, **extra).logits
    return out[:, -width - 1 : -1]


def token_terms(logits_BCV: torch.Tensor, ids_BC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each token and entropy of each place, in the dtype of the logits."""
    logp_BCV = torch.log_softmax(logits_BCV, dim=-1)
    entropy_BC = -(logp_BCV.exp() * logp_BCV).sum(-1)
    return logp_BCV.gather(-1, ids_BC.unsqueeze(-1)).squeeze(-1), entropy_BC


def _varentropy(logits_BCV: torch.Tensor) -> torch.Tensor:
    """Variance of -log p at each place, sum_V p (log p + H)^2, in float64; tokens of probability 0 add nothing."""
    logp_BCV = torch.log_softmax(logits_BCV.double(), dim=-1)
    p_BCV = logp_BCV.exp()
    surprise_BCV = (-logp_BCV).where(p_BCV > 0, 0)
    mean_BC1 = (p_BCV * surprise_BCV).sum(-1, keepdim=True)
    return (p_BCV * (surprise_BCV - mean_BC1).square()).sum(-1)


@torch.no_grad()  # type: ignore[untyped-decorator]
def score(loaded: Loaded, batch: Batch) -> Scores:
    """Run the model over a batch, a few rows at a time."""
    parts: list[tuple[torch.Tensor, ...]] = []
    bad = masked = lost = entries = 0
    largest = 0.0
    for ids_BT, mask_BT in batch.rows(ROWS_AT_ONCE):
        logits = logits_of(loaded.model, ids_BT, mask_BT, batch.width)
        ids_BC, own = ids_BT[:, -batch.width :], mask_BT[:, -batch.width :]
        terms = token_terms(logits, ids_BC)
        parts.append((*terms, *token_terms(logits.double(), ids_BC), _varentropy(logits)))
        seen = logits[own]
        bad += int((~torch.isfinite(seen)).sum())
        masked += int((seen == -math.inf).sum())
        fine = seen[torch.isfinite(seen)]
        largest = max(largest, float(fine.abs().max()) if fine.numel() else 0.0)
        gone = torch.softmax(seen, dim=-1) == 0
        entries += int(gone.sum())
        lost += int(gone.gather(-1, ids_BC[own].unsqueeze(-1)).sum())
    logp, entropy, logp64, entropy64, varentropy64 = (torch.cat(one).cpu() for one in zip(*parts, strict=True))
    return Scores(
        logp_BC=logp, entropy_BC=entropy, logp64_BC=logp64, entropy64_BC=entropy64, varentropy64_BC=varentropy64,
        nonfinite_logits=bad, infinite_logits=masked, largest_logit=largest, lost_tokens=lost, lost_entries=entries,
    )  # fmt: skip


def k3(logp: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """The k3 estimate of KL(policy || reference) at each token, in the dtype of what is given."""
    gap = ref - logp
    return torch.expm1(gap) - gap


def masked_mean(values_BC: torch.Tensor, mask_BC: torch.Tensor) -> float:
    """Mean over the tokens inside the mask; NaN when there is none."""
    inside = values_BC[mask_BC]
    return float(inside.double().mean()) if inside.numel() else math.nan


def own_error(scores: Scores, mask_BC: torch.Tensor) -> float:
    """Standard error of the mean NLL about the mean entropy of as many tokens sampled from the model itself.

    By the model's own distribution and not by the spread of what was drawn: a few draws may all be the same token.
    """
    variances = scores.varentropy64_BC[mask_BC]
    return math.sqrt(float(variances.sum())) / variances.numel() if variances.numel() else math.inf


def advantages(rewards_B: torch.Tensor, group_size: int) -> torch.Tensor:
    """Normalise rewards inside each group: (r - mean) / (std + 1e-4), sample standard deviation, as TRL does."""
    groups = rewards_B.double().view(-1, group_size)
    if group_size == 1:
        return torch.zeros_like(groups).flatten()
    return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()


@dataclass(slots=True)
class Terms:
    """Terms of the loss, apart; each the sum over the batch's parts."""

    policy: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    total: float = 0.0


def backward(
    loaded: Loaded, batch: Batch, advantages_B: torch.Tensor, old_BC: torch.Tensor, ref_BC: torch.Tensor | None,
    beta: float, rows: slice | None = None,
) -> Terms:  # fmt: skip
    """One backward of the clipped GRPO loss -min(rA, clip(r)A) + beta k3, mean over tokens; leaves gradients.

    `rows` takes a part of the samples; the divisor stays that of the whole batch, so that parts add up.
    """
    device, width = loaded.device, batch.width
    tokens = batch.completion_BC.sum().clamp(min=1)
    terms = Terms()
    every = range(len(batch.samples))[rows or slice(None)]
    for start in range(every.start, every.stop, ROWS_AT_ONCE):
        part = slice(start, min(start + ROWS_AT_ONCE, every.stop))
        ids_BT, mask_BT = batch.ids_BT[part], batch.mask_BT[part]
        own = mask_BT[:, -width:]
        logp, entropy = token_terms(logits_of(loaded.model, ids_BT, mask_BT, width), ids_BT[:, -width:])
        advantage = advantages_B[part].to(device=device, dtype=logp.dtype).unsqueeze(1)
        ratio = (logp - old_BC[part].to(logp)).exp()
        clipped = ratio.clamp(1 - EPSILON, 1 + EPSILON)
        policy = (-torch.minimum(ratio * advantage, clipped * advantage)).where(own, 0).sum() / tokens
        loss = policy
        if ref_BC is not None:
            kl = k3(logp, ref_BC[part].to(logp)).where(own, 0).sum() / tokens
            loss = policy + beta * kl
            terms.kl += float(kl.detach())
        loss.backward()
        terms.policy += float(policy.detach())
        terms.entropy += float((entropy.where(own, 0).sum() / tokens).detach())
        terms.total += float(loss.detach())
    return terms


def backward_nll(loaded: Loaded, batch: Batch) -> float:
    """One backward of -log p, mean over the completions' tokens; leaves gradients and gives the loss."""
    tokens = batch.completion_BC.sum().clamp(min=1)
    total = 0.0
    for start in range(0, len(batch.samples), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        ids_BT, mask_BT = batch.ids_BT[part], batch.mask_BT[part]
        logits = logits_of(loaded.model, ids_BT, mask_BT, batch.width)
        logp, _ = token_terms(logits, ids_BT[:, -batch.width :])
        loss = (-logp).where(mask_BT[:, -batch.width :], 0).sum() / tokens
        loss.backward()
        total += float(loss.detach())
    return total


__all__ = [
    "EPSILON", "Scores", "Terms", "advantages", "backward", "backward_nll", "k3", "logits_of", "masked_mean",
    "own_error", "score", "token_terms",
]  # fmt: skip
