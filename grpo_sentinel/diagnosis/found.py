"""Makes a candidate of one row, and holds the fields and small questions that several checks share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from grpo_sentinel.diagnosis.thinning import rank_of
from grpo_sentinel.diagnosis.verdict import Candidate, Evidence
from grpo_sentinel.diagnosis.view import LogView
from grpo_sentinel.history.logs.formats import Row

Point = tuple[int, Row, float]
GRAD = ("grad_norm", "actor/grad_norm", "gradient.norm_preclip")
LOSS = ("loss", "lm loss", "policy.loss", "policy.pg_loss")
STD = ("reward_std", "reward.group_std_mean")
REWARD = ("reward", "critic/score/mean", "average reward score", "reward.mean")
KL = ("policy.kl_k3_nats", "policy.kl_k1_nats", "policy.kl_loss")
LENGTH = ("data.completion_length_mean",)
ENTROPY = ("policy.entropy_nats",)
CUT = ("data.truncated_ratio",)


def found(
    view: LogView,
    name: str,
    layer: str,
    confidence: float,
    index: int,
    row: Row,
    says: str,
    *,
    role: str = "cause",
    would_decide: tuple[str, ...] = (),
) -> Candidate:
    shown = ", ".join(f"{key}={value}" for key, value in list(row.raw.items())[:12])
    where = row.step if row.step is not None else _step_of(view, index)
    return Candidate(
        name=name,
        layer=layer,
        role=role,
        confidence=confidence,
        says=says,
        step=where,
        rank=row.rank if row.rank is not None else rank_of("", row.source),
        at=row.line / max(view.lines, 1),
        would_decide=would_decide,
        evidence=(Evidence(source=row.source, line=row.line, text=shown[:300]),),
    )


def _step_of(view: LogView, index: int) -> int | None:
    """Guess the step of a row without one from its place, where the log began at the first step."""
    if view.rows_seen > len(view.rows):
        return None  # rows were forgotten between
    return index + 1 if all(row.step is None for row in view.rows[: index + 1]) else None


def with_step(candidate: Candidate, step: int | None) -> Candidate:

    return replace(candidate, step=step if step is not None else candidate.step)


def finite_points(view: LogView, names: Sequence[str]) -> list[Point]:
    """Points of a series that are numbers."""
    return [point for point in view.series(*names) if math.isfinite(point[2])]


def ends(points: Sequence[Point]) -> tuple[float, float]:
    """Medians of the first and the last quarter."""
    quarter = max(1, len(points) // 4)
    return median(p[2] for p in points[:quarter]), median(p[2] for p in points[-quarter:])


def first_beyond(points: Sequence[Point], limit: float, *, up: bool) -> Point:
    """The first point of the last stretch that lies beyond a limit."""
    at = points[-1]
    for point in reversed(points):
        if (point[2] > limit) is not up:
            break
        at = point
    return at


def jitter(points: Sequence[Point]) -> float:
    """What a value usually moves from one row to the next."""
    values = [p[2] for p in points]
    return median(abs(after - before) for before, after in pairwise(values)) if len(values) > 1 else 0.0


def equal_tail(points: Sequence[Point]) -> list[Point]:
    """The points at the end that have one value to the last digit."""
    out: list[Point] = []
    for point in reversed(points):
        if out and point[2] != out[-1][2]:
            break
        out.append(point)
    return out[::-1]


def rewards_rise(view: LogView) -> bool:
    """Tell whether the mean reward is higher at the end than at the start, beyond the noise of its rows."""
    points = finite_points(view, REWARD)
    if len(points) < 6:
        return False
    before, after = ends(points)
    return after > before + max(0.05 * abs(before), 0.02)


def rewards_suffer(view: LogView) -> bool:
    """Tell whether the rewards of the last quarter stand still, are worse than at the start or no numbers at all."""
    points = view.series(*REWARD)
    if len(points) < 4 or any(not math.isfinite(p[2]) for p in points):
        return True
    quarter = max(3, len(points) // 4)
    first, last = [p[2] for p in points[:quarter]], [p[2] for p in points[-quarter:]]
    noise = max(first) - min(first)
    return max(last) == min(last) or median(last) < median(first) - max(0.4 * abs(median(first)), 0.5 * noise)


def all_are_cut(view: LogView, index: int) -> bool:
    """Tell whether every completion from a row on ends at the limit: by its share, or by one length to the digit."""
    cut = [value for at, _, value in view.series(*CUT) if at >= index and math.isfinite(value)]
    if cut:
        return median(cut) >= 0.99
    lengths = [value for at, _, value in view.series(*LENGTH) if at >= index]
    return len(lengths) >= 5 and min(lengths) == max(lengths) >= 16
