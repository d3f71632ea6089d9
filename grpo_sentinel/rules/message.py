"""Turns a verdict into the words of a finding: numbers with their unit, ranks by name."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_sentinel.catalog import signal_of
from grpo_sentinel.rules.quantities import percentage, quantity
from grpo_sentinel.rules.rule import Rule
from grpo_sentinel.rules.view import Verdict


def rank_words(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0 and 3`, or `rank not known`."""
    if not ranks:
        return "rank not known"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 8:
        return f"{len(ranks)} ranks"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def write(rule: Rule, verdict: Verdict, *, step: int, onset: int, ranks: Sequence[int], subject: str) -> str:
    """Fill the rule's message."""
    base = signal_of(verdict.signal) if verdict.signal and " " not in verdict.signal else None
    unit = base.unit if base is not None else ("bytes" if "_bytes" in verdict.signal else "")
    return rule.message.format(
        value=quantity(verdict.value, unit),
        percent=percentage(verdict.value),
        limit=quantity(verdict.limit, unit),
        step=step,
        onset=onset,
        ranks=rank_words(ranks),
        subject=subject or ("parameter not known" if rule.attribution == "nonfinite" else "?"),
        signal=verdict.signal,
        detail=verdict.detail,
    )
