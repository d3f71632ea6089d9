"""Checks on the single terms of a reward that is a sum, and on weights that stay what they were. `TERM_CHECKS` is the
table.

The sum may look alive while the one term that matters is dead, gives no number, or is traded for an easier one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from statistics import median

from grpo_sentinel.diagnosis.found import (
    ENTROPY,
    GRAD,
    KL,
    LENGTH,
    REWARD,
    Point,
    ends,
    finite_points,
    first_beyond,
    found,
    rewards_rise,
)
from grpo_sentinel.diagnosis.verdict import Candidate
from grpo_sentinel.diagnosis.view import LogView

_TERM = re.compile(r"(?:train/)?rewards/(?P<name>[^/]+?)(?:/mean)?$")
_OF_ANSWERS = re.compile(r"correct|accura|answer|math|solution|exact|verif|solve|pass|success", re.IGNORECASE)
_OF_SHAPE = re.compile(r"format|length|len_|xml|tag|strict|soft|style|penalt|overlong|repet|int_|number", re.IGNORECASE)
_FEW = 20  # rows below which a hard task may just not have been solved yet


def _terms(view: LogView) -> dict[str, list[Point]]:
    """Series of the means of every term of the reward."""
    names = dict.fromkeys(raw for row in view.rows for raw in row.raw if _TERM.fullmatch(raw))
    return {str(found_name["name"]): view.series(raw) for raw in names if (found_name := _TERM.fullmatch(raw))}


def _matters(name: str) -> bool:
    return _OF_ANSWERS.search(name) is not None and _OF_SHAPE.search(name) is None


def dead_term(view: LogView) -> Candidate | None:
    """The only term about the answers is one exact value in every row while others pay: it never sees what it needs."""
    terms = _terms(view)
    mattering = {name: points for name, points in terms.items() if _matters(name)}
    if len(terms) < 2 or len(mattering) != 1:
        return None
    ((name, points),) = mattering.items()
    values = {p[2] for p in points}
    if len(points) < _FEW or values != {0.0} or not any(len({p[2] for p in other}) >= _FEW for other in terms.values()):
        return None
    index, row, _ = points[0]
    return found(
        view, "dead_reward_term", "reward", 0.6, index, row,
        f"the term {name} is exactly 0 in all {len(points)} rows while others pay: nothing is learned about answers",
    )  # fmt: skip


def traded_term(view: LogView) -> Candidate | None:
    """The sum rises while the term about the answers falls by half: an easier term is farmed instead."""
    terms = _terms(view)
    if len(terms) < 2 or "margins" in terms or not rewards_rise(view):
        return None
    for name, series in terms.items():
        points = [p for p in series if math.isfinite(p[2])]
        if not _matters(name) or len(points) < 8:
            continue
        before, after = ends(points)
        if before > 0.1 and after < 0.5 * before:
            index, row, _ = first_beyond(points, (before + after) / 2, up=False)
            return found(
                view, "traded_reward_term", "reward", 0.6, index, row,
                f"the reward rises while its term {name} falls from {before:.3g} to {after:.3g}: another one pays more",
            )  # fmt: skip
    return None


def hollow_answers(view: LogView) -> Candidate | None:
    """The reward rises while completions shrink to a few tokens: the checker pays for what is no answer."""
    lengths = finite_points(view, LENGTH)
    if len(lengths) < 8 or not rewards_rise(view):
        return None
    before, after = ends(lengths)
    if after > 0.1 * before or after > 30:
        return None
    index, row, _ = first_beyond(lengths, (before + after) / 2, up=False)
    return found(
        view, "traded_reward_term", "reward", 0.55, index, row,
        f"the reward rises while completions shrink from {before:.0f} to {after:.0f} tokens: it pays for empty answers",
    )  # fmt: skip


def weights_stay(view: LogView) -> Candidate | None:
    """KL to the reference is exactly 0 in every row, and nothing else moves either, although there are gradients."""
    kls, grads = finite_points(view, KL), finite_points(view, GRAD)
    rates = finite_points(view, ("optimizer.learning_rate",))
    if len(kls) < _FEW or any(p[2] != 0 for p in kls) or len(grads) < _FEW or not rates:
        return None
    if median(p[2] for p in grads) <= 0 or median(p[2] for p in rates) <= 0 or rewards_rise(view):
        return None
    entropies = finite_points(view, ENTROPY)
    if len(entropies) < _FEW or _drifts(entropies):
        return None
    index, row, _ = kls[0]
    return found(
        view, "weights_stay", "optimizer", 0.6, index, row,
        f"KL to the reference is exactly 0 in all {len(kls)} rows, entropy and reward stay where they were, although "
        "gradients and learning rate are above 0: no update reaches the weights",
    )  # fmt: skip


def _drifts(points: list[Point]) -> bool:
    """Tell whether the last third lies beyond the noise of the first."""
    third = len(points) // 3
    first, last = [p[2] for p in points[:third]], [p[2] for p in points[-third:]]
    return abs(median(last) - median(first)) > max(0.05 * abs(median(first)), 0.5 * (max(first) - min(first)))


def silent_term(view: LogView) -> Candidate | None:
    """A term that gives no number in any row, although the sum is one: the sum leaves it out."""
    for name, points in _terms(view).items():
        if len(points) < 5 or any(math.isfinite(p[2]) for p in points):
            continue
        totals = view.series(*REWARD)
        if totals and all(math.isfinite(p[2]) for p in totals):
            index, row, _ = points[0]
            return found(
                view, "silent_reward_term", "reward", 0.6, index, row,
                f"the term {name} is no number in any of {len(points)} rows: the sum leaves it out",
            )  # fmt: skip
    return None


TERM_CHECKS: tuple[Callable[[LogView], Candidate | None], ...] = (
    dead_term,
    traded_term,
    hollow_answers,
    silent_term,
    weights_stay,
)
