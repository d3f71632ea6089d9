"""From series of numbers to candidates. Each check is a small function over the view; `CHECKS` is the table.

They reason on what a lossy log can still show: the first value that is not finite, values that never move, values that
cannot be, fields that vanish (see "what looks wrong and is normal" in the guide to diagnosis).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import median

from grpo_sentinel.diagnosis.found import GRAD, REWARD, STD, Point, found, rewards_suffer, with_step
from grpo_sentinel.diagnosis.normal import one_nonfinite_gradient
from grpo_sentinel.diagnosis.verdict import Candidate
from grpo_sentinel.diagnosis.view import LogView, finite
from grpo_sentinel.history.logs.formats import Row
from grpo_sentinel.history.logs.names import canonical


def first_nonfinite_reward(view: LogView) -> Candidate | None:
    """A reward that is None, NaN or infinite is the earliest link of the usual chain."""
    worst: Point | None = None
    for name in sorted({raw for row in view.rows for raw in row.raw if _is_reward_mean(raw)}):
        for point in view.series(name):
            if not math.isfinite(point[2]) and not _summed_all_the_same(point[1]):
                if worst is None or point[0] < worst[0]:
                    worst = point
                break
    if worst is None:
        return None
    index, row, _ = worst
    bad = [
        raw for raw, value in row.raw.items() if _is_reward_mean(raw) and (value is None or not math.isfinite(value))
    ]
    return found(
        view, "reward_nonfinite", "reward", 0.9, index, row, f"{', '.join(bad)} is not a finite number",
    )  # fmt: skip


def _summed_all_the_same(row: Row) -> bool:
    """Tell whether the row's total is a number: a term that does not apply to any sample of a batch is left out."""
    total = row.raw.get("reward")
    return total is not None and math.isfinite(total)


def _is_reward_mean(raw: str) -> bool:
    if raw.startswith("rewards/"):
        return not raw.endswith("/std")
    return raw == "critic/rewards/mean" or canonical(raw) == "reward.mean"


def group_of_one(view: LogView) -> Candidate | None:
    """A NaN standard deviation beside a finite reward: one sample per group."""
    for index, row, value in view.series("reward_std"):
        reward = row.raw.get("reward")
        if math.isnan(value) and row.raw["reward_std"] is not None and reward is not None and math.isfinite(reward):
            return found(
                view, "group_of_one", "reward", 0.9, index, row,
                "the rewards' standard deviation is NaN beside a finite reward: a group of one sample",
            )  # fmt: skip
    return None


def first_nonfinite_gradient(view: LogView) -> Candidate | None:
    """Where the gradient norm stops being finite, and whether it was so from the start."""
    points = view.series(*GRAD)
    bad = [p for p in points if not math.isfinite(p[2])]
    if not bad or one_nonfinite_gradient(view):
        return None
    index, row, value = bad[0]
    after = [p for p in points if p[0] > index]
    if after and any(math.isfinite(p[2]) for p in after) and len(bad) <= max(1, len(points) // 20):
        return found(
            view, "isolated_nonfinite_gradient", "gradient", 0.6, index, row,
            f"the gradient norm was {value} and then finite again: that update was skipped or did no harm",
            role="symptom",
        )  # fmt: skip
    before = finite(p[2] for p in points if p[0] < index)
    if not before and index == points[0][0]:
        if row.step is not None and row.step > 20:
            return found(
                view, "nonfinite_before_log", "gradient", 0.7, index, row,
                f"the gradient norm is {value} in the first row of this log already (step {row.step}): the first bad "
                "step lies before it",
            )  # fmt: skip
        says = f"the gradient norm is {value} from the first step on: a constant defect, not an instability"
        return found(view, "nonfinite_from_start", "gradient", 0.85, index, row, says)
    rates = finite(p[2] for p in view.series("optimizer.learning_rate") if p[0] <= index)
    early, late = median(before[: max(1, len(before) // 4)] or [0.0]), max(before[-4:], default=0.0)
    if len(before) >= 2 and late > 5 * early and rates and max(rates) >= 1e-4:
        return found(
            view, "diverged", "optimizer", 0.6, index, row,
            f"the gradient norm rose from {early:.3g} to {late:.3g} and then became {value} "
            f"at a learning rate of {max(rates):.3g}",
        )  # fmt: skip
    inputs = [n for n, v in row.raw.items() if ("entropy" in n or "ppo_kl" in n) and v is not None and math.isnan(v)]
    step = row.step - 1 if row.step is not None and inputs else row.step
    says = f"the gradient norm became {value}"
    if inputs:
        says += f"; {inputs[0]} is NaN in the same row, so the update before this step wrote it"
    candidate = found(
        view, "nonfinite_gradient", "gradient", 0.85, index, row, says,
    )  # fmt: skip
    return with_step(candidate, step)


def zero_gradient_with_signal(view: LogView) -> Candidate | None:
    """Rewards differ but the gradient is exactly zero: the loss is not connected to the parameters."""
    grads = view.series(*GRAD)
    if not grads or any(p[2] != 0.0 for p in grads):
        return None
    stds = finite(p[2] for p in view.series(*STD))
    rates = finite(p[2] for p in view.series("optimizer.learning_rate"))
    if not stds or min(stds) <= 0 or (rates and max(rates) == 0):
        return None
    shares = view.series("frac_reward_zero_std", "reward.zero_std_ratio")
    if len(grads) < 2 and (not shares or not rates or shares[0][2] > 0.5):
        return None  # one row alone must show that its groups differ
    index, row, _ = grads[0]
    return found(
        view, "disconnected_gradient", "gradient", 0.85 if len(grads) > 1 else 0.6, index, row,
        f"the gradient norm is exactly 0 in all {len(grads)} rows although rewards differ inside groups",
    )  # fmt: skip


def masked_batch(view: LogView) -> Candidate | None:
    """Loss, gradient and entropy all exactly zero in one row while rewards differ: no token entered the loss."""
    for index, row, value in view.series("entropy", "policy.entropy_nats"):
        signals = row.signals()
        if value == 0.0 and signals.get("gradient.norm_preclip") == 0.0 and signals.get("reward.group_std_mean", 0) > 0:
            return found(
                view, "masked_batch", "data", 0.75, index, row,
                "entropy and gradient are exactly 0 in a row whose rewards differ: every token was masked out",
            )  # fmt: skip
    return None


def impossible_advantage(view: LogView) -> Candidate | None:
    """An advantage beyond (n-1)/sqrt(n) cannot come from normalised rewards; 10 would need a group of 100."""
    for name in ("advantages/max", "critic/advantages/max", "advantages/min", "critic/advantages/min"):
        for index, row, value in view.series(name):
            if math.isfinite(value) and abs(value) > 10:
                return found(
                    view, "advantage_bound", "reward", 0.85, index, row,
                    f"{name} is {value:g}: normalised advantages cannot exceed (n-1)/sqrt(n)",
                )  # fmt: skip
    return None


def no_advantage(view: LogView) -> Candidate | None:
    """Advantages that are exactly 0 in every row although scores differ: each is compared with itself."""
    tops, lows = view.series("critic/advantages/max"), view.series("critic/advantages/min")
    if len(tops) < 5 or any(p[2] != 0 for p in (*tops, *lows)):
        return None
    best, worst = view.series("reward.max"), {p[0]: p[2] for p in view.series("reward.min")}
    if not any(p[2] > worst.get(p[0], p[2]) for p in best):
        return None
    index, row, _ = tops[0]
    return found(
        view, "group_of_one", "reward", 0.7, index, row,
        f"advantages are exactly 0 in all {len(tops)} rows although scores differ: groups of one sample",
    )  # fmt: skip


def gradient_spike(view: LogView) -> Candidate | None:
    """One gradient norm far above the others; alone it is only worth a look."""
    points = [p for p in view.series(*GRAD) if math.isfinite(p[2])]
    values = [p[2] for p in points if p[2] > 0]
    if len(values) < 6:
        return None
    middle, second = median(values), sorted(values)[-2]
    suffer = bool(view.series(*REWARD)) and rewards_suffer(view)
    behind = 10 if len(points) < 30 else 3  # sound rows that show that it did no harm
    for place, (index, row, value) in enumerate(points, 1):
        # several high ones are a heavy tail, which is normal
        if value > 10 * middle and value > 3 * second and (suffer or len(points) - place < behind):
            return found(
                view, "gradient_spike", "gradient", 0.6 if value > 40 * middle else 0.45, index, row,
                f"the gradient norm is {value:.3g} against a median of {middle:.3g}", role="symptom",
            )  # fmt: skip
    return None


def loss_out_of_range(view: LogView) -> Candidate | None:
    """A PPO actor loss is a clipped ratio times a normalised advantage: far above 1 it has broken."""
    for index, row, value in view.series("act_loss"):
        if not math.isfinite(value) or abs(value) > 5:
            return found(
                view, "actor_loss_range", "gradient", 0.75, index, row,
                f"the actor loss is {value:g}, normal is below 1",
            )  # fmt: skip
    return None


CHECKS: tuple[Callable[[LogView], Candidate | None], ...] = (
    first_nonfinite_reward,
    group_of_one,
    impossible_advantage,
    no_advantage,
    masked_batch,
    first_nonfinite_gradient,
    zero_gradient_with_signal,
    loss_out_of_range,
    gradient_spike,
)
