"""Policy layer: what the completions' ids say about collapse: repeated 4-grams, one token everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch

from grpo_sentinel.agent.probes.pack import wide_dtype
from grpo_sentinel.agent.probes.partials import Bag

_GRAM = 4
_LEAST_TOKENS = 8  # shorter completions say nothing about a single token
_SHARE = 0.9
_NO_ID = torch.iinfo(torch.int64).max


def repetition(bag: Bag, ids_BT: torch.Tensor, keep_BT: torch.Tensor) -> None:
    """Count per row: 4-grams, those that stood earlier in the same completion, tokens, and the commonest one's.

    Gaps in the mask break a 4-gram. One sort of 4-grams and one median per row; never synchronises.
    """
    ids = ids_BT.long()
    if ids.shape[1] >= _GRAM:
        _repeated_grams(bag, ids, keep_BT)
    if ids.shape[1]:
        _single_token(bag, ids, keep_BT)


def repetition_signals(columns: Mapping[str, Sequence[float]], places: int) -> dict[str, float]:
    """Sum over rows the share of repeated 4-grams, and mark one-token completions; `places`: of a 4-gram in a row.

    A row counts for `repetition` with 4 tokens or more, for `single` with 8 or more.
    """
    out = {}
    if "grams" in columns:
        # The 4-grams that the mask breaks are all alike: all but one of them were counted as repeats.
        pairs = [
            (same - max(0.0, places - whole - 1), whole)
            for same, whole in zip(columns["same"], columns["grams"], strict=True)
        ]
        shares = [repeats / whole for repeats, whole in pairs if whole]
        out.update({"sum:repetition": sum(shares), "sum:repetition_rows": float(len(shares))})
    if "most" in columns:
        long = [
            most > _SHARE * length
            for most, length in zip(columns["most"], columns["length"], strict=True)
            if length >= _LEAST_TOKENS
        ]
        out.update({"sum:single": float(sum(long)), "sum:single_rows": float(len(long))})
    return out


@lru_cache(maxsize=8)
def _factors(device: str) -> torch.Tensor:
    return torch.tensor([0x100000001B3, 0x1F123BB5, 0x9E3779B1, 1], device=device)  # sums wrap; a collision is unlikely


def _repeated_grams(bag: Bag, ids: torch.Tensor, keep: torch.Tensor) -> None:
    gram = (ids.unfold(1, _GRAM, 1) * _factors(str(ids.device))).sum(2)
    whole = keep.unfold(1, _GRAM, 1).all(2)
    ordered = torch.where(whole, gram, _NO_ID).sort(dim=1).values
    bag.column("same", (ordered[:, 1:] == ordered[:, :-1]).sum(1))
    bag.column("grams", whole.sum(1))


def _single_token(bag: Bag, ids: torch.Tensor, keep: torch.Tensor) -> None:
    """A token with more than half of the places is the median: only the median need be counted."""
    # Ids as floats, exact below 2**53 (2**24 without float64): only floats have a median that leaves places out.
    seen = torch.where(keep, ids.to(wide_dtype(ids.device)), torch.nan)
    bag.column("most", (seen == seen.nanmedian(dim=1, keepdim=True).values).sum(1))
    bag.column("length", keep.sum(1))
