"""The odd rank out, from every rank's short row."""

import math

import pytest

from grpo_sentinel.agent.vitals import VITALS, Vitals, compare
from grpo_sentinel.catalog import SIGNALS


def rows(count, step=16.0, **columns):
    """Healthy ranks that differ a little; a column is a dict of rank to value."""
    made = []
    for rank in range(count):
        row = dict.fromkeys(VITALS, 1.0 + 0.01 * (rank % 3)) | {"digest": 77.0}
        row |= {vital: values[rank] for vital, values in columns.items() if rank in values}
        made.append([step, *(row[vital] for vital in VITALS)])
    return made


def test_the_late_rank_is_named_on_every_rank_with_the_same_numbers():
    gathered = rows(8, before_collective={5: 4.0})
    seen = [compare(gathered, rank) for rank in range(8)]
    assert {found["sentinel.odd_rank[before_collective]"] for found in seen} == {5.0}
    assert len({found["sentinel.odd_rank_deviation[before_collective]"] for found in seen}) == 1
    assert seen[5]["sentinel.rank_deviation[before_collective]"] > 50
    assert abs(seen[0]["sentinel.rank_deviation[before_collective]"]) < 1


def test_healthy_ranks_are_near_each_other():
    found = compare(rows(16), 3)
    assert all(abs(v) < 3 for name, v in found.items() if name.startswith("sentinel.odd_rank_deviation["))


def test_four_healthy_ranks_are_not_far_from_each_other_because_two_of_them_happen_to_be_close():
    found = compare(rows(4, loss={0: 0.10, 1: 0.11, 2: 0.30, 3: -0.20}), 3)
    assert abs(found["sentinel.odd_rank_deviation[loss]"]) < 3
    assert found["sentinel.compared_ranks[loss]"] == 4


def test_a_loss_that_is_not_finite_on_one_rank_is_infinitely_odd():
    found = compare(rows(4, loss={2: math.inf}), 0)
    assert found["sentinel.odd_rank[loss]"] == 2
    assert found["sentinel.odd_rank_deviation[loss]"] == math.inf
    assert math.isfinite(found["sentinel.rank_deviation[loss]"])


def test_the_replica_with_another_digest_than_most_is_named():
    found = compare(rows(4, digest={1: 78.0}), 1)
    assert (found["sentinel.odd_rank[digest]"], found["sentinel.rank_deviation[digest]"]) == (1, math.inf)
    assert compare(rows(4), 1)["sentinel.odd_rank[digest]"] == -1


def test_digests_of_different_steps_are_not_compared():
    gathered = [*rows(2), *rows(2, step=17.0, digest={0: 1.0, 1: 1.0})]
    assert "sentinel.odd_rank[digest]" not in compare(gathered, 0)


def test_what_a_rank_does_not_know_is_absent_not_zero():
    gathered = rows(3, reward_mean=dict.fromkeys(range(3), math.nan), memory={1: math.nan})
    found = compare(gathered, 1)
    assert "sentinel.odd_rank[reward_mean]" not in found
    assert "sentinel.rank_deviation[memory]" not in found
    assert "sentinel.odd_rank[memory]" in found


@pytest.mark.parametrize("late", [0, 1])
def test_of_two_ranks_the_one_with_more_is_the_odd_one(late):
    found = compare(rows(2, before_collective={late: 3.0, 1 - late: 0.5}), 0)
    assert found["sentinel.odd_rank[before_collective]"] == late


def test_the_row_is_of_the_newest_record_and_never_grows():
    vitals = Vitals()
    assert all(math.isnan(value) for value in vitals.row()[1:])
    vitals.note_generation({"reward.mean": 0.5, "reward.std": 1.0})
    for step in range(1, 200):
        vitals.note_step(step, {"policy.loss": 0.1, "optimizer.parameter_digest": 5.0, "memory.rss_bytes": 7.0})
    vitals.note_step(200, {"policy.loss_nonfinite": 1.0, "gradient.norm_local": math.nan, "memory.rss_bytes": 9.0})
    row = dict(zip(["step", *VITALS], vitals.row(), strict=True))
    assert (row["step"], row["loss"], row["gradient_norm"], row["reward_mean"]) == (200, math.inf, math.inf, 0.5)
    assert math.isnan(row["digest"]), "not in the newest record, so unknown"
    assert row["memory"] == 9.0


def test_every_vital_is_read_from_catalogued_signals():
    assert all(name in SIGNALS for names in VITALS.values() for name in names)
