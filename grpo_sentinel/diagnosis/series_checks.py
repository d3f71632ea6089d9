"""From series of numbers to candidates. Each check is a small function over the view; `CHECKS` is the table.

They reason on what a lossy log can still show: the first value that is not finite, values that never move, values that
cannot be, fields that vanish (see "what looks wrong and is normal" in the guide to diagnosis).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from grpo_sentinel.diagnosis.verdict import Candidate, Evidence
from grpo_sentinel.diagnosis.view import LogView, finite, rank_of
from grpo_sentinel.history.logs.formats import Row
from grpo_sentinel.history.logs.names import canonical

Point = tuple[int, Row, float]

GRAD = ("grad_norm", "actor/grad_norm", "gradient.norm_preclip")
LOSS = ("loss", "lm loss", "policy.loss", "policy.pg_loss")
STD = ("reward_std", "reward.group_std_mean")
VOCABULARIES = (32000, 32768, 50257, 50304, 65536, 100352, 128256, 129280, 151643, 151936, 152064, 248320, 256000)


def first_nonfinite_reward(view: LogView) -> Candidate | None:
    """A reward that is None, NaN or infinite is the earliest link of the usual chain."""
    worst: Point | None = None
    for name in sorted({raw for row in view.rows for raw in row.raw if _is_reward_mean(raw)}):
        for point in view.series(name):
            if not math.isfinite(point[2]):
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
        tries=("make the reward function return a finite float for every sample, also on a parse failure",
               "run `grpo-sentinel check reward MODULE:FUNCTION`"),
    )  # fmt: skip


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
                tries=("set num_generations (TRL) or rollout.n (verl) to 2 or more",),
            )  # fmt: skip
    return None


def first_nonfinite_gradient(view: LogView) -> Candidate | None:
    """Where the gradient norm stops being finite, and whether it was so from the start."""
    points = view.series(*GRAD)
    bad = [p for p in points if not math.isfinite(p[2])]
    if not bad:
        return None
    index, row, value = bad[0]
    after = [p for p in points if p[0] > index]
    if after and any(math.isfinite(p[2]) for p in after) and len(bad) <= max(1, len(points) // 20):
        return found(
            view, "isolated_nonfinite_gradient", "gradient", 0.45, index, row,
            f"the gradient norm was {value} and then finite again: that update was skipped or did no harm",
            role="symptom", tries=("count skipped updates; halt at the third within 20 steps",),
        )  # fmt: skip
    before = finite(p[2] for p in points if p[0] < index)
    if not before and index == points[0][0]:
        if row.step is not None and row.step > 20:
            return found(
                view, "nonfinite_before_log", "gradient", 0.7, index, row,
                f"the gradient norm is {value} in the first row of this log already (step {row.step}): the first bad "
                "step lies before it",
                tries=("look for the first non-finite row in the log of the earlier part", "resume from before it"),
            )  # fmt: skip
        says = f"the gradient norm is {value} from the first step on: a constant defect, not an instability"
        tries = ("check the batch geometry: train batch x n / world size must not fall below the micro batch",
                 "check old and reference log-probs and the attention implementation in this dtype")  # fmt: skip
        return found(view, "nonfinite_from_start", "gradient", 0.85, index, row, says, tries=tries)
    rates = finite(p[2] for p in view.series("optimizer.learning_rate") if p[0] <= index)
    early, late = median(before[: max(1, len(before) // 4)] or [0.0]), max(before[-4:], default=0.0)
    if len(before) >= 2 and late > 5 * early and rates and max(rates) >= 1e-4:
        return found(
            view, "diverged", "optimizer", 0.6, index, row,
            f"the gradient norm rose from {early:.3g} to {late:.3g} and then became {value} "
            f"at a learning rate of {max(rates):.3g}",
            tries=("lower the learning rate ten times", "resume from a checkpoint before the rise"),
        )  # fmt: skip
    inputs = [n for n, v in row.raw.items() if ("entropy" in n or "ppo_kl" in n) and v is not None and math.isnan(v)]
    step = row.step - 1 if row.step is not None and inputs else row.step
    says = f"the gradient norm became {value}"
    if inputs:
        says += f"; {inputs[0]} is NaN in the same row, so the update before this step wrote it"
    candidate = found(
        view, "nonfinite_gradient", "gradient", 0.85, index, row, says,
        tries=("stop the update: `grpo-sentinel launch` skips it on all ranks and keeps the last good checkpoint",
               "turn torch.autograd.detect_anomaly on for the step before"),
    )  # fmt: skip
    return _with_step(candidate, step)


def no_signal(view: LogView) -> Candidate | None:
    """Every group has equal rewards: nothing is learned. Truncation is the cause where every completion is cut."""
    share = view.series("frac_reward_zero_std", "reward.zero_std_ratio")
    stds = view.series(*STD)
    series = share or stds
    dead = [p for p in series if (p[2] >= 0.999 if share else p[2] == 0.0)]
    total = len(series)
    tail = _trailing(series, dead)
    if not dead or (len(dead) < 0.6 * total and not _beyond_chance(total, len(dead), len(tail))):
        return None
    if len(tail) >= 3:
        dead = tail  # the onset is where it began for good
    index, row, _ = dead[0]
    cut = row.signals().get("data.truncated_ratio", 0.0)
    confidence = 0.8 if len(dead) >= 3 else 0.6
    if cut >= 0.99:
        return found(
            view, "all_truncated", "data", confidence, index, row,
            "every completion is cut at the limit, so all score the same and the gradient is zero",
            tries=("raise max_completion_length (TRL) or max_response_length (verl)",),
        )  # fmt: skip
    reward = row.signals().get("reward.mean")
    return found(
        view, "constant_reward", "reward", confidence, index, row,
        f"all completions of every group score the same ({reward}): no advantage, no gradient"
        f" ({len(dead)} of {total} rows)",
        tries=("look at ten completions and their scores: too easy, too hard, or a broken grader?",
               "run `grpo-sentinel check reward MODULE:FUNCTION`"),
    )  # fmt: skip


def _beyond_chance(total: int, dead: int, tail: int) -> bool:
    """Tell whether so many dead rows at the end are more than the rate of dead rows before them explains."""
    rate = (dead - tail + 0.5) / (total - tail + 1)
    return tail >= 3 and rate**tail < 0.02


def _trailing(series: Sequence[Point], dead: Sequence[Point]) -> list[Point]:
    """Give the dead rows at the end, without a break."""
    places = {point[0] for point in dead}
    out: list[Point] = []
    for point in reversed(series):
        if point[0] not in places:
            break
        out.append(point)
    return out[::-1]


def zero_gradient_with_signal(view: LogView) -> Candidate | None:
    """Rewards differ but the gradient is exactly zero: the loss is not connected to the parameters."""
    grads = view.series(*GRAD)
    if len(grads) < 2 or any(p[2] != 0.0 for p in grads):
        return None
    stds = finite(p[2] for p in view.series(*STD))
    rates = finite(p[2] for p in view.series("optimizer.learning_rate"))
    if not stds or min(stds) <= 0 or (rates and max(rates) == 0):
        return None
    index, row, _ = grads[0]
    return found(
        view, "disconnected_gradient", "gradient", 0.85, index, row,
        f"the gradient norm is exactly 0 in all {len(grads)} rows although rewards differ inside groups",
        tries=("check that the trained parameters require grad and are held by the optimizer",
               "try another version of the distributed engine"),
    )  # fmt: skip


def masked_batch(view: LogView) -> Candidate | None:
    """Loss, gradient and entropy all exactly zero in one row while rewards differ: no token entered the loss."""
    for index, row, value in view.series("entropy", "policy.entropy_nats"):
        signals = row.signals()
        if value == 0.0 and signals.get("gradient.norm_preclip") == 0.0 and signals.get("reward.group_std_mean", 0) > 0:
            return found(
                view, "masked_batch", "data", 0.75, index, row,
                "entropy and gradient are exactly 0 in a row whose rewards differ: every token was masked out",
                tries=("look at completion_mask: mask_truncated_completions, tool masks, collator",),
            )  # fmt: skip
    return None


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
                tries=("check the checkpoint's parameter names against the model's", "check the tied output layer"),
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
                tries=("look at the learning rate that this step really used, not the logged one",
                       "resume from the checkpoint before this step"),
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
                tries=("GRPO usually runs at 1e-7 to 1e-5 (full) or up to 5e-5 (LoRA)",),
            )  # fmt: skip
    for (_, _, before), (index, row, after) in pairwise(points):
        if before > 0 and after > 10 * before and after > 1e-5 and index > 3:
            return found(
                view, "learning_rate_jump", "optimizer", 0.6, index, row,
                f"the learning rate jumped from {before:g} to {after:g}", tries=("check the scheduler after a resume",),
            )  # fmt: skip
    if max(values) >= 1e-3 and _went_wrong(view):
        index, row, value = next(p for p in points if p[2] >= 1e-3)
        return found(
            view, "hot_learning_rate", "optimizer", 0.6, index, row,
            f"the learning rate is {value:g} and the run came apart under it",
            tries=("GRPO usually runs at 1e-7 to 1e-5 (full) or up to 5e-5 (LoRA)",),
        )  # fmt: skip
    if len(values) >= 5 and max(values) == 0 and points[0][1].format != "verl":  # which may round to 0.000
        index, row, _ = points[0]
        return found(
            view, "zero_learning_rate", "optimizer", 0.7, index, row, "the learning rate is 0 in every row",
            tries=("check warm-up and total steps of the schedule",),
        )  # fmt: skip
    return None


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


def kl_out_of_bounds(view: LogView) -> Candidate | None:
    """KL to the reference: negative beyond noise, large before the first update, or blown up."""
    points = view.series("kl", "critic/kl", "objective/kl", "actor/kl_loss", "policy.kl_k3_nats")
    good = [p for p in points if math.isfinite(p[2])]
    for index, row, value in good:
        if value < -1:
            return found(
                view, "negative_kl", "policy", 0.8, index, row,
                f"the KL estimate is {value:g}: below -1 the sampled and the scored distribution differ",
                tries=("sample with temperature 1 and without top-k, top-p", "compare log-probs of engine and trainer"),
            )  # fmt: skip
    if good and good[0][2] > 0.5 and (good[0][1].step in (0, 1)):
        index, row, value = good[0]
        return found(
            view, "kl_at_start", "policy", 0.7, index, row,
            f"KL to the reference is {value:g} before the first update, where it must be about 0",
            tries=("check that policy and reference start from the same weights, adapters and dtype",),
        )  # fmt: skip
    if len(good) >= 4:
        base = median(p[2] for p in good[: max(2, len(good) // 4)])
        last = median(p[2] for p in good[-max(2, len(good) // 4) :])
        if last > max(8 * base, 1.0):
            index, row, value = next(p for p in good if p[2] > max(4 * base, 0.5))
            return found(
                view, "kl_blowup", "policy", 0.65, index, row, f"KL to the reference rose: {base:.3g} to {last:.3g}",
                tries=("raise beta (kl_coef), lower the learning rate", "look at the completions, not the reward"),
            )  # fmt: skip
    return None


def mismatch(view: LogView) -> Candidate | None:
    """Rollout engine and trainer give the same tokens different probabilities."""
    limits = (
        ("policy.sampling_k3_nats", 0.01), ("policy.sampling_gap_mean_nats", 0.3),
        ("policy.sampling_mult_error", 1.1),
    )  # fmt: skip
    for name, limit in limits:
        points = view.series(name)
        beyond = sum(math.isfinite(p[2]) and abs(p[2]) > limit for p in points)
        for index, row, value in points if beyond >= min(2, len(points)) else ():
            if math.isfinite(value) and abs(value) > limit:
                return found(
                    view, "rollout_mismatch", "policy", 0.7, index, row,
                    f"{name} is {value:.3g} (healthy: below {limit:g}): the engine does not hold the trainer's weights "
                    "or computes them otherwise",
                    tries=("check the weight sync after the first update", "same dtype, temperature 1, same kernels"),
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
                    tries=("check the epsilon and the leave-one-out form of the advantage normalisation",),
                )  # fmt: skip
    return None


def length_explosion(view: LogView) -> Candidate | None:
    """Completions grow into the limit while the reward falls."""
    points = [p for p in view.series("data.truncated_ratio") if math.isfinite(p[2])]
    if len(points) < 4:
        return None
    quarter = max(1, len(points) // 4)
    early, late = median(p[2] for p in points[:quarter]), median(p[2] for p in points[-quarter:])
    if late < 0.5 or late < 2 * early + 0.2:
        return None
    index, row, _ = next(p for p in points if p[2] > (early + late) / 2)
    return found(
        view, "length_explosion", "policy", 0.65, index, row,
        f"the share of cut completions rose from {early:.2f} to {late:.2f}",
        tries=("penalise overlong answers, raise the limit or the KL weight",),
    )  # fmt: skip


def gradient_spike(view: LogView) -> Candidate | None:
    """One gradient norm far above the others; alone it is only worth a look."""
    points = [p for p in view.series(*GRAD) if math.isfinite(p[2])]
    values = [p[2] for p in points if p[2] > 0]
    if len(values) < 6:
        return None
    middle, second = median(values), sorted(values)[-2]
    for index, row, value in points:
        if value > 10 * middle and value > 3 * second:  # several high ones are a heavy tail, which is normal
            return found(
                view, "gradient_spike", "gradient", 0.45, index, row,
                f"the gradient norm is {value:.3g} against a median of {middle:.3g}", role="symptom",
                tries=("look at the samples of that step", "set max_grad_norm"),
            )  # fmt: skip
    return None


def memory_growth(view: LogView) -> Candidate | None:
    """A memory figure that only rises."""
    names = sorted({n for row in view.rows for n in row.raw if "memory" in n.lower() or n.lower().endswith("_gib")})
    for name in names:
        points = [p for p in view.series(name) if math.isfinite(p[2])]
        values = [p[2] for p in points]
        if _only_rises(values):
            index, row, _ = points[0]
            return found(
                view, "memory_growth", "memory", 0.65, index, row,
                f"{name} rose from {values[0]:.3g} to {values[-1]:.3g} without falling",
                tries=("look for tensors kept across steps (lists of losses without .item(), caches)",),
            )  # fmt: skip
    residues = [float(hit.groups["used"]) for hit in view.hits.get("sleep_residue", ()) if "used" in hit.groups]
    if len(residues) >= 3 and residues[-1] > 2 * residues[0] and residues == sorted(residues):
        hit = view.hits["sleep_residue"][-1]
        return Candidate(
            name="sleep_residue_growth", layer="memory", confidence=0.8,
            says=f"memory that the rollout engine keeps while asleep grew from {residues[0]:g} to {residues[-1]:g} GiB",
            at=hit.line.number / max(view.lines, 1),
            evidence=(Evidence(source=hit.line.source, line=hit.line.number, text=hit.line.text.strip()[:300]),),
            tries=("find what the trainer allocates while the engine sleeps and never frees",),
        )  # fmt: skip
    return None


def _only_rises(values: Sequence[float]) -> bool:
    """Up by a third and more, and still rising at the end: a peak that was found early is normal."""
    if len(values) < 5 or values[0] <= 0:
        return False
    if len(values) < 12:
        rises = sum(b >= a for a, b in pairwise(values))
        return values[-1] > 1.4 * values[0] and rises >= 0.9 * (len(values) - 1)
    size = len(values) // 4
    levels = [median(values[place * size : (place + 1) * size]) for place in range(4)]
    return levels[3] > 1.3 * levels[0] and all(after > 1.02 * before for before, after in pairwise(levels))


def loss_out_of_range(view: LogView) -> Candidate | None:
    """A PPO actor loss is a clipped ratio times a normalised advantage: far above 1 it has broken."""
    for index, row, value in view.series("act_loss"):
        if not math.isfinite(value) or abs(value) > 5:
            return found(
                view, "actor_loss_range", "gradient", 0.75, index, row,
                f"the actor loss is {value:g}, normal is below 1",
                tries=("look at the critic and the advantages of the step before", "train in bf16"),
            )  # fmt: skip
    return None


CHECKS: tuple[Callable[[LogView], Candidate | None], ...] = (
    first_nonfinite_reward,
    group_of_one,
    impossible_advantage,
    masked_batch,
    no_signal,
    uniform_start,
    learning_rate,
    destroyed_policy,
    first_nonfinite_gradient,
    zero_gradient_with_signal,
    loss_out_of_range,
    mismatch,
    kl_out_of_bounds,
    length_explosion,
    gradient_spike,
    memory_growth,
)


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
    tries: tuple[str, ...] = (),
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
        evidence=(Evidence(source=row.source, line=row.line, text=shown[:300]),),
        tries=tries,
    )


def _step_of(view: LogView, index: int) -> int | None:
    """Guess the step of a row without one from its place, where the log began at the first step."""
    if view.rows_seen > len(view.rows):
        return None  # rows were forgotten between
    return index + 1 if all(row.step is None for row in view.rows[: index + 1]) else None


def _with_step(candidate: Candidate, step: int | None) -> Candidate:

    return replace(candidate, step=step if step is not None else candidate.step)
