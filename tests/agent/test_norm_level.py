"""What counts as a spike of the gradient norm, by its own running level."""

import math
import random

import pytest

from grpo_sentinel.agent.norm_level import NormLevel


def judged(norms):
    level = NormLevel()
    return [level.spikes(norm) for norm in norms]


def test_a_norm_of_more_than_five_times_the_median_is_a_spike_and_a_little_less_is_none():
    assert judged([1.0] * 8 + [4.99, 5.01]) == [False] * 9 + [True]


def test_where_norms_vary_by_factors_five_times_the_median_is_no_spike_and_a_hundred_times_is_one():
    rng = random.Random(0)
    noisy = [math.exp(rng.gauss(0.0, 0.5)) for _ in range(64)]
    assert judged([*noisy, 10.0])[-1] is False
    assert judged([*noisy, 500.0])[-1] is True
    assert not any(judged(noisy))


def test_the_first_norms_of_a_run_are_no_spikes_whatever_they_are():
    assert not any(judged([1e-3, 1.0, 1e3, 1e-3, 1e3, 1e3, 1.0, 1e3]))


def test_a_level_that_stays_is_the_new_level_after_half_a_window():
    found = judged([1.0] * 40 + [100.0] * 40)
    assert found[40:56] == [True] * 16
    assert not any(found[60:])


@pytest.mark.parametrize("norm", [None, math.nan, math.inf, 0.0])
def test_what_is_unknown_zero_or_not_finite_is_neither_a_spike_nor_part_of_the_level(norm):
    assert judged([1.0] * 8 + [norm] * 9 + [6.0]) == [False] * 17 + [True]


def test_after_a_run_of_exact_zeros_the_first_gradients_are_no_spikes():
    assert not any(judged([0.0] * 10 + [1.0] * 3))
