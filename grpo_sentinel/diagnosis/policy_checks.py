"""From series to candidates: how far the policy went from reference and rollout engine, and memory that only rises."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from grpo_sentinel.diagnosis.found import GRAD, KL, Point, found, rewards_rise
from grpo_sentinel.diagnosis.verdict import Candidate, Evidence
from grpo_sentinel.diagnosis.view import LogView


def kl_out_of_bounds(view: LogView) -> Candidate | None:
    """KL to the reference: negative beyond noise, large before the first update, or blown up."""
    points = view.series("kl", "critic/kl", "objective/kl", "actor/kl_loss", *KL)
    good = [p for p in points if math.isfinite(p[2])]
    for index, row, value in good:
        if value < -1:
            return found(
                view, "negative_kl", "policy", 0.8, index, row,
                f"the KL estimate is {value:g}: below -1 the sampled and the scored distribution differ",
            )  # fmt: skip
    if len(good) >= 6 and median(p[2] for p in good) < -0.3:
        index, row, value = good[0]
        return found(
            view, "negative_kl", "policy", 0.7, index, row,
            f"the KL estimate is below 0 throughout ({value:g} here): the sampled and the scored distribution differ",
        )  # fmt: skip
    if good and good[0][2] > 0.5 and _at_start(good[0]) and good[0][2] > 0.5 * median(p[2] for p in good):
        index, row, value = good[0]
        return found(
            view, "kl_at_start", "policy", 0.7, index, row,
            f"KL to the reference is {value:g} before the first update, where it must be about 0",
        )  # fmt: skip
    if len(good) >= 4:
        base = median(p[2] for p in good[: max(2, len(good) // 4)])
        last = median(p[2] for p in good[-max(2, len(good) // 4) :])
        if last > max(8 * base, 10.0 if rewards_rise(view) else 1.0):
            index, row, value = next(p for p in good if p[2] > max(4 * base, 0.5))
            return found(
                view, "kl_blowup", "policy", 0.65, index, row, f"KL to the reference rose: {base:.3g} to {last:.3g}",
            )  # fmt: skip
    return None


def _at_start(point: Point) -> bool:
    """Tell whether a row is the log's first and the run's as well: averages of a few steps still begin near 0."""
    index, row, _ = point
    if row.step is not None:
        return row.step <= 20
    return index == 0 and (row.raw.get("epoch") or 0.0) <= 0.1


def kl_before_nan(view: LogView) -> Candidate | None:
    """KL that multiplies from row to row until the gradient is not finite: exp(log-ratio) overflows."""
    broken = next((p[0] for p in view.series(*GRAD) if not math.isfinite(p[2])), None)
    points = view.series("kl", "actor/kl_loss", "policy.kl_k3_nats", "policy.kl_loss")
    before = [p for p in points if broken is not None and p[0] < broken and math.isfinite(p[2])]
    if broken is None or len(before) < 5:
        return None
    usual = median(p[2] for p in before[:-3])
    climb = [p for p in before[-6:] if p[2] > max(10 * usual, 1.0)]
    if not climb or climb[-1] is not before[-1] or climb[-1][2] < max(10.0, 100 * usual):
        return None
    index, row, value = climb[0]
    return found(
        view, "kl_overflow", "policy", 0.8, index, row,
        f"KL to the reference climbed from {usual:.3g} to {value:.3g} and {climb[-1][2]:.3g}, then the gradient was no "
        "longer finite: the exponential of the log-ratio overflows",
    )  # fmt: skip


def entropy_collapsed(view: LogView) -> Candidate | None:
    """Entropy falls to next to nothing and stays, long before all groups score the same: the policy has one answer."""
    points = [p for p in view.series("entropy", "policy.entropy_nats") if math.isfinite(p[2])]
    if len(points) < 8:
        return None
    quarter = max(2, len(points) // 4)
    first, last = median(p[2] for p in points[:quarter]), median(p[2] for p in points[-quarter:])
    rewards = [p[2] for p in view.series("reward", "critic/score/mean", "reward.mean") if math.isfinite(p[2])]
    best = max(rewards, default=0.0)
    if first < 0.05 or last > 0.02 * first or last > 0.01 or best >= 0.9:
        return None  # where nearly everything is right a sure policy is a good one
    index, row, value = next(p for p in points if p[2] < 0.1 * first)
    return found(
        view, "entropy_collapsed", "policy", 0.7, index, row,
        f"entropy fell from {first:.3g} to {value:.3g} here and below {last:.2g} at the end, at rewards of at most "
        f"{best:.3g}: the policy gives one answer",
    )  # fmt: skip


def mismatch(view: LogView) -> Candidate | None:
    """Rollout engine and trainer give the same tokens different probabilities."""
    limits = (
        ("policy.sampling_k3_nats", 0.01), ("policy.sampling_gap_mean_nats", 0.15),
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
                )  # fmt: skip
    return None


def clipped_at_once(view: LogView) -> Candidate | None:
    """Far too many tokens outside the clip range in most rows from the first on: log-probs do not agree."""
    for name, limit, what in (
        ("policy.clip_ratio", 0.3, "{:.0%} of the tokens are clipped"),
        ("policy.approx_kl_nats", 0.2, "the policy is {:.3g} nats away from the one that wrote the rollout"),
    ):
        points = [p for p in view.series(name) if math.isfinite(p[2])]
        over = [p for p in points if p[2] > limit]
        if len(points) < 3 or len(over) < 0.8 * len(points) or points[0] not in over:
            continue
        index, row, value = points[0]
        return found(
            view, "ratio_pinned", "policy", 0.65, index, row,
            f"{what.format(value)} from the first row on: log-probs of the update differ from those of the rollout",
        )  # fmt: skip
    return None


def uncorrelated(view: LogView) -> Candidate | None:
    """Probabilities of engine and trainer that do not go together."""
    points = [p for p in view.series("policy.sampling_correlation") if math.isfinite(p[2])]
    low = [p for p in points if p[2] < 0.9]
    if len(low) < 3 or len(low) < 0.5 * len(points):
        return None
    index, row, value = low[0]
    return found(
        view, "rollout_mismatch", "policy", 0.65, index, row,
        f"the probabilities of rollout engine and trainer correlate at {value:.3g} only (healthy: above 0.99)",
    )  # fmt: skip


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
    )  # fmt: skip


def memory_growth(view: LogView) -> Candidate | None:
    """A memory figure that only rises."""
    names = sorted({name for row in view.rows for name in row.raw if _OF_MEMORY.search(name)})
    for name in names:
        points = [p for p in view.series(name) if math.isfinite(p[2])]
        values = [p[2] for p in points]
        if _only_rises(values):
            index, row, _ = points[0]
            return found(
                view, "memory_growth", "memory", 0.65, index, row,
                f"{name} rose from {values[0]:.3g} to {values[-1]:.3g} without falling",
            )  # fmt: skip
    residues = [float(hit.groups["used"]) for hit in view.hits.get("sleep_residue", ()) if "used" in hit.groups]
    if len(residues) >= 3 and residues[-1] > 2 * residues[0] and residues[-1] >= 0.8 * max(residues):
        hit = view.hits["sleep_residue"][-1]
        return Candidate(
            name="sleep_residue_growth", layer="memory", confidence=0.8,
            says=f"memory that the rollout engine keeps while asleep grew from {residues[0]:g} to {residues[-1]:g} GiB",
            at=hit.line.number / max(view.lines, 1),
            evidence=(Evidence(source=hit.line.source, line=hit.line.number, text=hit.line.text.strip()[:300]),),
        )  # fmt: skip
    return None


_OF_MEMORY = re.compile(r"memory|\bmem\b|_gib$|(?:^|[/_])rss\b", re.IGNORECASE)


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


POLICY_CHECKS: tuple[Callable[[LogView], Candidate | None], ...] = (
    kl_before_nan,
    entropy_collapsed,
    mismatch,
    clipped_at_once,
    uncorrelated,
    kl_out_of_bounds,
    length_explosion,
    memory_growth,
)
