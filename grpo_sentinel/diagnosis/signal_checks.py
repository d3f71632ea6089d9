"""Checks on rewards that tell nothing apart: every completion of a group scores the same. `SIGNAL_CHECKS` is the table.

A task that is solved, and a policy that is broken, also give equal scores: these are told apart by what came before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from grpo_sentinel.diagnosis.cut_checks import cut_or_noise
from grpo_sentinel.diagnosis.found import (
    CUT,
    GRAD,
    KL,
    LENGTH,
    REWARD,
    STD,
    Point,
    all_are_cut,
    equal_tail,
    found,
    rewards_rise,
)
from grpo_sentinel.diagnosis.verdict import Candidate
from grpo_sentinel.diagnosis.view import LogView

_FEW = 5


def no_signal(view: LogView) -> Candidate | None:
    """Every group has equal rewards: nothing is learned. Truncation is the cause where every completion is cut."""
    share = view.series("frac_reward_zero_std", "reward.zero_std_ratio")
    stds = view.series(*STD)
    series = share or stds
    dead = [p for p in series if (p[2] >= 0.999 if share else p[2] == 0.0)]
    total = len(series)
    tail = _trailing(series, dead)
    few = len(dead) < 0.9 * total  # a rare signal is a signal
    if (
        not dead
        or (few and not _beyond_chance(total, len(dead), len(tail)))
        or _climbed(view, tail)
        or _walked_off(view, dead[0][0])
    ):
        return None
    if len(tail) >= 3:
        dead = list(_with_strays(series, dead, tail))  # the onset is where it began for good
    index, row, _ = dead[0]
    confidence = 0.7 if len(dead) >= 3 else 0.6
    if row.signals().get("data.truncated_ratio", 0.0) >= 0.99 or all_are_cut(view, index):
        return cut_or_noise(
            view, index, row, "every completion is cut at the limit, so all score the same and the gradient is zero"
        )
    if _empty(view, index):
        return None  # completions without a word score the same whatever scores them
    reward = row.signals().get("reward.mean")
    return found(
        view, "constant_reward", "reward", confidence, index, row,
        f"all completions of every group score the same ({reward}): no advantage, no gradient"
        f" ({len(dead)} of {total} rows)",
    )  # fmt: skip


def _empty(view: LogView, index: int) -> bool:
    lengths = [p[2] for p in view.series(*LENGTH) if p[0] >= index and math.isfinite(p[2])]
    return len(lengths) >= 2 and median(lengths) <= 1.5


def _climbed(view: LogView, tail: Sequence[Point]) -> bool:
    """Tell whether the rewards had risen to the value at which they now all agree: the task is solved."""
    if not tail:
        return False
    points = [p for p in view.series(*REWARD) if math.isfinite(p[2])]
    before, after = [p[2] for p in points if p[0] < tail[0][0]], [p[2] for p in points if p[0] >= tail[0][0]]
    if len(before) < 6 or not after:
        return False
    stds = [p[2] for p in view.series(*STD) if p[0] < tail[0][0] and math.isfinite(p[2])]
    if len(stds) >= 6 and median(stds[-3:]) > 0.5 * median(stds[:3]):
        return False  # groups differed as ever up to that row: nothing was climbed, something stopped
    return median(after) > 0 and 0.8 * median(after) <= median(before[-6:]) > 1.1 * median(before[:3])


def _walked_off(view: LogView, index: int) -> bool:
    """Tell whether KL had multiplied by then: that all score the same is what a broken policy gives."""
    kls = [p for p in view.series(*KL) if math.isfinite(p[2])]
    before, there = [p[2] for p in kls if p[0] < index], [p[2] for p in kls if p[0] >= index]
    return len(before) >= 2 and len(there) >= 2 and median(there) > max(50 * median(before), 1.0)


def _beyond_chance(total: int, dead: int, tail: int) -> bool:
    """Tell whether so many dead rows at the end are more than the rate of dead rows before them explains."""
    rate = (dead - tail + 0.5) / (total - tail + 1)
    return tail >= 3 and rate**tail < 0.005


def _trailing(series: Sequence[Point], dead: Sequence[Point]) -> list[Point]:
    """Give the dead rows at the end, without a break."""
    places = {point[0] for point in dead}
    out: list[Point] = []
    for point in reversed(series):
        if point[0] not in places:
            break
        out.append(point)
    return out[::-1]


def _with_strays(series: Sequence[Point], dead: Sequence[Point], tail: Sequence[Point]) -> Sequence[Point]:
    """Lengthen the dead end backwards over single rows that are alive where at least three dead ones stand before."""
    places = {point[0] for point in dead}
    start = next(at for at, point in enumerate(series) if point[0] == tail[0][0])
    while start >= 4 and all(point[0] in places for point in series[start - 4 : start - 1]):
        start -= 4
        while start and series[start - 1][0] in places:
            start -= 1
    return [point for point in series[start:] if point[0] in places]


def reward_never_moves(view: LogView) -> Candidate | None:
    """The same mean reward to the last digit in one batch after another, where no spread is logged."""
    if view.series(*STD) or view.series("frac_reward_zero_std", "reward.zero_std_ratio"):
        return None
    points = [p for p in view.series(*REWARD) if math.isfinite(p[2])]
    tail = equal_tail(points)
    before = points[: len(points) - len(tail)]
    varied = len(before) >= 8 and all(a[2] != b[2] for a, b in pairwise(before))  # then even four equal ones are many
    if len(tail) < (4 if varied else 6) or (not varied and len(tail) < 0.5 * len(points) and len(tail) < 10):
        return None
    index, row, value = tail[0]
    if value > 0 and before and value >= max(p[2] for p in before) and median(p[2] for p in before[-6:]) >= 0.8 * value:
        return None  # it climbed to its top: the task is solved
    if before and _walked_off(view, index):
        return None
    if value not in (0.0, 1.0) and not varied and not _no_spread(view, index, whole=not before):
        return None
    if all_are_cut(view, index):
        return cut_or_noise(
            view, index, row, "every completion is cut at the limit, so all score the same and there is no advantage"
        )
    if _empty(view, index):
        return None
    return found(
        view, "constant_reward", "reward", 0.7, index, row,
        f"the mean reward is exactly {value:g} in the last {len(tail)} rows: all completions score the same",
    )  # fmt: skip


def _no_spread(view: LogView, index: int, *, whole: bool) -> bool:
    """Largest and smallest score are one, or nothing reaches the parameters: then equal means are equal scores."""
    tops = {i: v for i, _, v in view.series("reward.max") if i >= index}
    lows = {i: v for i, _, v in view.series("reward.min") if i >= index}
    grads = [value for i, _, value in view.series(*GRAD) if i >= index]
    if tops and lows:
        return all(lows.get(i) == v for i, v in tops.items()) or (bool(grads) and max(grads) == 0)
    return max(grads) == 0 if grads else whole


def mostly_cut(view: LogView) -> Candidate | None:
    """Nearly every completion, or prompt, ends at its limit from the first row on, and no reward rises all the same."""
    if rewards_rise(view):
        return None
    if not view.series(*CUT):
        lengths = [p for p in view.series(*LENGTH) if math.isfinite(p[2])]
        if len(lengths) >= 2 * _FEW and len({p[2] for p in lengths}) == 1 and lengths[0][2] >= 64:
            index, row, value = lengths[0]
            return cut_or_noise(
                view, index, row,
                f"completions are {value:g} tokens long in every one of {len(lengths)} rows: all are cut at the limit",
            )  # fmt: skip
    for names, what in ((CUT, "completions"), (("data.prompt_clip_ratio",), "prompts")):
        points = [p for p in view.series(*names) if math.isfinite(p[2])]
        over = [p for p in points if p[2] >= 0.95]
        if len(points) >= _FEW and len(over) >= 0.9 * len(points) and points[0] in over:
            index, row, value = points[0]
            return cut_or_noise(
                view, index, row,
                f"{value:.0%} of the {what} are cut at the limit, and hardly fewer in any of {len(points)} rows",
            )  # fmt: skip
    return None


SIGNAL_CHECKS: tuple[Callable[[LogView], Candidate | None], ...] = (no_signal, reward_never_moves, mostly_cut)
