"""The governor thins costly probes until self time fits its share of step time, with time moved by hand."""

import pytest

from grpo_sentinel.agent.governor import LARGEST, Governor


def run(governor, steps, *, step_seconds, plain, costly, first=1):
    """Let steps go by; gives the changes and the average self time of the last 64 steps."""
    changes, spent = [], []
    for step in range(first, first + steps):
        full = governor.due(step)
        spent.append(plain + costly * full)
        change = governor.account(spent[-1], step_seconds, full=full)
        if change is not None:
            changes.append((step, change))
    return changes, sum(spent[-64:]) / len(spent[-64:])


def test_cheap_enough_is_never_thinned():
    governor = Governor(share=0.005, floor_seconds=0.002)
    changes, average = run(governor, 100, step_seconds=0.1, plain=0.0005, costly=0.001)
    assert (changes, governor.every, average) == ([], 1, pytest.approx(0.0015))


def test_costly_probes_are_thinned_until_the_average_fits():
    governor = Governor(share=0.005, floor_seconds=0.002)
    changes, average = run(governor, 400, step_seconds=1.0, plain=0.002, costly=0.040)
    assert governor.every == 16, "0.002 + 0.040 / 16 <= 0.5 % of 1 s, and 8 would not do"
    assert average <= 0.005
    assert [change.every for _, change in changes] == [2, 16]
    assert changes[0][1].self_seconds == pytest.approx(0.042)
    assert all(change.enough for _, change in changes)


def test_the_floor_holds_where_the_share_is_less():
    governor = Governor(share=0.005, floor_seconds=0.002)
    run(governor, 200, step_seconds=0.1, plain=0.0005, costly=0.0045)
    assert governor.every == 4


def test_what_is_exempt_is_never_thinned_and_the_change_says_that_it_is_not_enough():
    governor = Governor(share=0.005, floor_seconds=0.002)
    changes, _ = run(governor, 400, step_seconds=0.1, plain=0.003, costly=0.001)
    assert governor.every == LARGEST
    assert not changes[-1][1].enough
    assert "whatever it costs" in changes[-1][1].text()
    assert "takes 3 ms, more than the 2 ms" in changes[-1][1].text()
    assert changes[-1][1].body()["plain_seconds"] == governor.plain_seconds == pytest.approx(0.003)
    assert sum(governor.due(step) for step in range(1, 129)) == 2, "still sampled, though seldom"


def test_sampling_gets_denser_again_when_steps_grow_longer():
    governor = Governor(share=0.005, floor_seconds=0.002)
    run(governor, 200, step_seconds=0.1, plain=0.0005, costly=0.010)
    sparse = governor.every
    run(governor, 400, step_seconds=10.0, plain=0.0005, costly=0.010, first=201)
    assert (sparse, governor.every) == (8, 1)


def test_at_the_border_it_does_not_swing():
    governor = Governor(share=0.005, floor_seconds=0.002)
    run(governor, 100, step_seconds=0.1, plain=0.0005, costly=0.0030)
    changes, _ = run(governor, 1000, step_seconds=0.1, plain=0.0005, costly=0.0029, first=101)
    assert (governor.every, changes) == (2, [])


def test_one_slow_step_changes_nothing():
    governor = Governor(share=0.005, floor_seconds=0.002)
    run(governor, 20, step_seconds=0.1, plain=0.0005, costly=0.001)
    changes, _ = run(governor, 1, step_seconds=0.1, plain=0.5, costly=0.0, first=21)
    assert changes == []


def test_ranks_that_thin_differently_still_sample_common_steps():
    two, eight = Governor(share=1, floor_seconds=1), Governor(share=1, floor_seconds=1)
    two.every, eight.every = 2, 8
    assert [step for step in range(1, 25) if two.due(step) and eight.due(step)] == [8, 16, 24]
