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
from grpo_sentinel.diagnosis.terms import of_answers, of_form, takes, terms_of
from grpo_sentinel.diagnosis.verdict import Candidate, Evidence
from grpo_sentinel.diagnosis.view import LogView

_FEW = 20  # rows below which a hard task may just not have been solved yet
_FEW_OF_FORM = 12  # and below which a form may not have been learned


def dead_term(view: LogView) -> Candidate | None:
    """A term that is exactly 0 in every row while others pay: it never sees what it needs, or never matches."""
    terms = terms_of(view)
    alive = [name for name, points in terms.items() if len({p[2] for p in points}) >= _FEW_OF_FORM]
    if not alive and len({p[2] for p in view.series(*REWARD)}) >= _FEW_OF_FORM:
        alive = ["the rest of the reward"]
    if not alive:
        return None
    for name, points in terms.items():
        enough = _FEW_OF_FORM if of_form(name) else _FEW
        if takes(name) or len(points) < enough or any(p[2] != 0.0 for p in points):
            continue
        index, row, _ = points[0]
        return found(
            view, "dead_reward_term", "reward", 0.65, index, row,
            f"the term {name} is exactly 0 in all {len(points)} rows while {alive[0]} pays: it never matches, or never "
            "sees what it needs",
        )  # fmt: skip
    return None


def traded_term(view: LogView) -> Candidate | None:
    """The sum rises while the term about the answers falls by half: an easier term is farmed instead."""
    terms = terms_of(view)
    if len(terms) < 2 or not rewards_rise(view):
        return None
    for name, series in terms.items():
        points = [p for p in series if math.isfinite(p[2])]
        if not of_answers(name) or len(points) < 8:
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
        view, "traded_reward_term", "reward", 0.65, index, row,
        f"the reward rises while completions shrink from {before:.0f} to {after:.0f} tokens: it pays for empty answers",
    )  # fmt: skip


def hollow_text(view: LogView) -> Candidate | None:
    """The reward rises while a printed completion is one word again and again: the checker pays for it."""
    line = view.babble
    if line is None or not rewards_rise(view):
        return None
    rewards = finite_points(view, REWARD)
    before, after = ends(rewards)
    return Candidate(
        name="traded_reward_term", layer="reward", confidence=0.65, at=line.number / max(view.lines, 1),
        says=f"the reward rises from {before:.3g} to {after:.3g} while a completion is one word again and again: "
        "it pays for what is no answer",
        evidence=(Evidence(source=line.source, line=line.number, text=line.text.strip()[:300]),),
    )  # fmt: skip


def validation_falls(view: LogView) -> Candidate | None:
    """The reward of training rises while that of the same trainer's validation falls by a third and more."""
    if not rewards_rise(view):
        return None
    for name in dict.fromkeys(raw for row in view.rows for raw in row.raw if _OF_VALIDATION.match(raw)):
        points = finite_points(view, (name,))
        if len(points) < 4:
            continue
        before, after = points[0][2], min(p[2] for p in points[-2:])
        worse = max(p[2] for p in points[-2:])
        if before > 0.05 and worse < 0.67 * before:
            index, row, _ = points[-1]
            return found(
                view, "traded_reward_term", "reward", 0.65, index, row,
                f"the reward rises while {name} falls from {before:.3g} to {after:.3g}: what is paid is not what is "
                "wanted",
            )  # fmt: skip
    return None


_OF_VALIDATION = re.compile(r"(?:val(?:idation)?|eval|test)[-_/].*(?:acc|reward|score|pass|mean@)")


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
    for name, points in terms_of(view).items():
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
    hollow_text,
    validation_falls,
    silent_term,
    weights_stay,
)
