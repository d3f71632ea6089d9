"""Checks over whole series: what froze, vanished, collapsed or drifted apart. `TREND_CHECKS` is the table.

Each compares the first quarter of a log with its last, or asks whether something never moves; none of them fires on
one row alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from grpo_sentinel.diagnosis.found import GRAD, LOSS, STD, Point, found
from grpo_sentinel.diagnosis.lines_checks import evidence
from grpo_sentinel.diagnosis.verdict import Candidate
from grpo_sentinel.diagnosis.view import LogView

_REWARD = ("reward", "critic/score/mean", "average reward score", "reward.mean")
_KL = ("policy.kl_k3_nats", "policy.kl_k1_nats", "policy.kl_loss")
_LENGTH = ("data.completion_length_mean",)
_ENTROPY = ("policy.entropy_nats",)
_GAP = ("policy.sampling_gap_mean_nats", "policy.sampling_k3_nats")
_LN2 = math.log(2)


def _finite(view: LogView, names: Sequence[str]) -> list[Point]:
    return [point for point in view.series(*names) if math.isfinite(point[2])]


def _ends(points: Sequence[Point]) -> tuple[float, float]:
    """Medians of the first and the last quarter."""
    quarter = max(1, len(points) // 4)
    return median(p[2] for p in points[:quarter]), median(p[2] for p in points[-quarter:])


def _first_beyond(points: Sequence[Point], limit: float, *, up: bool) -> Point:
    """The first point of the last stretch that lies beyond a limit."""
    at = points[-1]
    for point in reversed(points):
        if (point[2] > limit) is not up:
            break
        at = point
    return at


def frozen_reward(view: LogView) -> Candidate | None:
    """Mean rewards of different batches that hardly differ: every prompt gets the same answer."""
    points = _finite(view, _REWARD)
    if len(points) < 6 or any(p[2] > 0 for p in view.series(*STD)):
        return None
    tail = points[-6:]
    while len(tail) < len(points) and _narrow(points[-len(tail) - 1 :]):
        tail = points[-len(tail) - 1 :]
    values = [p[2] for p in tail]
    if not _narrow(tail) or max(values) == min(values):
        return None  # exactly equal: a matter of the reward itself
    index, row, _ = tail[0]
    return found(
        view, "frozen_reward", "policy", 0.6, index, row,
        f"the mean reward stays between {min(values):.4g} and {max(values):.4g} over {len(tail)} batches: the policy "
        "gives every prompt the same answer",
    )  # fmt: skip


def _narrow(points: Sequence[Point]) -> bool:
    values = [p[2] for p in points]
    return max(values) - min(values) <= 0.01 * abs(median(values)) and abs(median(values)) < 0.95


def policy_diverged(view: LogView) -> Candidate | None:
    """KL to the reference up while the reward goes down: the loss may fall all the same."""
    kls, rewards = _finite(view, _KL), _finite(view, _REWARD)
    if len(kls) < 4 or len(rewards) < 4:
        return None
    kl_before, kl_after = _ends(kls)
    before, after = _ends(rewards)
    spread = max(0.1 * abs(before), 0.02)
    if kl_after < max(5 * kl_before, 0.2) or after > before - spread:
        return None
    index, row, _ = _first_beyond(kls, (kl_before + kl_after) / 2, up=True)
    return found(
        view, "policy_diverged", "policy", 0.7, index, row,
        f"KL to the reference rose from {kl_before:.3g} to {kl_after:.3g} while the reward fell from {before:.3g} to "
        f"{after:.3g}",
    )  # fmt: skip


def gap_grows(view: LogView) -> Candidate | None:
    """Rollout engine and trainer drift apart: a time-out of the rollout comes later and is no cause."""
    points = _finite(view, _GAP)
    if len(points) < 6:
        return None
    before, after = _ends([(i, row, abs(value)) for i, row, value in points])
    if after < 0.03 or after < 4 * before:
        return None
    index, row, _ = _first_beyond([(i, r, abs(v)) for i, r, v in points], (before + after) / 2, up=True)
    return found(
        view, "engine_gap_grows", "policy", 0.7, index, row,
        f"the log-prob gap between rollout engine and trainer grew from {before:.3g} to {after:.3g}",
    )  # fmt: skip


def policy_collapsed(view: LogView) -> Candidate | None:
    """The reward falls to nothing together with entropy or length: dead policy, whatever the loss says."""
    rewards = _finite(view, _REWARD)
    if len(rewards) < 6:
        return None
    before, after = _ends(rewards)
    low = min(p[2] for p in rewards)
    if before <= 0.05 or after > 0.2 * before or after > low + 0.1 * before:
        return None
    for names, what in ((_ENTROPY, "entropy"), (_LENGTH, "length"), (("data.truncated_ratio",), "truncation")):
        points = _finite(view, names)
        if len(points) < 6:
            continue
        first, last = _ends(points)
        if last > 2.5 * first + 1e-3 or last < 0.3 * first:
            index, row, _ = _first_beyond(rewards, (before + after) / 2, up=False)
            return found(
                view, "policy_collapsed", "policy", 0.7, index, row,
                f"the reward fell from {before:.3g} to {after:.3g} to stay, {what} went {first:.3g} to {last:.3g}",
            )  # fmt: skip
    return None


def saturated_then_fell(view: LogView) -> Candidate | None:
    """A reward at its top with no spread, then a fall: normalising noise had become the only signal."""
    rewards, stds = _finite(view, _REWARD), _finite(view, STD)
    if len(rewards) < 6 or len(stds) != len(rewards):
        return None
    top = max(p[2] for p in rewards)
    full = [i for i, p in enumerate(rewards) if top > 0 and p[2] >= 0.95 * top and stds[i][2] < 0.05 * top]
    if len(full) < 3:
        return None
    rest = rewards[full[-1] + 1 :]
    if len(rest) < 2 or median(p[2] for p in rest) > 0.7 * top:
        return None
    index, row, _ = rest[0]
    return found(
        view, "saturated_then_fell", "reward", 0.6, index, row,
        f"the reward stood at {top:.3g} with hardly any spread, then fell to {median(p[2] for p in rest):.3g}",
    )  # fmt: skip


def empty_completions(view: LogView) -> Candidate | None:
    """Completions of one token: end-of-sequence comes first."""
    points = _finite(view, _LENGTH)
    empty = [p for p in points if p[2] <= 1.5]
    if len(empty) < 2 or (len(empty) < 0.5 * len(points) and any(p[2] > 1.5 for p in points[-2:])):
        return None
    index, row, value = empty[0]
    layer = "data" if empty[0] is points[0] else "policy"
    says = "from the start" if layer == "data" else "after they had been longer"
    return found(
        view, "empty_completions", layer, 0.7, index, row, f"completions are {value:g} tokens long {says}",
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
    points = _finite(view, ("sampling/importance_sampling_ratio/mean", "is_ratio"))
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
    if not bad or len(points) < 3 or len(bad) > max(1, len(points) // 3):
        return None
    places = {p[0] for p in bad}
    if points[0] in bad or points[-1] in bad or any(place + 1 in places for place in places):
        return None
    index, row, value = bad[0]
    norms = [name for name, other in row.raw.items() if name.endswith("norm") and not _is_finite(other)]
    if norms:
        return found(
            view, "isolated_nonfinite_gradient", "gradient", 0.5, index, row,
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


def gradient_died(view: LogView) -> Candidate | None:
    """Gradients that were there and are exactly zero to the end, although rewards differ."""
    points = view.series(*GRAD)
    alive = [place for place, p in enumerate(points) if p[2] != 0]
    if not alive or len(points) - alive[-1] - 1 < 5:
        return None
    index, row, _ = points[alive[-1] + 1]
    stds = [v for i, _, v in view.series(*STD) if i >= index]
    rates = [v for i, _, v in view.series("optimizer.learning_rate") if i >= index]
    if not stds or median(stds) <= 0 or (rates and max(rates) == 0):
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
    points = _finite(view, ("losses/value_loss", "cri_loss"))
    for (_, _, before), (index, row, after) in pairwise(points):
        if overflow and before > 0 and after > 2 * before and after > 1:
            return found(
                view, "value_loss_jump", "gradient", 0.65, index, row,
                f"the value loss jumped from {before:.3g} to {after:.3g} around a loss-scale overflow",
            )  # fmt: skip
    return None


TREND_CHECKS: tuple[Callable[[LogView], Candidate | None], ...] = (
    frozen_reward,
    policy_diverged,
    gap_grows,
    policy_collapsed,
    saturated_then_fell,
    empty_completions,
    pairs_are_equal,
    ratio_off,
    isolated_nan_loss,
    loss_vanished,
    gradient_died,
    skipped_all,
    value_loss_before_overflow,
)
