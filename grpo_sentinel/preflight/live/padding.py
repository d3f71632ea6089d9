"""Is padding masked out (S23)? The same samples with more padding, and alone without any, must score the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grpo_sentinel.preflight.live.loading import Loaded
from grpo_sentinel.preflight.live.rollout import Batch
from grpo_sentinel.preflight.live.scoring import logits_of, masked_mean, token_terms

MOST_SAMPLES = 8
_LEFT, _RIGHT = 7, 5


@dataclass(frozen=True, slots=True)
class PaddingGap:
    """Mean |difference| in nats of log-probs of the completions' tokens; entropy with and without padded places."""

    wider: float
    alone: float
    entropy_masked: float
    entropy_unmasked: float
    samples: int


@torch.no_grad()  # type: ignore[untyped-decorator]
def padding_gap(loaded: Loaded, batch: Batch, samples: int = MOST_SAMPLES) -> PaddingGap:
    """Score the first samples again with wider padding, and one by one without padding."""
    count = min(samples, MOST_SAMPLES, len(batch.samples))
    ids, mask, width = batch.ids_BT[:count], batch.mask_BT[:count], batch.width
    own = mask[:, -width:]
    base, entropy = token_terms(logits_of(loaded.model, ids, mask, width), ids[:, -width:])
    pad = loaded.tokenizer.pad_token_id or 0
    wide_ids = torch.nn.functional.pad(ids, (_LEFT, _RIGHT), value=pad)
    wide_mask = torch.nn.functional.pad(mask, (_LEFT, _RIGHT), value=False)
    logits = logits_of(loaded.model, wide_ids, wide_mask, width + _RIGHT)
    wide, _ = token_terms(logits, wide_ids[:, -width - _RIGHT :])
    alone = base.clone()
    for row in range(count):
        kept = mask[row]
        length = int(own[row].sum())
        one = ids[row][kept].unsqueeze(0)
        if length:
            scored, _ = token_terms(logits_of(loaded.model, one, torch.ones_like(one).bool(), length), one[:, -length:])
            alone[row, :length] = scored[0]
    return PaddingGap(
        wider=masked_mean((wide[:, :width] - base).abs(), own), alone=masked_mean((alone - base).abs(), own),
        entropy_masked=masked_mean(entropy, own), entropy_unmasked=float(entropy.double().mean()), samples=count,
    )  # fmt: skip


__all__ = ["MOST_SAMPLES", "PaddingGap", "padding_gap"]
