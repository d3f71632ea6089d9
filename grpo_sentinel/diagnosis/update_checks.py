"""From series to candidates: what the optimizer did, and weights that one update or a failed load destroyed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from grpo_sentinel.diagnosis.found import GRAD, KL, LOSS, Point, equal_tail, found
from grpo_sentinel.diagnosis.verdict import Candidate
from grpo_sentinel.diagnosis.view import LogView, finite

VOCABULARIES = (32000, 32768, 50257, 50304, 65536, 100352, 128256, 129280, 151643, 151936, 152064, 248320, 256000)


def uniform_start(view: LogView) -> Candidate | None:
    """A loss of ln(vocabulary) is that of uniform logits: the weights were never loaded."""
    losses = view.series(*LOSS)
    if not losses:
        return None
    index, row, value = losses[0]
    for size in VOCABULARIES:
        if value > 9 and abs(value - math.log(size)) < 0.02:
            return found(
                view, "uniform_logits", "policy", 0.85, index, row,
                f"the loss starts at {value:.3f} = ln({size}): the logits are uniform, the weights were never loaded",
            )  # fmt: skip
    return None


def destroyed_policy(view: LogView) -> Candidate | None:
    """Entropy falls to nothing within one step: one update destroyed the policy."""
    points = view.series("entropy", "policy.entropy_nats")
    for (_, _, before), (index, row, after) in pairwise(points):
        if before > 0.05 and 0 <= after < before / 20 and _stays(points, index, before / 5):
            cut = row.signals().get("data.truncated_ratio")
            says = f"entropy fell from {before:.3g} to {after:.3g} within one step and stayed there"
            if cut is not None and cut >= 0.9:
                says += ", and every completion is cut"
            return found(
                view, "one_bad_update", "optimizer", 0.75, index, row, says,
            )  # fmt: skip
    return None


def _stays(points: Sequence[Point], index: int, below: float) -> bool:
    """Hold for the rows after `index`, but not when the row alone has a zero gradient (a masked batch)."""
    rest = [p[2] for p in points if p[0] >= index]
    return len(rest) >= 2 and all(value < below for value in rest)


def learning_rate(view: LogView) -> Candidate | None:
    """A rate no optimizer of a language model survives, or one that is zero all along."""
    points = view.series("optimizer.learning_rate")
    values = finite(p[2] for p in points)
    if not values:
        return None
    for index, row, value in points:
        if value >= 0.01:
            return found(
                view, "huge_learning_rate", "optimizer", 0.85, index, row, f"the learning rate is {value:g}",
            )  # fmt: skip
    for (_, _, before), (index, row, after) in pairwise(points):
        if before > 0 and after > 10 * before and after > 1e-5 and index > 3:
            return found(
                view, "learning_rate_jump", "optimizer", 0.6, index, row,
                f"the learning rate jumped from {before:g} to {after:g}",
            )  # fmt: skip
    limit = 1e-3 if not _drifts_off(view) else _HOT_OF_ADAPTERS if view.adapters else _HOT
    if max(values) >= limit and _went_wrong(view):
        index, row, value = next(p for p in points if p[2] >= limit)
        return found(
            view, "hot_learning_rate", "optimizer", 0.65, index, row,
            f"the learning rate is {value:g}, ten times what is usual and more, and the run came apart under it",
        )  # fmt: skip
    if len(values) >= 5 and max(values) == 0 and not _rounded(view, points[0][1].format):
        index, row, _ = points[0]
        return found(
            view, "never_a_learning_rate", "optimizer", 0.7, index, row, "the learning rate is 0 in every row",
        )  # fmt: skip
    return None


_HOT, _HOT_OF_ADAPTERS = 2e-5, 2e-4  # ten times the usual rate of GRPO, for all weights and for adapters


def _drifts_off(view: LogView) -> bool:
    """Tell whether KL, loss or gradients multiply: the policy is thrown away from where it was."""
    for names, least in ((KL, 1.0), (LOSS, 1.0), (GRAD, 1.0)):
        values = [abs(p[2]) for p in view.series(*names) if math.isfinite(p[2])]
        early, late = values[: max(3, len(values) // 8)], values[-max(1, len(values) // 4) :]
        if len(values) >= 6 and median(late) > max(10 * median(early), least):
            return True
    return False


def schedule_ended(view: LogView) -> Candidate | None:
    """A rate that has come to exactly 0 while many more rows follow: the schedule was made for fewer steps."""
    points = [p for p in view.series("optimizer.learning_rate") if math.isfinite(p[2])]
    tail = equal_tail(points)
    if len(tail) < max(6, 0.15 * len(points)) or tail[0][2] != 0 or len(tail) == len(points):
        return None
    index, row, _ = tail[0]
    if row.format in ("verl", "plain"):
        return None  # they round
    return found(
        view, "zero_learning_rate", "optimizer", 0.65, index, row,
        f"the learning rate is exactly 0 in the last {len(tail)} rows: its schedule ended before the run",
    )  # fmt: skip


def _rounded(view: LogView, form: str) -> bool:
    """Tell whether 0 may be a small rate: verl rounds it, and so may a loop of one's own, if KL rises all the same."""
    if form != "plain":
        return form == "verl"
    kls = [p[2] for p in view.series(*KL) if math.isfinite(p[2])]
    return len(kls) >= 5 and median(kls[-3:]) > 3 * max(median(kls[:3]), 1e-6)


def _went_wrong(view: LogView) -> bool:
    """Reward gone, gradients grown tenfold, or something no longer finite."""
    grads = [p[2] for p in view.series(*GRAD)]
    rewards = [p[2] for p in view.series("reward.mean")]
    if any(not math.isfinite(value) for value in (*grads, *rewards)):
        return True
    quarter = max(1, len(rewards) // 4)
    fell = (
        len(rewards) >= 6
        and median(rewards[:quarter]) > 0
        and median(rewards[-quarter:]) < median(rewards[:quarter]) / 2
    )
    return fell or (len(grads) >= 6 and max(grads[-3:]) > 10 * max(1e-9, median(grads[:3])))


UPDATE_CHECKS: tuple[Callable[[LogView], Candidate | None], ...] = (
    uniform_start,
    learning_rate,
    schedule_ended,
    destroyed_policy,
)
