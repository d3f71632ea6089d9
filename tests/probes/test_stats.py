"""Partials merge to what one pass over everything gives."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_sentinel.stats import Comoments, Moments

numbers = st.floats(-1e6, 1e6)


@given(st.lists(st.lists(st.one_of(numbers, st.sampled_from([math.nan, math.inf, -math.inf])))))
def test_moments_of_parts_merge_to_those_of_the_whole(parts):
    merged = Moments()
    for part in parts:
        merged = merged.merge(Moments.of(part))
    whole = [x for part in parts for x in part]
    finite = [x for x in whole if math.isfinite(x)]
    assert merged.count == len(finite)
    assert merged.nonfinite == len(whole) - len(finite)
    if finite:
        assert merged.mean == pytest.approx(statistics.fmean(finite), rel=1e-9, abs=1e-6)
        assert (merged.low, merged.high) == (min(finite), max(finite))
    if len(finite) > 1:
        assert merged.std() == pytest.approx(statistics.stdev(finite), rel=1e-7, abs=1e-6)
        assert merged.std(population=True) == pytest.approx(statistics.pstdev(finite), rel=1e-7, abs=1e-6)
    else:
        assert merged.std() is None


def test_a_large_mean_does_not_swallow_a_small_deviation():
    values = [1e8 + x for x in (0.1, 0.2, 0.3)]
    merged = Moments.of(values[:1]).merge(Moments.of(values[1:]))
    assert merged.std() == pytest.approx(0.1, rel=1e-6)


@given(st.lists(st.tuples(numbers, numbers), min_size=2), st.integers(0, 50))
def test_comoments_of_parts_merge_to_pearsons_correlation(pairs, cut):
    def part(rows):
        if not rows:
            return Comoments()
        xs, ys = [x for x, _ in rows], [y for _, y in rows]
        mx, my = statistics.fmean(xs), statistics.fmean(ys)
        return Comoments(len(rows), mx, my, sum((x - mx) ** 2 for x in xs), sum((y - my) ** 2 for y in ys),
                         sum((x - mx) * (y - my) for x, y in rows))  # fmt: skip

    merged, whole = part(pairs[:cut]).merge(part(pairs[cut:])), part(pairs)
    for a, b in ((merged.m2_x, whole.m2_x), (merged.m2_y, whole.m2_y), (merged.cross, whole.cross)):
        assert a == pytest.approx(b, rel=1e-6, abs=1e-2)


def test_a_side_that_does_not_vary_has_no_correlation():
    assert Comoments(3, 1, 1, 0, 2, 0).correlation() is None
    assert Comoments(3, 1, 1, 2, 2, 2).correlation() == pytest.approx(1)
