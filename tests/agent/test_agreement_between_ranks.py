"""Real gloo ranks: handshake, vote, gate and halt agree, whatever is missing or broken on one of them."""

from pathlib import Path

import pytest
from ranks import start_ranks, wait_for
from worlds import TWO

from grpo_sentinel.records import HaltState

pytestmark = pytest.mark.torch


def test_a_nan_on_one_rank_after_the_all_reduce_makes_no_rank_step_alone(two):
    result = two["reduced nan"]
    assert [rank["skipped"] for rank in result.ranks] == [[[3, True]], [[3, True]]], (
        "both skip, weights and moments kept"
    )
    assert result.ranks[0]["weights"] == result.ranks[1]["weights"]
    assert all(rank["finite"] for rank in result.ranks)
    skip = result.segment(0).of("skip")
    assert [(event["step"], event["flagged_ranks"], event["agreed"]) for event in skip] == [(3, [1], True)]
    assert result.segment(0).steps()[3]["sentinel.replica_mismatch"] == 1
    assert result.segment(0).steps()[2]["sentinel.replica_mismatch"] == 0
    assert result.segment(1).steps()[6]["optimizer.skipped_updates"] == 1


def test_replicas_whose_gradient_norms_differ_are_reported(two):
    result = two["reduced spike"]
    for rank in (0, 1):
        notes = [note for note in result.segment(rank).of("note") if note.get("what") == "replica_mismatch"]
        assert notes[0]["step"] == 4
        assert notes[0]["norm_min"] < notes[0]["norm_max"]


def test_a_rank_without_a_core_switches_the_vote_off_everywhere_and_halting_is_refused(three):
    result = three["absent"]
    assert [rank["voting"] for rank in result.ranks] == [False, False, None]
    assert all(rank["last_step"] == 6 and rank["finite"] for rank in result.ranks), "training is unharmed"
    assert all("no core on rank 2" in rank["why"] for rank in result.ranks[:2])
    assert result.logs[0].count("step vote off") == 1
    segment = result.segment(0)
    assert segment.ack.state is HaltState.REFUSED
    assert "no core on rank 2" in segment.ack.detail
    assert segment.of("core")[0]["voting"] is False
    assert segment.steps()[6]["sentinel.core_active"] == 0


def test_waiting_for_a_rank_without_an_agent_does_not_outlast_the_jobs_own_patience(tmp_path):
    script = Path(__file__).with_name("impatient_rank.py")
    assert wait_for(start_ranks(script, [], tmp_path, 2)) == [0, 0]
    assert "no core on rank 1 within 8 s" in (tmp_path / "rank0.log").read_text()


def test_a_rank_that_cannot_attach_says_so_at_once_and_nobody_waits(two):
    result = two["bad settings"]
    assert [rank["active"] for rank in result.ranks] == [False, False]
    assert all("not JSON" in log and "Traceback" not in log for log in result.logs)


def test_a_probe_that_raises_on_one_rank_leaves_halting_to_all(two):
    result = two["broken probe"]
    assert [rank["last_step"] for rank in result.ranks] == [4, 4]
    assert result.ranks[1]["probes_off"] == ["gradient"]
    assert result.ranks[0]["probes_off"] == []
    assert [result.segment(rank).ack.state for rank in (0, 1)] == [HaltState.DONE, HaltState.DONE]
    assert [event["probe"] for event in result.segment(1).of("probe_error")] == ["gradient"]
    assert result.segment(1).steps()[4]["sentinel.probes_off"] == 1
    assert "gradient.norm_preclip" in result.segment(1).steps()[3], "the gate judges without the probe"


@pytest.mark.parametrize("asked", [0, 1])
def test_a_halt_asked_of_either_of_two_nodes_stops_both_at_the_same_step(two, asked):
    name = f"halt asked of node {asked}"
    result, nodes = two[name], TWO[name]["directories"]
    assert [rank["last_step"] for rank in result.ranks] == [3, 3]
    assert [rank["verdicts"][-1] for rank in result.ranks] == [[True, True, False, 3]] * 2
    for rank in (0, 1):
        segment = result.segment(rank, nodes[rank])
        assert (segment.ack.request_id, segment.ack.state, segment.ack.step) == (3, HaltState.DONE, 3)
        assert segment.ack.detail.endswith(f"checkpoint-3-{rank}.pt")
        assert segment.closed == "halted"
        assert segment.of("halt")[0]["action"] == "checkpoint_and_halt"


def test_a_checkpoint_without_halt_is_written_once_and_training_goes_on(two):
    result = two["checkpoint"]
    assert [rank["last_step"] for rank in result.ranks] == [6, 6]
    assert [verdict[1] for verdict in result.ranks[1]["verdicts"]] == [False, True, False, False, False, False]
    assert result.segment(1).ack.state is HaltState.DONE
    assert result.segment(1).closed == "finished"


def test_a_rank_whose_scaler_skips_the_optimizer_still_votes_once_per_step(two):
    result = two["scaler skips"]
    assert [rank["last_step"] for rank in result.ranks] == [6, 6]
    assert all(rank["voting"] for rank in result.ranks)
    assert result.segment(1).steps()[2]["optimizer.step_applied"] == 0
    assert result.segment(0).steps()[2]["optimizer.step_applied"] == 1


def test_a_vote_that_fails_is_off_where_it_is_seen_and_reported(one):
    result = one["vote breaks"]
    segment = result.segment(0)
    assert result.ranks[0]["last_step"] == 6
    assert [event["step"] for event in segment.of("vote_error")] == [3]
    assert segment.ack.state is HaltState.REFUSED
    assert "the group is gone" in segment.ack.detail


def test_without_a_ring_gate_and_vote_still_work(two):
    result = two["no ring"]
    assert [rank["skipped"] for rank in result.ranks] == [[[2, True]], [[2, True]]]
    assert [rank["last_step"] for rank in result.ranks] == [5, 5]
    assert result.logs[1].count("is not recorded") == 1
    assert result.segment(0).ack.state is HaltState.DONE


def test_the_rank_whose_own_gradient_is_not_finite_is_named_by_itself_alone(two):
    result = two["local nan"]
    before = [[e for e in result.segment(r).of("nonfinite") if e["where"] == "before_reduce"] for r in (0, 1)]
    after = [[e for e in result.segment(r).of("nonfinite") if e["where"] == "after_reduce"] for r in (0, 1)]
    assert before[0] == []
    assert [(event["step"], event["names"]) for event in before[1]] == [(4, ["2.weight"]), (5, ["2.weight"])]
    assert [[event["step"] for event in events] for events in after] == [[3, 4, 5], [3, 4, 5]]
    assert result.segment(1).steps()[4]["gradient.local_nonfinite_tensors"] == 1
    assert result.ranks[0]["skipped"] == [[3, True], [4, True], [5, True]]


def test_after_a_spike_the_hooks_show_whose_the_next_one_is_and_go_again(two):
    result = two["local spike"]
    steps = [result.segment(rank).steps() for rank in (0, 1)]
    for rank in (0, 1):
        watched = [n for n, values in steps[rank].items() if "gradient.norm_before_reduce" in values]
        assert watched == list(range(11, 19)), "armed after the spikes of 10 and 14 on both ranks, four steps each"
    own = [steps[rank][14]["gradient.norm_before_reduce"] for rank in (0, 1)]
    assert own[1] > 100 * own[0]
    assert steps[1][14]["gradient.worst_micro_batch"] == 1
    assert all(rank["finite"] and rank["last_step"] == 24 for rank in result.ranks)


def test_with_always_the_culprit_is_named_at_the_first_step_also_under_accumulation(two):
    result = two["local nan, always"]
    named = [e["step"] for e in result.segment(1).of("nonfinite") if e["where"] == "before_reduce"]
    assert named == [3]
    assert not [e for e in result.segment(0).of("nonfinite") if e["where"] == "before_reduce"]


def test_switched_off_by_the_environment_one_line_says_so_and_training_runs(one):
    result = one["switched off"]
    assert (result.ranks[0]["active"], result.ranks[0]["last_step"]) == (False, 6)
    assert result.logs[0].count("grpo-sentinel: not attached") == 1
    assert not list((result.folder / "rings").rglob("*.ring"))
