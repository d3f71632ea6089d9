"""One request at a time, from the finding to its end; ids, cooldown and budget over the daemon's restarts."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from run_support import finding, status

from grpo_sentinel.clock import ManualClock
from grpo_sentinel.config import HaltingConfig
from grpo_sentinel.halting import HaltController, HaltRefused
from grpo_sentinel.protocol import ControlReader
from grpo_sentinel.records import Action, ControlWord, EventRecord, FindingState, HaltState, Liveness


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def controller(directory: Path, clock: ManualClock, **settings: object) -> HaltController:
    return HaltController(directory, HaltingConfig(**settings), clock)  # type: ignore[arg-type]


def control(directory: Path) -> ControlWord | None:
    reader = ControlReader(directory)
    try:
        return reader.read()
    finally:
        reader.close()


def acked(state: HaltState, clock: ManualClock, rank: int = 0, **changes: object) -> object:
    return status(rank, state, wall_ns=clock.wall_ns(), **changes)  # type: ignore[arg-type]


def test_a_finding_becomes_a_request_that_the_ranks_carry_out(tmp_path: Path, clock: ManualClock) -> None:
    halting = controller(tmp_path, clock)
    halting.consider([finding()])
    word = control(tmp_path)
    assert word is not None
    assert (word.request_id, word.action) == (1, Action.CHECKPOINT_AND_HALT)
    assert word.requested_by == "gradient_nonfinite"
    assert word.deadline_wall_ns == clock.wall_ns() + 120 * 10**9
    seen = []
    for state in (None, HaltState.VOTED, HaltState.CHECKPOINTING, HaltState.DONE):
        clock.advance(0.1)
        ranks = {0: status(0), 1: status(1)} if state is None else {
            rank: acked(state, clock, rank, detail="/c/checkpoint-10" if state is HaltState.DONE else "") for rank in (0, 1)
        }  # fmt: skip
        seen.append(halting.poll(ranks).state)
    assert seen == [HaltState.REQUESTED, HaltState.VOTED, HaltState.CHECKPOINTING, HaltState.DONE]
    assert (halting.status.step, halting.status.detail) == (10, "/c/checkpoint-10")
    assert halting.halted


def test_done_is_not_claimed_before_every_rank_says_so(tmp_path: Path, clock: ManualClock) -> None:
    halting = controller(tmp_path, clock)
    halting.request(Action.CHECKPOINT, "")
    half = halting.poll({0: acked(HaltState.DONE, clock), 1: acked(HaltState.CHECKPOINTING, clock, 1)})
    assert half.state is HaltState.CHECKPOINTING
    other = {0: acked(HaltState.DONE, clock), 1: acked(HaltState.DONE, clock, 1, at=11)}
    assert halting.poll(other).state is HaltState.FAILED
    assert "different steps" in halting.status.detail


def test_a_rank_that_was_halted_by_the_vote_alone_counts_as_done(tmp_path: Path, clock: ManualClock) -> None:
    halting = controller(tmp_path, clock)
    halting.request(Action.CHECKPOINT_AND_HALT, "")
    late = acked(HaltState.FINISHED, clock, detail="the run ended first", liveness=Liveness.CLOSED)
    ranks = {0: replace(late, closed_detail="halted"), 1: acked(HaltState.DONE, clock, 1, detail="/c")}  # type: ignore[type-var]
    assert halting.poll(ranks).state is HaltState.DONE
    assert halting.status.detail == "/c"


@pytest.mark.parametrize(
    ("ranks", "state", "words"),
    [
        ({0: HaltState.VOTED, 1: HaltState.FAILED}, HaltState.FAILED, "rank 1: disk full"),
        ({0: HaltState.REFUSED, 1: None}, HaltState.REFUSED, "rank 0: disk full"),
        ({0: HaltState.FINISHED, 1: HaltState.FINISHED}, HaltState.FINISHED, "ended first"),
    ],
)
def test_bad_endings_are_named(
    tmp_path: Path, clock: ManualClock, ranks: dict[int, HaltState | None], state: HaltState, words: str
) -> None:
    halting = controller(tmp_path, clock)
    halting.request(Action.CHECKPOINT_AND_HALT, "")
    left = Liveness.CLOSED if state is HaltState.FINISHED else Liveness.ALIVE
    found = halting.poll({
        rank: status(rank, what, wall_ns=clock.wall_ns(), detail="disk full", liveness=left) for rank, what in ranks.items()
    })  # fmt: skip
    assert found.state is state
    assert words in found.detail


def test_a_rank_that_dies_in_the_middle_fails_the_request(tmp_path: Path, clock: ManualClock) -> None:
    halting = controller(tmp_path, clock)
    halting.request(Action.CHECKPOINT_AND_HALT, "")
    ranks = {0: acked(HaltState.CHECKPOINTING, clock), 1: status(1, liveness=Liveness.DEAD)}
    assert halting.poll(ranks).state is HaltState.FAILED
    assert "rank 1 died" in halting.status.detail


def test_an_old_acknowledgement_of_the_same_number_is_not_this_requests(tmp_path: Path, clock: ManualClock) -> None:
    halting = controller(tmp_path, clock)
    halting.request(Action.CHECKPOINT, "")
    stale = status(0, HaltState.DONE, wall_ns=clock.wall_ns() - 10**9)
    assert halting.poll({0: stale}).state is HaltState.REQUESTED


def test_ids_increase_and_survive_a_restart_of_the_daemon(tmp_path: Path, clock: ManualClock) -> None:
    first = controller(tmp_path, clock)
    assert first.request(Action.CHECKPOINT, "one") == 1
    first.poll({0: acked(HaltState.DONE, clock)})
    assert first.request(Action.CHECKPOINT, "two") == 2
    clock.advance(1)
    second = controller(tmp_path, clock)
    assert (second.status.request_id, second.status.state) == (2, HaltState.REQUESTED)
    assert second.poll({0: acked(HaltState.DONE, clock, request_id=2)}).state is HaltState.DONE
    assert second.request(Action.CHECKPOINT, "three") == 3
    os.unlink(tmp_path / "control")  # even where the control file is lost, no number is used twice
    assert controller(tmp_path, clock).request(Action.CHECKPOINT, "four") == 4


def test_cooldown_and_budget_bind_rules_and_survive_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    settings = {"cooldown_seconds": 300.0, "max_requests": 2}
    halting = controller(tmp_path, clock, **settings)
    for number in (1, 2):
        halting.consider([finding(action=Action.CHECKPOINT, onset=number * 10)])
        assert halting.status.request_id == number
        halting.poll({0: acked(HaltState.DONE, clock, request_id=number)})
        halting.consider([finding(action=Action.CHECKPOINT, onset=number * 10 + 1)])
        assert halting.status.request_id == number, "the cooldown binds"
        halting = controller(tmp_path, clock, **settings)
        halting.poll({0: acked(HaltState.DONE, clock, request_id=number)})
        halting.consider([finding(action=Action.CHECKPOINT, onset=number * 10 + 2)])
        assert halting.status.request_id == number, "also after a restart"
        clock.advance(301)
    halting.consider([finding(action=Action.CHECKPOINT, onset=90)])
    assert halting.status.request_id == 2, "the budget is spent"
    assert halting.request(Action.CHECKPOINT, "a person may") == 3


def test_a_finding_asks_once_and_again_only_when_its_request_failed(tmp_path: Path, clock: ManualClock) -> None:
    halting = controller(tmp_path, clock, cooldown_seconds=0, max_requests=10)
    halting.consider([finding(action=Action.CHECKPOINT)])
    halting.poll({0: acked(HaltState.DONE, clock)})
    clock.advance(1)
    halting.consider([finding(action=Action.CHECKPOINT)])
    assert halting.status.request_id == 1
    halting.consider([finding("other", Action.CHECKPOINT)])
    halting.poll({0: acked(HaltState.FAILED, clock, request_id=2)})
    halting.consider([finding("other", Action.CHECKPOINT)])
    assert halting.status.request_id == 3


def test_a_stronger_wish_waits_for_the_weaker_one_to_end(tmp_path: Path, clock: ManualClock) -> None:
    halting = controller(tmp_path, clock)
    assert halting.request(Action.CHECKPOINT, "person") == 1
    halting.consider([finding()])
    assert halting.request(Action.CHECKPOINT, "person again") == 1, "asked for already"
    assert control(tmp_path).request_id == 1  # type: ignore[union-attr]
    halting.poll({0: acked(HaltState.DONE, clock)})
    word = control(tmp_path)
    assert word is not None
    assert (word.request_id, word.action) == (2, Action.CHECKPOINT_AND_HALT)


def test_of_two_findings_the_stronger_action_and_the_root_cause_ask(tmp_path: Path, clock: ManualClock) -> None:
    halting = controller(tmp_path, clock)
    halting.consider([
        finding("follows", onset=4, root_id="x"), finding("root", onset=5), finding("mild", Action.CHECKPOINT, onset=1),
        finding("gone", Action.HALT_NOW, state=FindingState.RESOLVED), finding("alert", Action.ALERT),
    ])  # fmt: skip
    assert halting.status.requested_by == "root"


def test_dry_run_says_what_it_would_have_done_and_asks_nothing(tmp_path: Path, clock: ManualClock) -> None:
    halting = controller(tmp_path, clock, dry_run=True)
    halting.consider([finding(onset=811)])
    assert halting.status.dry_run
    assert halting.status.detail == "dry run: would have halted at step 812"
    assert control(tmp_path) is None
    assert halting.request(Action.CHECKPOINT, "a person is obeyed all the same") == 1


def test_switched_off_no_rule_asks(tmp_path: Path, clock: ManualClock) -> None:
    halting = controller(tmp_path, clock, enabled=False)
    halting.consider([finding()])
    assert control(tmp_path) is None


def test_nothing_is_asked_of_a_halted_run(tmp_path: Path, clock: ManualClock) -> None:
    halting = controller(tmp_path, clock, cooldown_seconds=0)
    halting.request(Action.HALT_NOW, "")
    halting.poll({0: acked(HaltState.DONE, clock)})
    halting.consider([finding()])
    assert halting.status.request_id == 1
    with pytest.raises(HaltRefused, match="already been halted at step 10"):
        halting.request(Action.CHECKPOINT, "")
    with pytest.raises(HaltRefused, match="cannot be asked for alert"):
        controller(tmp_path, clock).request(Action.ALERT, "")


def test_a_request_of_another_node_is_followed(tmp_path: Path, clock: ManualClock) -> None:
    halting = controller(tmp_path, clock)
    assert halting.poll({0: status(0), 1: status(1)}).state is HaltState.NONE
    voted = {rank: acked(HaltState.VOTED, clock, rank, request_id=7) for rank in (0, 1)}
    halting.observe([_vote("checkpoint_and_halt", 7)])
    assert halting.poll(voted).state is HaltState.VOTED
    done = {rank: acked(HaltState.DONE, clock, rank, request_id=7, detail="/c") for rank in (0, 1)}
    assert halting.poll(done).state is HaltState.DONE
    assert halting.status.requested_by == "elsewhere"
    assert halting.poll(done).state is HaltState.DONE, "and not taken for a new one"


def _vote(action: str, request_id: int, at: int = 10) -> EventRecord:
    """What a rank tells of a vote that asked for something."""
    body = {"action": action, "request_id": request_id, "reason": "because"}
    return EventRecord(run_id="run", rank=0, sequence=1, step=at, wall_ns=1, kind="halt", body=body)


@pytest.mark.parametrize("action", ["capture", "checkpoint"])
def test_what_another_node_asked_for_is_shown_as_that_and_not_as_a_halt(
    tmp_path: Path, clock: ManualClock, action: str
) -> None:
    halting = controller(tmp_path, clock)
    halting.observe([_vote("checkpoint_and_halt", 3, at=4)])  # an earlier one
    voted = {rank: acked(HaltState.VOTED, clock, rank, request_id=7) for rank in (0, 1)}
    assert halting.poll(voted).state is HaltState.NONE, "nobody has said yet what this vote is about"
    halting.observe([_vote(action, 7)])
    assert halting.poll(voted).action is Action[action.upper()]
    done = {rank: acked(HaltState.DONE, clock, rank, request_id=7, detail="/c") for rank in (0, 1)}
    assert halting.poll(done).state is HaltState.DONE
    assert not halting.halted


def test_an_unexplained_acknowledgement_of_ranks_that_closed_as_halted_is_a_halt(
    tmp_path: Path, clock: ManualClock
) -> None:
    halting = controller(tmp_path, clock)
    done = {rank: acked(HaltState.DONE, clock, rank, request_id=7, detail="/c") for rank in (0, 1)}
    assert halting.poll(done).state is HaltState.NONE
    closed = {
        rank: replace(one, liveness=Liveness.CLOSED, closed_detail="halted at step 10") for rank, one in done.items()
    }
    halting.poll(closed)
    assert halting.poll(closed).state is HaltState.DONE
    assert halting.halted


def test_the_gates_bound_goes_ahead_of_any_request(tmp_path: Path, clock: ManualClock) -> None:
    HaltController(tmp_path, HaltingConfig(), clock, skip_above_norm=50.0)
    word = control(tmp_path)
    assert word is not None
    assert (word.request_id, word.skip_above_norm) == (0, 50.0)
    assert math.isinf(ControlWord(request_id=0).skip_above_norm)


def test_a_request_that_has_ended_is_withdrawn_and_its_number_not_used_again(
    tmp_path: Path, clock: ManualClock
) -> None:
    halting = controller(tmp_path, clock)
    halting.request(Action.CHECKPOINT, "")
    assert control(tmp_path).action is Action.CHECKPOINT  # type: ignore[union-attr]
    clock.advance(1)
    halting.poll({0: acked(HaltState.DONE, clock)})
    word = control(tmp_path)
    assert word is not None
    assert (word.request_id, word.action) == (1, Action.NOTE)
    assert controller(tmp_path, clock).request(Action.CHECKPOINT, "") == 2


def test_a_run_started_again_under_its_name_can_be_halted_again_but_not_for_what_was(
    tmp_path: Path, clock: ManualClock
) -> None:
    halting = controller(tmp_path, clock)
    old = replace(finding(), wall_ns=clock.wall_ns())
    halting.consider([old])
    clock.advance(1)
    halting.poll({0: acked(HaltState.DONE, clock)})
    assert halting.halted
    clock.advance(60)
    who = replace(status().identity, created_wall_ns=clock.wall_ns())
    for taken_up in (halting, controller(tmp_path, clock)):  # the daemon that saw the halt, and one started since
        assert taken_up.poll({0: status(who=who)}).state is HaltState.NONE
        assert not taken_up.halted
        taken_up.consider([old])
        assert taken_up.status.state is HaltState.NONE, "what fired before the restart asks for nothing"
    clock.advance(1)
    halting.consider([replace(finding(onset=9), wall_ns=clock.wall_ns())])
    assert (halting.status.request_id, halting.status.state) == (2, HaltState.REQUESTED)
