"""Checks on a policy that breaks down: rewards lost for good, and the sign beside them that tells whose fault it is.

A reward alone cannot tell a policy that fell apart from a scorer that went away. Entropy, length, truncation and KL
can: they are the policy's own. `COLLAPSE_CHECKS` is the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from grpo_sentinel.diagnosis.found import (
    CUT,
    ENTROPY,
    KL,
    LENGTH,
    REWARD,
    STD,
    Point,
    ends,
    finite_points,
    first_beyond,
    found,
    jitter,
    rewards_rise,
)
from grpo_sentinel.diagnosis.verdict import Candidate
from grpo_sentinel.diagnosis.view import LogView


def frozen_reward(view: LogView) -> Candidate | None:
    """Mean rewards of different batches that hardly differ: every prompt gets the same answer."""
    points = finite_points(view, REWARD)
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
    kls, rewards = finite_points(view, KL), finite_points(view, REWARD)
    if len(kls) < 4 or len(rewards) < 4:
        return None
    kl_before, kl_after = ends(kls)
    before, after = ends(rewards)
    spread = max(0.1 * abs(before), 0.02, jitter(rewards))
    if kl_after < max(5 * kl_before, 0.2) or after > before - spread:
        return None
    index, row, _ = first_beyond(kls, (kl_before + kl_after) / 2, up=True)
    return found(
        view, "policy_diverged", "policy", 0.7, index, row,
        f"KL to the reference rose from {kl_before:.3g} to {kl_after:.3g} while the reward fell from {before:.3g} to "
        f"{after:.3g}",
    )  # fmt: skip


def reward_lost(view: LogView) -> Candidate | None:
    """Half of the reward or more is gone to stay; with a sign of the policy's beside it, the policy is to blame.

    Without such a sign a slow decline is the policy's as well; a fall from one row to the next may be the scorer's.
    """
    rewards = finite_points(view, REWARD)
    if len(rewards) < 8:
        return None
    best, after, low = _best(rewards), ends(rewards)[1], min(p[2] for p in rewards)
    if best <= 0.05 or after > 0.5 * best or after > low + 0.3 * best or best - after < 1.5 * jitter(rewards):
        return None
    index, row, _ = first_beyond(rewards, (best + after) / 2, up=False)
    fell = f"the reward fell from {best:.3g} to {after:.3g} to stay"
    sign = _sign(view, deep=after <= 0.2 * best)
    if sign is not None:
        return found(view, "policy_collapsed", "policy", 0.7, index, row, f"{fell}, {sign}")
    if after > 0.4 * best or len(rewards) < 12:
        return None
    if _at_once(rewards, best - after):
        says = f"{fell}, from one row to the next: the policy broke or what scores it went away"
        return found(
            view, "reward_dropped", "undetermined", 0.3, index, row, says, role="witness",
            would_decide=("ten completions from before the fall and ten from after it", "the log of what scores them"),
        )  # fmt: skip
    return found(view, "policy_collapsed", "policy", 0.6, index, row, f"{fell}, little by little")


def _best(rewards: Sequence[Point]) -> float:
    """The best of the medians of the first three quarters."""
    size = len(rewards) // 4
    return max(median(p[2] for p in rewards[place * size : (place + 1) * size]) for place in range(3))


def _sign(view: LogView, *, deep: bool) -> str | None:
    """What of the policy's own changed with the reward; a reward that is gone altogether needs less of it."""
    for names, what, up, down in (
        (ENTROPY, "entropy", 2.5, 0.3), (LENGTH, "length", 1.5 if deep else 1.6, 0.4), (CUT, "truncation", 2.5, 0.0),
    ):  # fmt: skip
        points = finite_points(view, names)
        if len(points) < 6:
            continue
        first, last = ends(points)
        if last > up * first + (0.2 if names is CUT else 1e-3) or last < down * first:
            return f"{what} went {first:.3g} to {last:.3g}"
    return None


def _at_once(rewards: Sequence[Point], loss: float) -> bool:
    """Tell whether two thirds of what was lost went within two rows."""
    smooth = [median(p[2] for p in rewards[place : place + 3]) for place in range(len(rewards) - 2)]
    return any(before - after > 0.66 * loss for before, after in zip(smooth, smooth[2:], strict=False))


def entropy_exploded(view: LogView) -> Candidate | None:
    """Entropy that multiplies up to that of noise, while no reward rises with it."""
    points = finite_points(view, ENTROPY)
    if len(points) < 8 or rewards_rise(view):
        return None
    before, after = ends(points)
    if after < max(4 * before, 3.0):
        return None
    index, row, _ = first_beyond(points, (before + after) / 2, up=True)
    return found(
        view, "policy_collapsed", "policy", 0.65, index, row,
        f"entropy rose from {before:.3g} to {after:.3g} nats and no reward with it: what is written turns to noise",
    )  # fmt: skip


def saturated_then_fell(view: LogView) -> Candidate | None:
    """A reward at its top with no spread, then a fall: normalising noise had become the only signal."""
    rewards, stds = finite_points(view, REWARD), finite_points(view, STD)
    if len(rewards) < 6 or len(stds) != len(rewards):
        return None
    top = max(p[2] for p in rewards)
    full = [i for i, p in enumerate(rewards) if top > 0 and p[2] >= 0.95 * top and stds[i][2] < 0.05 * top]
    if len(full) < 3 or full[2] > full[0] + 3 or not any(b == a + 1 for a, b in pairwise(full)):
        return None  # single batches of one good prompt, here and there
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
    points = finite_points(view, LENGTH)
    empty = [p for p in points if p[2] <= 1.5]
    if len(empty) < 2 or (len(empty) < 0.5 * len(points) and any(p[2] > 1.5 for p in points[-2:])):
        return None
    index, row, value = empty[0]
    layer = "data" if empty[0] is points[0] else "policy"
    says = "from the start" if layer == "data" else "after they had been longer"
    return found(
        view, "empty_completions", layer, 0.7, index, row, f"completions are {value:g} tokens long {says}",
    )  # fmt: skip


COLLAPSE_CHECKS: tuple[Callable[[LogView], Candidate | None], ...] = (
    frozen_reward,
    policy_diverged,
    reward_lost,
    entropy_exploded,
    saturated_then_fell,
    empty_completions,
)
