"""Chains: who is the root, who follows, and what one incident looks like."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grpo_sentinel.records import Action, Finding, FindingState, Severity
from grpo_sentinel.rules import load_rules
from grpo_sentinel.rules.cases import play
from grpo_sentinel.rules.root_cause import RootCause

RULES = load_rules()


def finding(
    rule: str, layer: str, onset: int, *, step: int | None = None, severity: Severity = Severity.WARNING
) -> Finding:
    return Finding(
        finding_id=f"{rule}:all:{onset}", rule=rule, layer=layer, severity=severity, state=FindingState.FIRING,
        action=Action.ALERT, run_id="r", step=step or onset, onset_step=onset, ranks=(), message="", wall_ns=0,
    )  # fmt: skip


def test_within_one_step_the_lowest_layer_is_the_root() -> None:
    roots = RootCause()
    gradient, _ = roots.add(finding("g", "gradient", 12))
    reward, moved = roots.add(finding("r", "reward", 12))
    assert (gradient.root_id, reward.root_id) == ("", "")
    assert [(f.rule, f.root_id) for f in moved] == [("g", "r:all:12")]
    assert [f.rule for f in roots.firing()] == ["r", "g"]


def test_between_steps_the_earlier_onset_is_the_root_whatever_its_layer() -> None:
    roots = RootCause()
    roots.add(finding("lr", "optimizer", 6))
    later, _ = roots.add(finding("truncated", "data", 7))
    assert later.root_id == "lr:all:6"


def test_a_root_that_comes_in_last_takes_over_a_whole_chain() -> None:
    roots = RootCause()
    roots.add(finding("loss", "policy", 12))
    roots.add(finding("grad", "gradient", 12))
    _, moved = roots.add(finding("ids", "data", 12, step=14))
    assert {(f.rule, f.root_id) for f in moved} == {("loss", "ids:all:12"), ("grad", "ids:all:12")}


def test_what_became_nonfinite_in_the_same_step_is_a_nearer_cause_than_what_has_long_been_wrong() -> None:
    roots = RootCause(bounds=["score"], nonfinite=["score", "loss"])
    roots.add(finding("uniform", "policy", 1, severity=Severity.CRITICAL), lambda: 2)  # it is judged at the start only
    assert roots.add(finding("score", "reward", 5))[0].root_id == ""
    loss, _ = roots.add(finding("loss", "policy", 5))
    gradient, _ = roots.add(finding("norm", "gradient", 6))
    assert loss.root_id == gradient.root_id == "score:all:5"
    assert roots.add(finding("entropy", "policy", 8))[0].root_id == "uniform:all:1"


def test_what_lies_far_apart_in_time_is_not_one_incident() -> None:
    roots = RootCause()
    first = roots.add(finding("r", "reward", 12))[0]
    roots.update(replace(first, state=FindingState.RESOLVED, step=15))
    assert roots.add(finding("g", "gradient", 300))[0].root_id == ""


def test_a_reward_fault_does_not_explain_a_broken_gpu_but_a_gpu_explains_a_dead_rank() -> None:
    roots = RootCause()
    roots.add(finding("r", "reward", 10))
    assert roots.add(finding("xid", "device", 12))[0].root_id == ""
    assert roots.add(finding("dead", "time", 13))[0].root_id in ("r:all:10", "xid:all:12")


def test_the_level_of_a_reward_gives_way_to_what_was_wrong_with_the_samples_from_about_then_on() -> None:
    fell = finding("fell", "reward", 39, step=46)
    for layer, onset, root in (("data", 42, True), ("policy", 42, True), ("data", 43, False), ("gradient", 41, False)):
        for first, second in ((0, 1), (1, 0)):
            roots = RootCause(outcomes=["fell"])
            both = [fell, finding("other", layer, onset)]
            roots.add(both[first])
            roots.add(both[second])
            assert roots.firing()[0].rule == ("other" if root else "fell"), (layer, onset, first)
            assert roots.firing()[1].root_id == roots.firing()[0].finding_id
    exact = RootCause()
    exact.add(fell)
    assert exact.add(finding("other", "data", 42))[0].root_id == fell.finding_id  # a fault of the reward itself


def test_a_note_is_never_the_root_of_something_graver() -> None:
    roots = RootCause()
    roots.add(finding("note", "data", 10, severity=Severity.NOTE))
    assert roots.add(finding("g", "gradient", 11))[0].root_id == ""


def test_a_storm_is_one_incident_with_its_root_first() -> None:
    roots = RootCause()
    for index in range(50):
        roots.add(finding(f"s{index}", "gradient", 20 + index % 5))
    roots.add(finding("cause", "data", 20, step=26))
    firing = roots.firing()
    assert firing[0].rule == "cause"
    assert {f.root_id for f in firing[1:]} == {"cause:all:20"}


def test_a_resolved_finding_leaves_the_list() -> None:
    roots = RootCause()
    first = roots.add(finding("r", "reward", 12))[0]
    roots.update(replace(first, state=FindingState.RESOLVED, step=20))
    assert roots.firing() == ()


def test_one_nan_reward_is_the_root_of_advantage_loss_gradient_and_halt() -> None:
    series = {
        "reward.nonfinite": {0: "0x20", 1: "0x11 8x9"}, "policy.advantage_nonfinite": {0: "0x20", 1: "0x11 8x9"},
        "policy.loss_nonfinite": {0: "0x20", 1: "0x11 1x9"}, "gradient.nonfinite_tensors": "0x11 46x9",
    }  # fmt: skip
    newest = {f.finding_id: f for f in play({"ranks": 2, "series": series}, RULES)}
    roots = {f.rule: f.root_id for f in newest.values()}
    assert roots.pop("reward_nonfinite") == ""
    assert set(roots) >= {"advantage_nonfinite", "loss_nonfinite", "grad_nonfinite", "nonfinite_updates"}
    assert set(roots.values()) == {"reward_nonfinite:1:12"}
    assert {f.ranks for f in newest.values()} == {(1,)}


def test_a_learning_rate_of_ten_is_the_root_of_the_dead_policy() -> None:
    series = {
        "optimizer.learning_rate": "1e-4x11 10 1e-4x9", "optimizer.learning_rate_expected": "1e-4",
        "optimizer.update_ratio": "0.002x11 201 0.002x9", "policy.entropy_nats": "0.85~0.06x12 0x9",
        "data.truncated_ratio": "0.05~0.02x12 1x9", "gradient.norm_preclip": "4~1x12 1e-9x9",
    }  # fmt: skip
    newest = {f.rule: f for f in play({"series": series}, RULES)}
    assert {"update_ratio_huge", "entropy_cliff", "truncation_jump"} <= set(newest)
    assert newest.pop("lr_off_schedule").root_id == ""
    assert {f.root_id for f in newest.values() if f.severity > Severity.NOTE} == {"lr_off_schedule:0:12"}


def test_of_equal_findings_the_one_told_first_is_the_root() -> None:
    roots = RootCause()
    roots.add(replace(finding("rank_dead", "time", 10), finding_id="rank_dead:1:10", wall_ns=100))
    torn, moved = roots.add(replace(finding("rank_dead", "time", 10), finding_id="rank_dead:0:10", wall_ns=200))
    assert torn.root_id == "rank_dead:1:10", "rank 0 died of the death of rank 1"
    assert moved == []


def rooted(body: dict) -> dict[str, str]:
    """Rule -> rule of its root ("" for a root), for the newest version of everything that fired above a note."""
    newest = {finding.finding_id: finding for finding in play(body, RULES)}
    return {
        finding.rule: newest[finding.root_id].rule if finding.root_id in newest else ""
        for finding in newest.values()
        if finding.severity > Severity.NOTE
    }


def test_truncation_is_the_root_of_groups_without_spread_and_of_a_gradient_of_zero() -> None:
    found = rooted(
        {
            "series": {
                "data.truncated_ratio": "0.1~0.02x30 1x20", "reward.zero_std_ratio": "0.4~0.05x30 1x20",
                "reward.std": "0.4~0.02x30 0x20", "reward.mean": "0.5~0.02x30 0x20",
                "policy.advantage_zero_ratio": "0.4x30 1x20", "gradient.norm_preclip": "0.5~0.05x30 0x20",
            }
        }
    )  # fmt: skip
    roots = {rule for rule, root in found.items() if not root}
    assert roots <= {"truncation_starves", "truncation_jump"}, found
    assert {"zero_variance_groups", "grad_zero", "reward_constant", "truncation_starves"} <= found.keys()
    assert len(roots) == 1


def test_a_weight_sync_that_fails_is_told_from_a_mismatch_that_grows_and_from_one_bad_rank() -> None:
    sync = {"series": {"policy.sampling_gap_mean_nats": "0.01 0.3x20", "optimizer.update_norm": "0.02"}}
    growing = {"series": {"policy.sampling_gap_mean_nats": "0.01..0.05x130", "gradient.norm_preclip": "0.5..1.5x130"}}
    rank = {"ranks": 2, "series": {"policy.sampling_gap_mean_nats": {0: "0.01~0.001x40", 1: "0.01~0.001x30 0.4x10"}}}
    data = {"series": {"policy.sampling_gap_mean_nats": "0.01~0.001x30 0.2x9", "data.unk_ratio": "0x30 0.3x9"}}
    assert "weight_sync_fault" in rooted(sync)
    assert "mismatch_grows" in rooted(growing)
    assert rooted(rank)["rollout_gap_on_one_rank"] in ("", "rollout_gap_jump")
    assert "rollout_gap_on_one_rank" not in {**rooted(sync), **rooted(growing), **rooted(data)}
    told = rooted(data)
    assert [rule for rule, root in told.items() if not root] == ["new_data_widens_gap"]
    assert told["rollout_gap_jump"] == "new_data_widens_gap"


def test_of_an_out_of_memory_kill_the_rank_that_grew_is_the_root_and_the_dead_one_follows() -> None:
    found = rooted(
        {
            "ranks": 2, "seconds": 1.0,
            "series": {
                "memory.rss_bytes": {0: "6e9x20", 1: "6e9x5 7e9..26e9x15"},
                "memory.cgroup_used_bytes": "12e9x5 13e9..31.5e9x15", "memory.cgroup_limit_bytes": "32e9x20",
            },
            "samples": {"host": {"device.cgroup_oom_kills": "0x3 1"}},
            "ticks": [{"at": 21, "ranks": {0: {"step": 20, "liveness": "dead"}, 1: {"step": 20}}}],
        }
    )  # fmt: skip
    assert {"rank_dead", "cgroup_oom_kill"} <= found.keys(), found
    (root,) = {rule for rule, at in found.items() if not at}
    assert root in ("host_memory_fills_up", "host_memory_runs_out", "host_memory_culprit"), found


def _died(together: bool, exceptions: dict[int, str]) -> list[Finding]:
    """Two ranks die, rank 1 first; each may have told an exception before."""
    alive, first = {"step": 20}, {0: {"step": 20}, 1: {"step": 20, "liveness": "dead"}}
    both = {rank: {"step": 20, "liveness": "dead"} for rank in (0, 1)}
    entry = {
        "events": [
            {"kind": "exception", "rank": rank, "step": 20, "body": {"type": "RuntimeError", "message": text}}
            for rank, text in exceptions.items()
        ],
        "ticks": [{"at": 21, "ranks": {0: alive, 1: alive}}, *([] if together else [{"at": 22, "ranks": first}]),
                  {"at": 22.2, "ranks": both}],
    }  # fmt: skip
    return play(entry, RULES)


def _root(findings: list[Finding]) -> Finding:
    newest = {one.finding_id: one for one in findings}
    (root,) = [one for one in newest.values() if not one.root_id]
    return root


def test_of_ranks_found_dead_together_the_one_that_lost_its_peer_is_not_the_root() -> None:
    for text in (
        "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:55497",
        "Connection reset by peer",
    ):
        root = _root(_died(True, {0: text}))
        assert (root.rule, root.ranks) == ("rank_dead", (1,))
        root = _root(_died(True, {0: text, 1: "out of memory"}))
        assert (root.rule, root.ranks) == ("trainer_exception", (1,))


def test_of_ranks_found_dead_together_none_is_picked_out_where_nothing_tells_them_apart() -> None:
    root = _root(_died(True, {}))
    assert (root.rule, root.ranks) == ("rank_dead", (0, 1))
    assert "not known" in root.message
    assert _root(_died(False, {})).ranks == (1,)


def test_what_is_over_is_not_the_cause_of_what_begins_much_later() -> None:
    found = rooted({"series": {"reward.nonfinite": "0x2 1x2 0x20", "policy.loss_nonfinite": "0x20 1x4"}})
    assert found.pop("reward_nonfinite") == ""
    assert found.pop("loss_nonfinite") == ""
    roots = RootCause()
    flat = roots.add(finding("flat", "reward", 3))[0]
    roots.update(replace(flat, state=FindingState.RESOLVED, step=4))
    assert roots.add(finding("nan", "policy", 21))[0].root_id == ""
    assert roots.add(finding("near", "policy", 6))[0].root_id == flat.finding_id


def test_the_last_bad_step_counts_not_the_one_in_which_it_was_called_over() -> None:
    roots = RootCause()
    flat = roots.add(finding("flat", "reward", 3), lambda: 4)[0]
    roots.update(replace(flat, state=FindingState.RESOLVED, step=12))
    assert roots.add(finding("nan", "policy", 13))[0].root_id == ""


def test_a_changed_weight_leads_to_numbers_later_on_but_not_to_a_score_that_is_none() -> None:
    for rule, layer, onset, follows in (
        ("loss_nonfinite", "policy", 9, True),
        ("entropy_cliff", "policy", 12, True),
        ("reward_cliff", "reward", 12, True),
        ("reward_func_nonfinite", "reward", 3, False),
        ("reward_func_nonfinite", "reward", 2, True),
    ):
        for over in (False, True):
            roots = RootCause(bounds=["reward_func_nonfinite", "loss_nonfinite"])
            jump = roots.add(finding("update_ratio_huge", "optimizer", 1), lambda: 1)[0]
            if over:
                roots.update(replace(jump, state=FindingState.RESOLVED, step=6))
            assert bool(roots.add(finding(rule, layer, onset))[0].root_id) is follows, (rule, onset, over)


_TRACE = """Traceback (most recent call last):
  File "/srv/train.py", line 40, in main
  File "/srv/rewards.py", line 12, in accuracy
  File "/opt/venv/lib/python3.11/site-packages/httpx/_client.py", line 900, in send
"""


def _raised(phase: str, ranks: int = 1, seen: int = 20) -> dict[str, Finding]:
    body = {"type": "ValueError", "message": "no answer", "where": "reward function accuracy", "phase": phase,
            "traceback": _TRACE}  # fmt: skip
    states = {rank: {"step": seen, "liveness": "dead" if rank == 0 else "alive"} for rank in range(ranks)}
    entry = {
        "events": [{"kind": "exception", "rank": 0, "step": 20, "body": body}], "ticks": [{"at": 30, "ranks": states}],
    }  # fmt: skip
    return {one.rule: one for one in play(entry, RULES)}


def test_an_exception_is_the_cause_of_the_death_of_its_rank_and_says_what_and_where() -> None:
    for phase, layer in (("reward", "reward"), ("forward", "policy"), ("idle", "time")):
        for seen in (19, 20):
            found = _raised(phase, seen=seen)
            told, death = found["trainer_exception"], found["rank_dead"]
            assert (told.root_id, told.layer) == ("", layer)
            assert death.root_id == told.finding_id
            for part in ("ValueError", "no answer", "reward function accuracy", "rewards.py, line 12, in accuracy"):
                assert part in told.message


@pytest.mark.parametrize(
    ("phase", "kind", "message", "layer"),
    [
        ("data", "KeyError", "prompt", "data"),
        ("generate", "RuntimeError", "probability tensor contains either inf or nan", "policy"),
        ("forward", "ValueError", "too many values to unpack", "policy"),
        ("backward", "RuntimeError", "element 0 of tensors does not require grad", "gradient"),
        ("optimizer", "RuntimeError", "step was not called", "optimizer"),
        ("vote", "RuntimeError", "boom", "time"),
        ("checkpoint", "OSError", "No space left on device", "time"),
        ("forward", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "memory"),
        ("idle", "MemoryError", "", "memory"),
        ("forward", "RuntimeError", "CUDA error: device-side assert triggered", "time"),
        ("backward", "RuntimeError", "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer", "time"),
        ("backward", "DistBackendError", "watchdog", "time"),
    ],
)
def test_an_exception_lies_in_the_layer_of_its_phase_only_where_the_phase_tells(
    phase: str, kind: str, message: str, layer: str
) -> None:
    body = {"type": kind, "message": message, "phase": phase}
    found = play({"events": [{"step": 7, "rank": 1, "kind": "exception", "body": body}]}, RULES)
    assert [(one.rule, one.layer, one.ranks) for one in found] == [("trainer_exception", layer, (1,))]


def test_what_else_was_wrong_in_its_step_is_the_root_of_an_exception_in_whatever_phase_it_was_raised() -> None:
    found = play(
        {
            "series": {"gradient.norm_preclip": "1~0.01x11 1e5"},
            "events": [
                {"step": 12, "rank": 0, "kind": "exception", "body": {"type": "ValueError", "phase": "generate"}}
            ],
        },
        RULES,
    )
    roots = {one.rule: one.root_id.partition(":")[0] for one in found}
    assert roots["trainer_exception"] == "grad_spike", roots


@pytest.mark.parametrize("rule", ["learning_rate_differs", "optimizer_constants_differ", "clip_limit_differs"])
def test_a_setting_that_differs_is_the_root_of_the_replicas_that_part_in_that_step(rule: str) -> None:
    signal = {"learning_rate_differs": "optimizer.learning_rate", "optimizer_constants_differ": "optimizer.beta1"}
    found = rooted(
        {
            "ranks": 2,
            "series": {
                signal.get(rule, "gradient.clip_limit"): {0: "1e-3x9", 1: "1e-3x4 1e-1x5"},
                "optimizer.parameter_digest": {0: "1..9x9", 1: "1..4x4 11..15x5"},
                "sentinel.replica_mismatch": "0x4 1x5",
            },
        }
    )
    assert found[rule] == ""
    assert found["replicas_differ"] == found["vote_saw_mismatch"] == rule


def test_a_death_speaks_of_other_ranks_only_where_there_are_and_of_signals_only_where_no_exception_is_known() -> None:
    alone, among = _raised("reward")["rank_dead"], _raised("reward", ranks=2)["rank_dead"]
    killed = _root(_died(False, {}))
    assert "The other ranks" not in alone.why
    assert "ring keeps" in alone.why
    assert "The other ranks fail in their next collective" in among.why
    assert not any("-9" in text for text in (*alone.remedies, *among.remedies))
    assert alone.remedies
    assert any("-9" in text for text in killed.remedies)


def test_an_exception_that_comes_in_after_the_death_takes_over_its_chain() -> None:
    roots = RootCause(bounds=["rank_dead"])
    roots.add(replace(finding("rank_dead", "time", 19), finding_id="rank_dead:0:19", ranks=(0,)))
    late = replace(finding("trainer_exception", "time", 20), finding_id="trainer_exception:0:20", ranks=(0,))
    placed, moved = roots.add(late)
    assert placed.root_id == ""
    assert [(one.rule, one.root_id) for one in moved] == [("rank_dead", late.finding_id)]
