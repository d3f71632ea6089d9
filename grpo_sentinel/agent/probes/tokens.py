"""Policy layer: what the completions' ids say about collapse: repeated 4-grams, one token everywhere."""

from __future__ import annotations

from functools import lru_cache

import torch

from grpo_sentinel.agent.probes.pack import wide_dtype
from grpo_sentinel.agent.probes.partials import Bag

_GRAM = 4
_LEAST_TOKENS = 8  # shorter completions say nothing about a single token
_SHARE = 0.9
_NO_ID = torch.iinfo(torch.int64).max


def repetition(bag: Bag, ids_BT: torch.Tensor, keep_BT: torch.Tensor) -> None:
    """Sum over rows the share of 4-grams that stood earlier in the same completion, and mark one-token completions.

    A row counts for `repetition` with 4 tokens or more, for `single` with 8 or more; gaps in the mask break a 4-gram.
    One sort of ids and one of 4-grams per row; never synchronises.
    """
    ids = ids_BT.long()
    if ids.shape[1] >= _GRAM:
        _repeated_grams(bag, ids, keep_BT)
    if ids.shape[1]:
        _single_token(bag, ids, keep_BT)


@lru_cache(maxsize=8)
def _factors(device: str) -> torch.Tensor:
    return torch.tensor([0x100000001B3, 0x1F123BB5, 0x9E3779B1, 1], device=device)  # sums wrap; a collision is unlikely


def _repeated_grams(bag: Bag, ids: torch.Tensor, keep: torch.Tensor) -> None:
    gram = (ids.unfold(1, _GRAM, 1) * _factors(str(ids.device))).sum(2)
    whole = keep.unfold(1, _GRAM, 1).all(2)
    ordered = torch.where(whole, gram, _NO_ID).sort(dim=1).values
    later = ordered[:, 1:]
    repeats = ((later == ordered[:, :-1]) & (later != _NO_ID)).sum(1)
    grams = whole.sum(1)
    bag.put(["sum:repetition"], (repeats.to(wide_dtype(ids.device)) / grams.clamp(min=1)).sum())
    bag.put(["sum:repetition_rows"], (grams > 0).sum())


def _single_token(bag: Bag, ids: torch.Tensor, keep: torch.Tensor) -> None:
    """A token with more than half of the places is the median: only the median need be counted."""
    length = keep.sum(1)
    # Ids as floats, exact below 2**53 (2**24 without float64): only floats have a median that leaves places out.
    wide = ids.to(wide_dtype(ids.device))
    middle = torch.where(keep, wide, torch.nan).nanmedian(dim=1, keepdim=True).values
    most = ((wide == middle) & keep).sum(1)
    long_enough = length >= _LEAST_TOKENS
    bag.put(
        ["sum:single", "sum:single_rows"], torch.stack([(most > _SHARE * length) & long_enough, long_enough]).sum(1)
    )
