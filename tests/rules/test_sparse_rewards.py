"""Rewards of 0 or 1 in small batches: a batch without a right answer, or a few in a row, is chance and no fault."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from grpo_sentinel.records import Finding, FindingState, Frame, Mode, Severity
from grpo_sentinel.rules import Engine, load_rules

STEPS = 1500
GROUP = 6


def batches(groups: int, right: float, *, seed: int = 0, broken_from: int = STEPS + 1) -> Iterator[Frame]:
    """Steps of a run whose grader says 1 to a share `right` of the answers, and 0 to all from `broken_from` on."""
    draw = random.Random(f"{groups} {right} {seed}")
    for step in range(1, STEPS + 1):
        scores = [[float(draw.random() < right and step < broken_from) for _ in range(GROUP)] for _ in range(groups)]
        flat = [score for group in scores for score in group]
        mean = sum(flat) / len(flat)
        dead = sum(len(set(group)) == 1 for group in scores) / groups
        std = (sum((score - mean) ** 2 for score in flat) / len(flat)) ** 0.5
        learns = dead < 1
        row = {
            "reward.mean": mean,
            "reward.std": std,
            "reward.max": max(flat),
            "reward.zero_std_ratio": dead,
            "reward.func_mean[exact]": mean,
            "reward.func_std[exact]": std,
            "reward.func_max[exact]": max(flat),
            "policy.advantage_zero_ratio": dead,
            "policy.kl_k3_nats": draw.lognormvariate(-6, 0.3),
            "optimizer.learning_rate": 1e-6,
            # only the KL term has a gradient where no group has a spread
            "gradient.norm_preclip": draw.lognormvariate(-1, 0.5) if learns else draw.lognormvariate(-6, 0.5),
        }
        yield Frame(run_id="r", step=step, mode=Mode.TRAIN, wall_ns=step * 10**10, ranks={0: row})


def fired(frames: Iterator[Frame]) -> list[Finding]:
    engine = Engine(load_rules(), run_id="r")
    engine.configure({"beta": 0.01, "num_generations": GROUP})
    found = [finding for frame in frames for finding in engine.frame(frame)]
    return [one for one in found if one.state is FindingState.FIRING and one.severity > Severity.NOTE]


@pytest.mark.parametrize(("groups", "right"), [(1, 0.1), (1, 0.3), (1, 0.95), (4, 0.1), (4, 0.33), (16, 0.02)])
@pytest.mark.parametrize("seed", [0, 1])
def test_batches_of_one_score_are_no_alarm_where_they_are_common(groups: int, right: float, seed: int) -> None:
    told = [one for one in fired(batches(groups, right, seed=seed)) if one.step > 50]
    assert not told, Counter(one.rule for one in told)


@pytest.mark.parametrize(("groups", "right", "steps"), [(16, 0.3, 4), (4, 0.33, 9), (4, 0.1, 25), (1, 0.3, 60)])
def test_a_grader_that_breaks_is_told_once_it_cannot_be_chance(groups: int, right: float, steps: int) -> None:
    told = fired(batches(groups, right, broken_from=1000))
    rules = {one.rule: one.step for one in reversed(told) if one.step >= 1000}
    assert 1000 <= rules["reward_constant"] <= 1000 + steps, rules
    assert rules["reward_constant"] <= rules["reward_constant_lasting"] <= 1000 + 2 * steps + 8
    assert [one.rule for one in told if one.step < 1000 and one.step > 50] == []


def test_a_reward_that_never_told_two_answers_apart_is_told_at_once_and_critical_only_late() -> None:
    told = fired(batches(4, 0.0))
    steps = {one.rule: one.step for one in told}
    assert steps["reward_constant"] == 3
    assert steps["reward_constant_lasting"] == 100
    assert "kl_stays_zero" not in steps
