"""Healthy runs stay quiet: 0 criticals, at most 0.2 warnings per 1,000 steps, heavy tails and drifts included."""

from __future__ import annotations

import pytest

from benchmarks import healthy
from grpo_sentinel.records import FindingState, Severity
from grpo_sentinel.rules import Engine, load_rules

STEPS = 5000


@pytest.mark.parametrize("source", healthy.SOURCES)
def test_a_healthy_run_raises_no_critical_and_hardly_a_warning(source: str) -> None:
    _quiet(source, STEPS, ranks=1)


def test_two_healthy_ranks_stay_as_quiet_as_one() -> None:
    _quiet("student", 2000, ranks=2)


@pytest.mark.slow
@pytest.mark.parametrize("source", healthy.SOURCES)
def test_fifty_thousand_healthy_steps_stay_quiet(source: str) -> None:
    _quiet(source, 50_000, ranks=1)


def _quiet(source: str, steps: int, ranks: int) -> None:
    engine = Engine(load_rules(), run_id="healthy")
    engine.configure({"beta": 0.001, "num_generations": 8})
    fired = []
    for frame in healthy.run(source, steps, ranks=ranks):
        fired += [f for f in engine.frame(frame) if f.state is FindingState.FIRING]
    assert [f.message for f in fired if f.severity is Severity.CRITICAL] == []
    warnings = [f.message for f in fired if f.severity is Severity.WARNING]
    assert len(warnings) <= 0.2 * steps / 1000, warnings
