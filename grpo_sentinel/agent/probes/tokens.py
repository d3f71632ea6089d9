"""Policy layer: what the completions' ids say about collapse: repeated 4-grams, one token everywhere."""

from __future__ import annotations

import torch

from grpo_sentinel.agent.probes.partials import Named

_GRAM = 4
_LEAST_TOKENS = 8  # shorter completions say nothing about a single token
_SHARE = 0.9
_NO_ID = torch.iinfo(torch.int64).max
_FACTORS = (0x100000001B3, 0x1F123BB5, 0x9E3779B1, 1)  # odd: the sum wraps in int64, a collision is unlikely


def repetition(ids_BT: torch.Tensor, keep_BT: torch.Tensor) -> Named:
    """Sum over rows the share of 4-grams that stood earlier in the same completion, and the share-of-rows counts.

    A row counts for `repetition` with 4 tokens or more, for `single` with 8 or more; gaps in the mask break a 4-gram.
    One sort of ids and one of 4-grams per row; never synchronises.
    """
    ids = ids_BT.long()
    return {**_repeated_grams(ids, keep_BT), **_single_token(ids, keep_BT)}


def _repeated_grams(ids: torch.Tensor, keep: torch.Tensor) -> Named:
    width = ids.shape[1] - _GRAM + 1
    if width < 1:
        zero = torch.zeros((), device=ids.device)
        return {"sum:repetition": zero, "sum:repetition_rows": zero}
    gram = sum(ids[:, i : i + width] * factor for i, factor in enumerate(_FACTORS))
    assert isinstance(gram, torch.Tensor)
    whole = keep[:, :width] & keep[:, 1 : 1 + width] & keep[:, 2 : 2 + width] & keep[:, 3 : 3 + width]
    ordered = torch.where(whole, gram, _NO_ID).sort(dim=1).values
    repeats = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != _NO_ID)).sum(1)
    grams = whole.sum(1)
    return {
        "sum:repetition": (repeats / grams.clamp(min=1)).double().sum() if ids.device.type != "mps" else (repeats / grams.clamp(min=1)).sum(),
        "sum:repetition_rows": (grams > 0).sum(),
    }


def _single_token(ids: torch.Tensor, keep: torch.Tensor) -> Named:
    """A token with more than half of the places is the median: only the median need be counted."""
    length = keep.sum(1)
    if not ids.shape[1]:
        return {"sum:single": length.sum(), "sum:single_rows": length.sum()}
    ordered = torch.where(keep, ids, _NO_ID).sort(dim=1).values
    middle = ordered.gather(1, (length // 2).clamp(max=ids.shape[1] - 1).unsqueeze(1))
    most = ((ids == middle) & keep).sum(1)
    long_enough = length >= _LEAST_TOKENS
    return {"sum:single": ((most > _SHARE * length) & long_enough).sum(), "sum:single_rows": long_enough.sum()}
