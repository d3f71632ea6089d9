"""Checks on what is not there: fields that stop, values that never move. `ABSENCE_CHECKS` is the table.

Loggers delete NaN, exporters repeat the last value and counters stay 0, so a run can be dead while every number that is
printed looks right. None of these fires on fewer than five rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from statistics import median

from grpo_sentinel.diagnosis.found import GRAD, LOSS, REWARD, STD, Point, equal_tail, found
from grpo_sentinel.diagnosis.verdict import Candidate
from grpo_sentinel.diagnosis.view import LogView
from grpo_sentinel.history.logs.formats import Row

_FEW = 5


def loss_nonfinite(view: LogView) -> Candidate | None:
    """A loss that stays NaN where no gradient norm is logged, or where the logged one looks harmless."""
    points = view.series(*LOSS)
    if any(not math.isfinite(p[2]) for p in view.series(*GRAD)):
        return None  # said by the gradient itself
    tail: list[Point] = []
    for point in reversed(points):
        if math.isfinite(point[2]):
            break
        tail.append(point)
    if len(tail) < 2:
        return None
    index, row, value = tail[-1]
    return found(
        view, "loss_nonfinite", "gradient", 0.8, index, row, f"the loss is {value} in the last {len(tail)} rows",
    )  # fmt: skip


_WATCHED: tuple[tuple[str, str, str], ...] = (
    ("gradient.norm_preclip", "gradient", "gradient norm"), ("policy.loss", "gradient", "loss"),
    ("reward.mean", "reward", "reward"), ("policy.entropy_nats", "policy", "entropy"),
    ("optimizer.learning_rate", "optimizer", "learning rate"),
)  # fmt: skip


def field_vanished(view: LogView) -> Candidate | None:
    """A field that stood in every row of its kind and is gone from some row on: NaN that the logger left out."""
    for signal, layer, what in _WATCHED:
        rows = [(index, row, signal in row.signals()) for index, row in enumerate(view.rows) if _alike(row, signal)]
        last = max((place for place, one in enumerate(rows) if one[2]), default=-1)
        gone = rows[last + 1 :]
        before = rows[: last + 1]
        if len(gone) < _FEW or len(before) < _FEW or sum(one[2] for one in before) < 0.95 * len(before):
            continue
        index, row, _ = gone[0]
        return found(
            view, "field_vanished", layer, 0.7, index, row,
            f"the {what} is missing from here on ({len(gone)} rows); before, every row had it: loggers leave NaN out",
        )  # fmt: skip
    return None


def _alike(row: Row, signal: str) -> bool:
    """Rows that carry two other training fields: not those of an evaluation or of a rollout."""
    if row.format == "nemo":  # joined over lines: a torn block lacks fields
        return len(row.raw) >= 3
    signals = row.signals()
    return sum(one in signals for one, _, _ in _WATCHED if one != signal) >= 2


def scheduler_froze(view: LogView) -> Candidate | None:
    """A learning rate that fell evenly and stops dead above its floor: the scheduler is no longer stepped."""
    points = [p for p in view.series("optimizer.learning_rate") if math.isfinite(p[2])]
    tail = equal_tail(points)
    fall = points[: len(points) - len(tail) + 1][-2 * _FEW :]
    if len(tail) < _FEW or len(fall) < _FEW:
        return None
    steps = [before[2] - after[2] for before, after in pairwise(fall)]
    if min(steps) <= 0 or steps[-1] < 0.5 * median(steps):
        return None  # it did not fall, or it slowed down before it came to rest: a floor
    top, rest = max(p[2] for p in points), tail[0][2]
    if rest <= 0.12 * top or any(
        abs(rest - share * top) < 0.01 * top for share in (0.1, 0.2, 0.25, 0.5) if share < 0.3
    ):
        return None
    index, row, _ = tail[1]
    return found(
        view, "scheduler_froze", "optimizer", 0.65, index, row,
        f"the learning rate fell evenly and then stays at {rest:g} for {len(tail)} rows, far above the end of its "
        "schedule",
    )  # fmt: skip


def gradient_zero_while_rewards_move(view: LogView) -> Candidate | None:
    """A gradient of exactly zero to the end while rewards of different batches differ, where no spread is logged."""
    if view.series(*STD):
        return None
    points = view.series(*GRAD)
    tail = equal_tail(points)
    if len(tail) < _FEW or tail[0][2] != 0:
        return None
    index, row, _ = tail[0]
    rewards = [p[2] for p in view.series(*REWARD) if p[0] >= index - 1 and math.isfinite(p[2])]
    rates = [p[2] for p in view.series("optimizer.learning_rate") if p[0] >= index]
    if len(set(rewards)) < _FEW or (rates and max(rates) == 0 and row.format != "verl"):
        return None
    return found(
        view, "gradient_died" if len(tail) < len(points) else "disconnected_gradient", "gradient", 0.75, index, row,
        f"the gradient norm is exactly 0 in {len(tail)} rows to the end while rewards differ",
    )  # fmt: skip


def gradient_zero_unexplained(view: LogView) -> Candidate | None:
    """A gradient of exactly zero to the end of a log that shows no rewards: a live loss tells whose fault it is."""
    if view.series(*STD) or view.series(*REWARD):
        return None
    tail = equal_tail(view.series(*GRAD))
    if len(tail) < _FEW or tail[0][2] != 0:
        return None
    index, row, _ = tail[0]
    losses = [abs(p[2]) for p in view.series(*LOSS) if p[0] >= index and math.isfinite(p[2])]
    says = f"the gradient norm is exactly 0 in the last {len(tail)} rows"
    if losses and median(losses) > 0:
        return found(view, "disconnected_gradient", "gradient", 0.65, index, row, f"{says} although there is a loss")
    says += ": rewards that do not differ and a loss without parameters look alike here"
    return found(
        view, "gradient_unexplained", "undetermined", 0.3, index, row, says, role="witness",
        would_decide=("the rewards of these steps and their spread inside groups",),
    )  # fmt: skip


ABSENCE_CHECKS: tuple[Callable[[LogView], Candidate | None], ...] = (
    loss_nonfinite,
    field_vanished,
    scheduler_froze,
    gradient_zero_while_rewards_move,
    gradient_zero_unexplained,
)
