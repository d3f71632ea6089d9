"""Loss scalers, schedules and sharded models in a plain loop: real torch engines, real gloo ranks."""

import math

import pytest

pytestmark = pytest.mark.torch


def test_a_learning_rate_set_behind_the_schedules_back_shows_in_that_step_alone(one):
    result = one["schedule"]
    steps = result.segment(0).steps()
    expected = [steps[step]["optimizer.learning_rate_expected"] for step in range(1, 7)]
    assert expected == pytest.approx([0.01 / step for step in range(1, 7)]), "the schedule is read, never advanced"
    used = [steps[step]["optimizer.learning_rate"] for step in range(1, 7)]
    assert [step for step in range(1, 7) if used[step - 1] != expected[step - 1]] == [4]
    assert used[3] == 10.0


@pytest.mark.parametrize(("name", "voted"), [("scaler", [[3, True]]), ("scaler, unobserved", [])])
def test_a_real_scalers_overflow_is_its_own_skip_and_no_alarm(one, name, voted):
    result = one[name]
    segment = result.segment(0)
    steps = segment.steps()
    assert result.ranks[0]["skipped"] == voted, "a loop that shows no gradients leaves the skip to the scaler alone"
    assert segment.of("skip") == []
    assert segment.of("nonfinite") == []
    assert [steps[step]["optimizer.scaler_skips"] for step in (2, 3, 6)] == [0, 1, 1]
    assert [steps[step]["optimizer.skipped_updates"] for step in (2, 3, 6)] == [0, 0, 0]
    assert [steps[step]["optimizer.step_applied"] for step in (2, 3, 4)] == [1, 0, 1]
    assert [steps[step]["optimizer.loss_scale"] for step in (2, 4)] == [8.0, 4.0]
    assert segment.of("probe_error") == []


def test_a_scalers_overflow_on_one_rank_makes_no_rank_step_alone(two):
    result = two["scaler overflows on one rank"]
    assert [rank["skipped"] for rank in result.ranks] == [[[3, True]], [[3, True]]]
    assert [result.segment(rank).steps()[3]["optimizer.step_applied"] for rank in (0, 1)] == [0, 0]
    assert [result.segment(rank).steps()[3]["sentinel.replica_mismatch"] for rank in (0, 1)] == [1, 1]
    assert [result.segment(rank).steps()[6]["optimizer.scaler_skips"] for rank in (0, 1)] == [1, 1]
    assert all(result.segment(rank).of("skip") == [] for rank in (0, 1))


@pytest.mark.parametrize("name", ["fsdp1", "fsdp2", "fsdp1, norm unknown", "fsdp2, norm unknown"])
def test_sharded_gradients_are_read_locally_and_gated_on_all_ranks(two, name):
    result = two[name]
    assert [rank["skipped"] for rank in result.ranks] == [[[3, True]], [[3, True]]]
    assert all(rank["finite"] and rank["probes_off"] == [] for rank in result.ranks)
    first, second = (result.segment(rank) for rank in (0, 1))
    assert [event["step"] for event in second.of("nonfinite")] == [3]
    for step in (1, 2, 4, 6):
        here, there = first.steps()[step], second.steps()[step]
        whole = math.hypot(here["gradient.norm_local"], there["gradient.norm_local"])
        assert "sentinel.replica_mismatch" not in here
        if "unknown" in name:
            assert "gradient.norm_preclip" not in here, "a part of the norm is not passed off as the norm"
        else:
            assert here["gradient.norm_preclip"] == there["gradient.norm_preclip"] == pytest.approx(whole, rel=1e-6)
            assert here["gradient.clip_coefficient"] == pytest.approx(min(1.0, 0.2 / whole), rel=1e-5)


@pytest.mark.parametrize("name", ["fsdp1, bound", "fsdp2, bound"])
def test_with_a_bound_ranks_add_their_parts_up_to_the_norm_that_no_trainer_computed(two, name):
    first, second = (two[name].segment(rank).steps() for rank in (0, 1))
    for step in (1, 2, 3):
        parts = [rank[step]["gradient.norm_local"] for rank in (first, second)]
        norms = [rank[step]["gradient.norm_preclip"] for rank in (first, second)]
        assert norms[0] == norms[1] == pytest.approx(math.hypot(*parts), rel=1e-6)
        assert max(parts) < norms[0]


def test_vitals_name_the_replica_that_drifted_and_the_rank_that_was_late(two):
    result = two["vitals"]
    for rank in (0, 1):
        steps = result.segment(rank).steps()
        gathered = [step for step in steps if "sentinel.odd_rank[before_collective]" in steps[step]]
        assert gathered == [3, 5, 7, 9], "with every second vote, of the step before"
        assert steps[3]["sentinel.odd_rank[digest]"] == -1
        assert [steps[step]["sentinel.odd_rank[digest]"] for step in (5, 7, 9)] == [1, 1, 1]
        assert steps[7]["sentinel.odd_rank[before_collective]"] == 1
        assert steps[7]["sentinel.odd_rank_deviation[before_collective]"] > 10
        assert steps[9]["sentinel.odd_rank[memory]"] in (-1, 0, 1)
    own = [result.segment(rank).steps()[7]["sentinel.rank_deviation[before_collective]"] for rank in (0, 1)]
    assert own[0] == 0
    assert own[1] > 10


def test_ranks_with_other_settings_gather_nothing_rather_than_hang(two):
    result = two["vitals, unequal settings"]
    assert [rank["last_step"] for rank in result.ranks] == [6, 6]
    assert all(rank["voting"] for rank in result.ranks)
    assert not [name for name in result.segment(0).steps()[5] if "odd_rank" in name]


@pytest.mark.parametrize("name", ["local spike", "fsdp1", "fsdp2"], ids=["ddp", "fsdp1", "fsdp2"])
def test_activations_are_watched_under_ddp_and_sharding(two, name):
    for rank in (0, 1):
        segment = two[name].segment(rank)
        assert segment.of("probe_error") == []
        seen = {step for step, values in segment.steps().items() if "policy.activation_range_ratio" in values}
        assert seen == {step for step in segment.steps() if step % 2 == 1}
        assert segment.steps()[1]["policy.activation_nonfinite"] == 0
