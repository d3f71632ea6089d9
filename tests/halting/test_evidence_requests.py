"""Evidence asked for by rules and by people: its own budget, never in the way of a halt, never twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from run_support import finding, status

from grpo_sentinel.clock import ManualClock
from grpo_sentinel.config import HaltingConfig
from grpo_sentinel.halting import HaltController, HaltRefused
from grpo_sentinel.protocol import ControlReader
from grpo_sentinel.records import Action, HaltState, RankIdentity


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class Stacks:
    """Takes no stacks and remembers of whom they were wanted."""

    def __init__(self) -> None:
        self.ranks: list[int] = []

    def __call__(self, identities: list[RankIdentity], why: str) -> str:
        self.ranks = [identity.rank for identity in identities]
        return "/state/stacks.txt"


def controller(directory: Path, clock: ManualClock, stacks: Stacks | None = None, **settings: object) -> HaltController:
    config = HaltingConfig(**settings)  # type: ignore[arg-type]
    return HaltController(directory, config, clock, take_stacks=stacks)  # type: ignore[arg-type]


def asked(directory: Path) -> tuple[int, Action] | None:
    reader = ControlReader(directory)
    word = reader.read()
    reader.close()
    return None if word is None else (word.request_id, word.action)


def wants(action: Action, name: str = "a") -> object:
    return replace(finding(), action=action, finding_id=name)


@pytest.mark.parametrize("action", [Action.CAPTURE, Action.MEMORY_SNAPSHOT, Action.ANOMALY_TRACE])
def test_a_rule_asks_the_trainer_and_the_path_comes_back(tmp_path: Path, clock: ManualClock, action: Action) -> None:
    halting = controller(tmp_path, clock)
    halting.consider([wants(action)])  # type: ignore[list-item]
    assert asked(tmp_path) == (1, action)
    ranks = {
        rank: status(rank, HaltState.DONE, wall_ns=clock.wall_ns(), detail="/spool/step-10.safetensors")
        for rank in (0, 1)
    }
    halting.poll(ranks)
    assert (halting.status.state, halting.status.detail) == (HaltState.DONE, "/spool/step-10.safetensors")
    assert not halting.halted
    assert asked(tmp_path) == (1, Action.NOTE), "withdrawn"


def test_stacks_are_taken_by_the_sidecar_at_once_and_need_no_rank(tmp_path: Path, clock: ManualClock) -> None:
    stacks = Stacks()
    halting = controller(tmp_path, clock, stacks)
    halting.poll({0: status(0), 1: status(1)})
    halting.consider([wants(Action.STACKS)])  # type: ignore[list-item]
    assert stacks.ranks == [0, 1]
    assert asked(tmp_path) is None
    assert (halting.status.state, halting.status.detail) == (HaltState.DONE, "/state/stacks.txt")


def test_stacks_taken_while_a_halt_is_under_way_leave_it_alone(tmp_path: Path, clock: ManualClock) -> None:
    stacks = Stacks()
    halting = controller(tmp_path, clock, stacks)
    halting.request(Action.CHECKPOINT_AND_HALT, "")
    halting.poll({0: status(0)})
    halting.request(Action.STACKS, "")
    assert stacks.ranks == [0]
    assert halting.status.action is Action.CHECKPOINT_AND_HALT


def test_a_halt_does_not_wait_for_evidence(tmp_path: Path, clock: ManualClock) -> None:
    halting = controller(tmp_path, clock)
    halting.consider([wants(Action.CAPTURE)])  # type: ignore[list-item]
    halting.consider([finding()])
    assert asked(tmp_path) == (2, Action.CHECKPOINT_AND_HALT)


def test_evidence_waits_for_a_halt_and_says_so_to_a_person(tmp_path: Path, clock: ManualClock) -> None:
    halting = controller(tmp_path, clock)
    halting.request(Action.CHECKPOINT, "")
    with pytest.raises(HaltRefused, match="request 1 \\(checkpoint\\) is under way"):
        halting.request(Action.CAPTURE, "")
    halting.consider([wants(Action.CAPTURE)])  # type: ignore[list-item]
    assert asked(tmp_path) == (1, Action.CHECKPOINT)
    halting.poll({0: status(0, HaltState.DONE, wall_ns=clock.wall_ns())})
    halting.consider([wants(Action.CAPTURE)])  # type: ignore[list-item]
    assert asked(tmp_path) == (2, Action.CAPTURE)


def test_a_storm_of_evidence_is_bounded_and_leaves_the_budget_of_halts_alone(
    tmp_path: Path, clock: ManualClock
) -> None:
    halting = controller(tmp_path, clock, max_evidence=2, evidence_cooldown_seconds=60, max_requests=1)
    made = set()
    for second in range(400):
        halting.consider([wants(Action.CAPTURE, f"finding {second}")])  # type: ignore[list-item]
        made.add(asked(tmp_path))
        newest = max(word[0] for word in made if word is not None)
        halting.poll({0: status(0, HaltState.DONE, wall_ns=clock.wall_ns(), request_id=newest)})
        clock.advance(1.0)
        if second == 200:  # the daemon is started again: what was asked counts on
            halting = controller(tmp_path, clock, max_evidence=2, evidence_cooldown_seconds=60, max_requests=1)
    assert {word for word in made if word is not None and word[1] is Action.CAPTURE} == {
        (1, Action.CAPTURE),
        (2, Action.CAPTURE),
    }
    halting.consider([finding()])
    assert asked(tmp_path) == (3, Action.CHECKPOINT_AND_HALT)


def test_evidence_that_no_rank_takes_is_given_up_and_nobody_is_signalled(tmp_path: Path, clock: ManualClock) -> None:
    stacks = Stacks()
    halting = controller(tmp_path, clock, stacks, acknowledge_seconds=5)
    halting.request(Action.CAPTURE, "")
    clock.advance(6)
    halting.poll({0: status(0)})
    assert (halting.status.state, halting.status.detail) == (HaltState.FAILED, "not taken within 5 s")
    assert stacks.ranks == []


def test_a_dry_run_asks_for_no_evidence_and_keeps_what_it_said(tmp_path: Path, clock: ManualClock) -> None:
    halting = controller(tmp_path, clock, dry_run=True)
    halting.consider([finding(onset=811)])
    halting.consider([wants(Action.CAPTURE)])  # type: ignore[list-item]
    assert asked(tmp_path) is None
    assert halting.status.detail == "dry run: would have halted at step 812"


def test_a_persons_capture_that_gives_way_is_said_and_asked_for_again(tmp_path: Path, clock: ManualClock) -> None:
    halting = controller(tmp_path, clock)
    halting.request(Action.CAPTURE, "why so low")
    halting.request(Action.CHECKPOINT, "")
    assert asked(tmp_path) == (2, Action.CHECKPOINT)
    (lost,) = halting.passed()
    assert (lost.request_id, lost.state) == (1, HaltState.FAILED)
    assert lost.detail == "gave way to request 2 (checkpoint); asked for again when that has ended"
    assert halting.status.gave_way == f"request 1 (capture) {lost.detail}"
    halting.poll({0: status(0, HaltState.DONE, request_id=2, wall_ns=clock.wall_ns(), detail="/out/checkpoint-10")})
    assert asked(tmp_path) == (3, Action.CAPTURE)
    assert (halting.status.reason, halting.status.requested_by) == ("why so low", "user")
    assert [(one.request_id, one.state) for one in halting.passed()] == [(2, HaltState.DONE)], "its end is told too"


@pytest.mark.parametrize("by_rule", [True, False], ids=["a rule's before a checkpoint", "a person's before a halt"])
def test_a_capture_that_gives_way_for_good_promises_nothing(tmp_path: Path, clock: ManualClock, by_rule: bool) -> None:
    halting = controller(tmp_path, clock)
    if by_rule:
        halting.consider([wants(Action.CAPTURE)])  # type: ignore[list-item]
    else:
        halting.request(Action.CAPTURE, "")
    action = Action.CHECKPOINT if by_rule else Action.CHECKPOINT_AND_HALT
    halting.request(action, "")
    (lost,) = halting.passed()
    assert lost.detail == f"gave way to request 2 ({action.name.lower().replace('_', '-')})"
    halting.poll({0: status(0, HaltState.DONE, request_id=2, wall_ns=clock.wall_ns())})
    assert asked(tmp_path) == (2, Action.NOTE), "withdrawn, and nothing follows"
