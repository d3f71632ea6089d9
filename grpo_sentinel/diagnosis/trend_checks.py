"""Checks over whole series: what vanished, was pinned or drifted apart. `TREND_CHECKS` is the table.

Each compares the first quarter of a log with its last, or asks whether something never moves; none of them fires on
one row alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from statistics import median

from grpo_sentinel.diagnosis.found import GRAD, LOSS, REWARD, STD, ends, finite_points, first_beyond, found
from grpo_sentinel.diagnosis.lines_checks import evidence
from grpo_sentinel.diagnosis.normal import one_nan_loss
from grpo_sentinel.diagnosis.verdict import Candidate
from grpo_sentinel.diagnosis.view import LogView

_GAP = ("policy.sampling_gap_mean_nats", "policy.sampling_k3_nats")
_LN2 = math.log(2)


def gap_grows(view: LogView) -> Candidate | None:
    """Rollout engine and trainer drift apart: a time-out of the rollout comes later and is no cause."""
    points = finite_points(view, _GAP)
    if len(points) < 6:
        return None
    before, after = ends([(i, row, abs(value)) for i, row, value in points])
    if after < 0.03 or after < 4 * before:
        return None
    index, row, _ = first_beyond([(i, r, abs(v)) for i, r, v in points], (before + after) / 2, up=True)
    return found(
        view, "engine_gap_grows", "policy", 0.7, index, row,
        f"the log-prob gap between rollout engine and trainer grew from {before:.3g} to {after:.3g}",
    )  # fmt: skip


def pairs_are_equal(view: LogView) -> Candidate | None:
    """A pair loss of exactly ln 2: chosen and rejected are the same after truncation."""
    points = view.series(*LOSS)
    equal = [p for p in points if abs(p[2] - _LN2) < 2e-5]
    if len(equal) < 3 or len(equal) < 0.8 * len(points):
        return None
    index, row, value = equal[0]
    return found(
        view, "pairs_equal", "data", 0.7, index, row,
        f"the loss is {value:.6f} = ln 2 in {len(equal)} rows: chosen and rejected look the same to the model",
    )  # fmt: skip


def ratio_off(view: LogView) -> Candidate | None:
    """The importance ratio of engine to trainer pinned to one value: samplers differ by a constant."""
    lows = {i: v for i, _, v in view.series("sampling/importance_sampling_ratio/min")}
    for index, row, high in view.series("sampling/importance_sampling_ratio/max"):
        if lows.get(index) == high and abs(high - 1) > 0.05:
            return found(
                view, "ratio_pinned", "policy", 0.7, index, row, f"the importance ratio is {high:g} for every token",
            )  # fmt: skip
    points = finite_points(view, ("sampling/importance_sampling_ratio/mean", "is_ratio"))
    values = [p[2] for p in points]
    if len(values) >= 3 and max(values) < 0.97 and max(values) - min(values) < 0.02 * max(values):
        index, row, value = points[0]
        return found(
            view, "sampler_cut", "policy", 0.65, index, row,
            f"the importance ratio stays at {value:.3g}: the sampler cuts off the rest of the distribution",
        )  # fmt: skip
    return None


def isolated_nan_loss(view: LogView) -> Candidate | None:
    """One NaN loss between finite ones, where no gradient is logged: an empty or skipped batch."""
    if view.series(*GRAD):
        return None
    points = view.series(*LOSS)
    bad = [p for p in points if not math.isfinite(p[2])]
    if not bad or len(points) < 3 or len(bad) > max(1, len(points) // 3) or one_nan_loss(view):
        return None
    places = {p[0] for p in bad}
    if points[0] in bad or points[-1] in bad or any(place + 1 in places for place in places):
        return None
    index, row, value = bad[0]
    norms = [name for name, other in row.raw.items() if name.endswith("norm") and not _is_finite(other)]
    if norms:
        return found(
            view, "isolated_nonfinite_gradient", "gradient", 0.6, index, row,
            f"the loss is {value} in one row between finite ones, and so is {norms[0]}: that update was skipped",
            role="symptom",
        )  # fmt: skip
    return found(
        view, "isolated_nan_loss", "data", 0.45, index, row,
        f"the loss is {value} in one row between finite ones: that batch was empty or skipped",
        role="symptom",
    )  # fmt: skip


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def loss_vanished(view: LogView) -> Candidate | None:
    """Megatron leaves the loss out of the line when it is NaN; its counters stay 0."""
    seen = False
    for index, row in enumerate(view.rows):
        if row.format != "megatron":
            continue
        if "lm loss" in row.raw:
            seen = True
        elif seen and "learning rate" in row.raw:
            return found(
                view, "loss_vanished", "gradient", 0.85, index, row,
                "the field `lm loss` is missing from here on: Megatron leaves a NaN loss out, and its counters stay 0",
            )  # fmt: skip
    return None


def iterations_lost(view: LogView) -> Candidate | None:
    """Megatron's own counts: iterations that were NaN, or skipped to the end after the loss scale had been found."""
    for name, enough, what in (("number of nan iterations", 2, "NaN"), ("number of skipped iterations", 20, "skipped")):
        counts = finite_points(view, (name,))
        lost = [p for p in counts if p[2] > 0]
        if len(lost) >= enough and lost[-1] is counts[-1]:
            index, row, _ = lost[0]
            return found(
                view,
                "updates_skipped",
                "gradient",
                0.7,
                index,
                row,
                f"{len(lost)} iterations were {what} up to the last",
            )
    return None


def gradient_died(view: LogView) -> Candidate | None:
    """Gradients that were there and are exactly zero to the end, although rewards differ."""
    points = view.series(*GRAD)
    alive = [place for place, p in enumerate(points) if p[2] != 0]
    if not alive or len(points) - alive[-1] - 1 < 5:
        return None
    index, row, _ = points[alive[-1] + 1]
    stds = [v for i, _, v in view.series(*STD) if i >= index]
    rates = [v for i, _, v in view.series("optimizer.learning_rate") if i >= index]
    rewards = [v for i, _, v in view.series(*REWARD) if i >= index]
    if not stds or median(stds) <= 0 or (rates and max(rates) == 0) or not all(map(math.isfinite, (*stds, *rewards))):
        return None
    return found(
        view, "gradient_died", "gradient", 0.75, index, row,
        f"the gradient norm is exactly 0 in the last {len(points) - alive[-1] - 1} rows although rewards differ",
    )  # fmt: skip


def skipped_all(view: LogView) -> Candidate | None:
    """DeepSpeed's own count: as many updates skipped as steps made."""
    first, last = view.hits.get("skipped_count", [None])[0], view.last_hits.get("skipped_count")
    if first is None or last is None:
        return None
    steps = int(last.groups["step"]) - int(first.groups["step"])
    skipped = int(last.groups["skipped"]) - int(first.groups["skipped"])
    if steps < 20 or skipped < 0.8 * steps:
        return None
    return Candidate(
        name="updates_skipped", layer="gradient", confidence=0.8, step=int(first.groups["step"]),
        says=f"{skipped} of {steps} updates were skipped: every gradient overflows, the weights do not move",
        at=first.line.number / max(view.lines, 1), evidence=(evidence(first), evidence(last)),
    )  # fmt: skip


def value_loss_before_overflow(view: LogView) -> Candidate | None:
    """A value loss that doubles beside an overflow at a low scale: the overflow is its consequence."""
    overflow = view.hits.get("overflow")
    points = finite_points(view, ("losses/value_loss", "cri_loss"))
    for (_, _, before), (index, row, after) in pairwise(points):
        if overflow and before > 0 and after > 2 * before and after > 1:
            return found(
                view, "value_loss_jump", "gradient", 0.65, index, row,
                f"the value loss jumped from {before:.3g} to {after:.3g} around a loss-scale overflow",
            )  # fmt: skip
    return None


TREND_CHECKS: tuple[Callable[[LogView], Candidate | None], ...] = (
    gap_grows,
    pairs_are_equal,
    ratio_off,
    isolated_nan_loss,
    loss_vanished,
    iterations_lost,
    gradient_died,
    skipped_all,
    value_loss_before_overflow,
)
