"""Sarle's coefficient against exact fractions, and what it says of shapes that are known."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

from grpo_sentinel.agent.probes.reward_shape import Newest


def of(rewards):
    newest = Newest()
    newest.add(rewards)
    return newest.bimodality()


@pytest.mark.parametrize("seed", range(5))
def test_it_equals_the_formula_over_unbiased_sample_moments(seed):
    rng = random.Random(seed)
    rewards = [rng.gauss(rng.choice((0.0, seed)), 1.0) for _ in range(150)]
    n, exact = len(rewards), [Fraction(reward) for reward in rewards]
    mean = sum(exact) / n
    # k-statistics: unbiased estimates of the cumulants, from power sums of deviations (Fisher 1930)
    s2, s3, s4 = (sum((x - mean) ** power for x in exact) for power in (2, 3, 4))
    k2, k3 = s2 / (n - 1), n * s3 / ((n - 1) * (n - 2))
    k4 = (n * (n + 1) * s4 - 3 * (n - 1) * s2**2) / ((n - 1) * (n - 2) * (n - 3))
    skewness_squared, kurtosis = k3**2 / k2**3, k4 / k2**2
    expected = (skewness_squared + 1) / (kurtosis + Fraction(3 * (n - 1) ** 2, (n - 2) * (n - 3)))
    assert of(rewards) == pytest.approx(float(expected), rel=1e-9)


def test_one_mode_is_below_an_even_spread_and_two_modes_are_above():
    rng = random.Random(0)
    normal = [rng.gauss(5, 2) for _ in range(200)]
    even = [index / 199 for index in range(200)]
    two = [rng.gauss(8.0 * (index % 2), 1) for index in range(200)]
    values = [float(index % 2) for index in range(200)]
    assert of(normal) < 0.45 < of(even) < 0.6 < of(two) < of(values) <= 1.0 + 1e-9
    assert of(values) == pytest.approx(1.0, abs=0.03)


def test_it_is_of_the_newest_200_finite_rewards():
    newest = Newest()
    newest.add([math.nan, math.inf, *range(1000)])
    newest.add([math.nan, *(float(index % 2) for index in range(200))])
    assert newest.bimodality() == of([float(index % 2) for index in range(200)])


def test_few_or_equal_rewards_and_sizes_at_the_end_of_floats_do_no_harm():
    assert of([0.0, 1.0] * 15 + [0.0]) is None
    assert of([0.1] * 200) is None
    assert of([math.nan] * 200) is None
    assert of([1e300 * (index % 2) for index in range(200)]) == pytest.approx(of([index % 2 for index in range(200)]))
    assert of([1e-300 * (index % 2) for index in range(200)]) == pytest.approx(1.0, abs=0.03)
