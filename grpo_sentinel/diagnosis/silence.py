"""What is said where nothing was found: that the rows are sound, or what keeps one from saying so.

`healthy` is a verdict as well: a run whose reward does not rise, while something else moves as it does in runs that
fall apart, is not called healthy.
"""

from __future__ import annotations

from statistics import median

from grpo_sentinel.diagnosis.endings import ending
from grpo_sentinel.diagnosis.found import (
    ENTROPY,
    GRAD,
    KL,
    LENGTH,
    REWARD,
    ends,
    finite_points,
    jitter,
    rewards_rise,
)
from grpo_sentinel.diagnosis.verdict import Candidate
from grpo_sentinel.diagnosis.view import LogView

_FEW = 8  # rows below which no trend is told


def nothing(view: LogView) -> Candidate:
    """Give the verdict on a log without a candidate."""
    if view.rows_seen == 0:
        return Candidate(
            name="nothing_read",
            layer="undetermined",
            confidence=0.1,
            says=f"{view.lines} lines hold neither a metric row nor a fault line that is known",
            would_decide=("the trainer's own output from its start to its end, from every rank",),
        )
    end = ending(view)
    if end is not None:
        return end
    doubt = doubts(view)
    if doubt:
        return Candidate(
            name="doubtful",
            layer="undetermined",
            role="witness",
            confidence=0.3,
            says=f"no fault is certain in {view.rows_seen} rows, but no reward rises while {'; '.join(doubt)}",
            would_decide=("ten completions from before and after", "the rows that come next"),
        )
    sure = view.rows_seen >= 5 and (rewards_rise(view) or not finite_points(view, REWARD))
    certainty = 0.8 if view.rows_seen >= 5 and view.finished else 0.7 if sure else 0.6
    return Candidate(
        name="healthy",
        layer="none",
        confidence=certainty,
        says=f"nothing wrong in {view.rows_seen} rows of metrics",
    )


def doubts(view: LogView) -> list[str]:
    """List what moves as it does in runs that fall apart, where the reward does not make up for it."""
    rewards = finite_points(view, REWARD)
    if rewards and (len(rewards) < _FEW or rewards_rise(view) or ends(rewards)[1] >= 0.9):
        return []
    out = []
    for what, names, up, down, least in _MOVES:
        points = finite_points(view, names)
        if len(points) < _FEW:
            continue
        before, after = ends([(index, row, abs(value)) for index, row, value in points])
        if after > up * before + least or (before > least and after < down * before):
            out.append(f"{what} went from {before:.3g} to {after:.3g}")
    if not rewards:
        return out
    dead = finite_points(view, ("frac_reward_zero_std", "reward.zero_std_ratio"))
    if len(dead) >= _FEW and median(p[2] for p in dead) >= 0.85:
        out.append(f"{median(p[2] for p in dead):.0%} of the groups score the same")
    before, after = ends(rewards)
    if before - after > max(0.3 * abs(before), 2 * jitter(rewards)):
        out.append(f"it fell from {before:.3g} to {after:.3g}")
    return out


_MOVES: tuple[tuple[str, tuple[str, ...], float, float, float], ...] = (
    ("KL to the reference", KL, 20.0, 0.0, 0.5),
    ("the gradient norm", GRAD, 10.0, 0.03, 0.5),
    ("entropy", ENTROPY, 2.5, 0.1, 0.1),
    ("the length of completions", LENGTH, 2.5, 0.25, 50.0),
    ("the gap between rollout engine and trainer", ("policy.sampling_gap_mean_nats",), 3.0, 0.0, 0.01),
    ("the time of a step", ("time.step_seconds",), 3.0, 0.0, 5.0),
    ("the clipped share", ("policy.clip_ratio",), 5.0, 0.0, 0.1),
)
"""What, its series, how many times up or down is much, and what is little in any case."""
