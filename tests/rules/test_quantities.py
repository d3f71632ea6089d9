"""Numbers in messages read as a person would say them."""

from __future__ import annotations

import math

import pytest

from grpo_sentinel.rules.quantities import percentage, quantity


@pytest.mark.parametrize(
    ("share", "words"),
    [(1.0, "100 %"), (0.5, "50 %"), (0.00123, "0.123 %"), (0.0, "0 %"), (math.nan, "NaN"), (None, "?")],
)
def test_a_share_is_a_percentage(share: float | None, words: str) -> None:
    assert percentage(share) == words


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [(3 << 30, "bytes", "3 GiB"), (0.25, "seconds", "0.25 s"), (12.0, "", "12"), (-math.inf, "", "-infinity")],
)
def test_a_quantity_carries_its_unit(value: float, unit: str, words: str) -> None:
    assert quantity(value, unit) == words
