"""Mathematics of the detectors: properties that must hold for any series."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_sentinel.rules.parameters import build
from grpo_sentinel.rules.robust import SortedWindow, mad, median, theil_sen
from grpo_sentinel.rules.view import Verdict, View

FINITE = st.floats(-1e6, 1e6)
POSITIVE = st.floats(0.5, 2.0)


def feed(
    spec: dict[str, Any], values: list[float | None], name: str = "policy.x", **more: list[float]
) -> list[Verdict]:
    """Run a detector over a series, one step a second."""
    detector = build(spec)
    out = []
    for index, value in enumerate(values):
        row = {} if value is None else {name: value}
        row |= {key.replace("__", "."): column[index] for key, column in more.items()}
        out.append(detector.update(View(index + 1, index * 10**9, row.get, {0: row})))
    return out


def bad_steps(verdicts: list[Verdict]) -> list[int]:
    return [step for step, verdict in enumerate(verdicts, 1) if verdict.bad]


@given(st.lists(FINITE, min_size=1, max_size=80), st.integers(1, 20))
def test_a_sorted_window_holds_the_newest_values_and_their_median(values: list[float], size: int) -> None:
    window = SortedWindow(size)
    for value in values:
        window.push(value)
    assert list(window.values) == values[-size:]
    assert window.median() == pytest.approx(statistics.median(values[-size:]))


@given(st.lists(FINITE, min_size=2, max_size=40), FINITE)
def test_mad_does_not_depend_on_where_the_values_lie(values: list[float], shift: float) -> None:
    assert mad(sorted(value + shift for value in values)) == pytest.approx(mad(sorted(values)), abs=1e-3)


@given(st.floats(-100, 100), st.floats(-100, 100), st.lists(st.integers(0, 19), max_size=4, unique=True))
def test_theil_sen_finds_the_slope_although_a_fifth_of_the_points_is_wild(a: float, b: float, wild: list[int]) -> None:
    ys = [a * x + b for x in range(20)]
    for index in wild:
        ys[index] += 1e4 * (1 if index % 2 else -1)
    assert theil_sen(range(20), ys) == pytest.approx(a, abs=1e-6 + 0.0 * len(wild)) or wild
    assert abs(theil_sen(range(20), ys) - a) < 1e4 / 4


@given(FINITE, st.floats(-10, 10), st.floats(0, 10))
def test_a_bound_is_bad_exactly_outside_its_slack(value: float, limit: float, slack: float) -> None:
    verdict = feed({"kind": "bound", "signal": "policy.x", "max": limit, "absolute": slack}, [value])[0]
    assert verdict.bad == (value > limit + slack)


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_nonfinite_values_are_exactly_those_that_python_calls_so(value: float) -> None:
    assert feed({"kind": "nonfinite", "values": ["policy.x"]}, [value])[0].bad == (not math.isfinite(value))


@given(st.lists(POSITIVE, min_size=12, max_size=60), st.floats(0.001, 1000.0))
def test_a_spike_is_found_at_any_scale_and_names_no_other_point(values: list[float], scale: float) -> None:
    series = [value * scale for value in values] + [400.0 * scale, 1.0 * scale]
    verdicts = feed({"kind": "spike", "signal": "policy.x", "min_points": 8, "sigmas": 8}, series)
    assert bad_steps(verdicts) == [len(values) + 1]


@given(st.lists(POSITIVE, min_size=10, max_size=60))
def test_values_within_a_factor_of_four_are_no_spike(values: list[float]) -> None:
    assert bad_steps(feed({"kind": "spike", "signal": "policy.x", "direction": "both"}, values)) == []


def test_sigmas_of_logarithms_follow_the_spread_of_what_varies_by_factors() -> None:
    spec = {"kind": "spike", "signal": "policy.x", "ratio": 10, "sigmas": 9, "log": True}
    draw = random.Random(3)
    for spread, quiet, loud in ((0.1, 9.0, 12.0), (0.5, 30.0, 200.0)):  # e**(9 * 0.5) = 90
        level = [math.exp(draw.gauss(0.0, spread)) for _ in range(50)]
        assert bad_steps(feed(spec, [*level, quiet])) == []
        assert bad_steps(feed(spec, [*level, loud])) == [51]


def test_a_price_is_unpaid_where_it_doubles_and_the_gain_does_not_rise() -> None:
    spec = {"kind": "unpaid", "price": "policy.x", "gain": "reward.y", "block": 5, "blocks": 3}
    rising = [0.1] * 5 + [0.15] * 5 + [0.4] * 5
    paid, flat = [0.5] * 5 + [0.6] * 5 + [0.7] * 5, [0.5] * 15
    assert bad_steps(feed(spec, rising, reward__y=flat)) == [15]
    assert feed(spec, rising, reward__y=flat)[-1].onset == 10  # 0.15 is below the half way of 0.2
    assert bad_steps(feed(spec, rising, reward__y=paid)) == []
    assert bad_steps(feed(spec, [0.1] * 15, reward__y=flat)) == []
    assert bad_steps(feed(spec, rising[::-1], reward__y=flat)) == []


def test_a_spike_does_not_enter_its_own_baseline() -> None:
    verdicts = feed({"kind": "spike", "signal": "policy.x", "adapt": 50}, [1, 1.1, 0.9] * 5 + [500.0] * 20)
    assert bad_steps(verdicts) == list(range(16, 36))


def test_a_level_that_stays_is_learned_after_adapt_points() -> None:
    verdicts = feed({"kind": "spike", "signal": "policy.x", "adapt": 10}, [1, 1.1, 0.9] * 5 + [500.0] * 30)
    assert bad_steps(verdicts) == list(range(16, 25))


@given(st.lists(POSITIVE, min_size=10, max_size=40), st.floats(0.01, 0.2))
def test_collapse_judges_against_the_early_median_only(values: list[float], factor: float) -> None:
    base = median(values[:10])
    verdicts = feed(
        {"kind": "collapse", "signal": "policy.x", "below": 0.25, "baseline": 10, "skip": 0}, [*values, base * factor]
    )
    assert verdicts[-1].bad
    assert bad_steps(verdicts[10:-1]) == [i for i, v in enumerate(values[10:], 1) if v < 0.25 * base]


@settings(max_examples=40)
@given(st.floats(0.2, 5.0), st.integers(0, 1000))
def test_drift_projects_a_steady_leak_to_its_limit(slope: float, seed: int) -> None:
    draw = random.Random(seed)
    values = [100 + slope * step + draw.uniform(-0.05, 0.05) * slope for step in range(40)]
    spec = {"kind": "drift", "signal": "memory.x", "room": ["400 - memory.x"], "horizon_steps": 1e6, "min_growth": 0.01}
    verdicts = feed(spec, values, "memory.x")
    assert verdicts[-1].bad
    steps = float(verdicts[-1].detail.split(" steps")[0].split()[-1])
    assert steps == pytest.approx((400 - values[-1]) / slope, rel=0.1, abs=1)


@given(st.integers(0, 1000))
def test_growth_that_flattens_out_is_no_drift(seed: int) -> None:
    draw = random.Random(seed)
    values = [100 * (2 - math.exp(-step / 6)) + draw.gauss(0, 0.5) for step in range(120)]
    spec = {"kind": "drift", "signal": "memory.x", "room": ["250 - memory.x"], "horizon_steps": 400, "min_growth": 0.1}
    # while it rises it is a rise: what counts is three in a row, as the rule asks
    flags = [verdict.bad for verdict in feed(spec, values, "memory.x")]
    assert not any(all(flags[i : i + 3]) for i in range(len(flags)))


def test_a_level_from_which_memory_fell_back_twice_is_no_limit_to_run_into_but_what_goes_beyond_it_is() -> None:
    spec = {"kind": "drift", "signal": "memory.x", "room": ["400 - memory.x"], "horizon_steps": 1e6, "min_growth": 0.02}
    teeth = [100 + step % 50 for step in range(400)]
    bad = bad_steps(feed(spec, teeth, "memory.x"))
    assert bad, "the first tooth may be a leak"
    assert max(bad) <= 100
    leak = [140 + step for step in range(60)]
    assert bad_steps(feed(spec, [*teeth, *leak], "memory.x"))[-1] == 460


def test_flat_needs_bit_equal_values() -> None:
    assert bad_steps(feed({"kind": "flat", "signal": "policy.x", "points": 3}, [1, 1, 1 + 1e-12, 1, 2, 2, 2, 2])) == [
        7,
        8,
    ]


def test_cusum_finds_a_small_shift_that_no_point_shows_and_dates_it() -> None:
    draw = random.Random(3)
    values = [draw.gauss(0, 1) for _ in range(100)] + [draw.gauss(1.5, 1) for _ in range(40)]
    verdicts = feed({"kind": "change_point", "signal": "policy.x"}, values)
    found = [verdict for verdict in verdicts[100:] if verdict.bad]
    assert found
    assert 90 <= (found[0].onset or 0) <= 110


def test_shift_ignores_single_points_and_dates_the_cliff() -> None:
    verdicts = feed(
        {"kind": "shift", "signal": "policy.x", "short": 3}, [5, 5.1, 4.9] * 5 + [0.1] + [5.0] * 3 + [0.1] * 3
    )
    assert bad_steps(verdicts) == [22]
    assert verdicts[21].onset == 20


def test_trend_sees_a_slow_climb_and_not_noise() -> None:
    draw = random.Random(1)
    spec = {"kind": "trend", "signal": "policy.x", "ratio": 2, "block": 10, "blocks": 5}
    assert bad_steps(feed(spec, [1 + step / 20 + draw.gauss(0, 0.1) for step in range(100)]))
    assert not bad_steps(feed(spec, [1 + draw.gauss(0, 0.3) for _ in range(400)]))


def test_correlation_tells_coupled_from_free() -> None:
    draw = random.Random(2)
    xs = [draw.gauss(0, 1) for _ in range(60)]
    spec = {"kind": "correlation", "x": "policy.x", "y": "policy.y", "above": 0.9, "window": 20}
    assert bad_steps(feed(spec, list(xs), policy__y=[2 * x + 1e9 for x in xs]))
    assert not bad_steps(feed(spec, list(xs), policy__y=[draw.gauss(0, 1) for _ in xs]))


def test_count_forgets_what_is_older_than_its_window() -> None:
    spec = {"kind": "count", "count": 2, "window_steps": 3, "of": {"kind": "bound", "signal": "policy.x", "max": 1}}
    assert bad_steps(feed(spec, [2, 0, 0, 2, 0, 2, 0])) == [6]


def test_recent_brings_a_cause_and_its_later_effect_together() -> None:
    spec = {"kind": "recent", "steps": 2, "of": {"kind": "bound", "signal": "policy.x", "max": 1}}
    verdicts = feed(spec, [0, 2, 0, 0, 0])
    assert bad_steps(verdicts) == [2, 3, 4]
    assert verdicts[3].onset == 2


def test_share_counts_over_a_full_window() -> None:
    spec = {"kind": "share", "share": 0.5, "window": 4, "of": {"kind": "bound", "signal": "policy.x", "max": 1}}
    assert bad_steps(feed(spec, [2, 2, 2, 0, 0, 0, 2, 2])) == [4, 5, 8]


def test_a_counter_that_falls_was_restarted_and_one_that_starts_high_is_old_news() -> None:
    assert bad_steps(feed({"kind": "counter", "signal": "policy.x"}, [7, 7, 8, 2, 2, 3])) == [3, 6]


def test_a_record_tells_saturated_from_dead() -> None:
    assert bad_steps(feed({"kind": "record", "signal": "policy.x"}, [0.5, 1.0, 1.0, 0.4])) == [4]


def test_all_abstains_when_one_part_cannot_judge_and_none_is_fine() -> None:
    parts = [{"kind": "bound", "signal": "policy.x", "max": 1}, {"kind": "bound", "signal": "policy.y", "max": 1}]
    assert feed({"kind": "all", "of": parts}, [2.0])[0].unable == "no value of policy.y"
    assert not feed({"kind": "all", "of": parts}, [0.0])[0].unable
    assert feed({"kind": "any", "of": parts}, [2.0])[0].bad


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "spike", "signal": "policy.x"},
        {"kind": "collapse", "signal": "policy.x", "below": 0.5},
        {"kind": "shift", "signal": "policy.x"},
        {"kind": "change_point", "signal": "policy.x"},
        {"kind": "trend", "signal": "policy.x"},
        {"kind": "flat", "signal": "policy.x"},
        {"kind": "record", "signal": "policy.x"},
        {"kind": "drift", "signal": "policy.x", "room": ["1e9 - policy.x"]},
        {"kind": "counter", "signal": "policy.x"},
        {"kind": "bound", "signal": "policy.x / policy.x", "max": 1},
        {"kind": "correlation", "x": "policy.x", "y": "policy.x", "above": 2},
    ],
    ids=lambda spec: spec["kind"],
)
@settings(max_examples=30)
@given(values=st.lists(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)), max_size=60))
def test_no_series_whatever_makes_a_detector_raise(spec: dict[str, Any], values: list[float | None]) -> None:
    feed(spec, values)
