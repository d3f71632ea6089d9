"""One request's life on a rank, told by its acknowledgements."""

import itertools
import time
from dataclasses import replace

import pytest

from grpo_sentinel.agent.halt import HaltDesk
from grpo_sentinel.protocol.identity import process_began_ns
from grpo_sentinel.records import Action, ControlWord, HaltState

_places = itertools.count()


class Paper:
    def __init__(self, word=None):
        self.word = word

    def read(self):
        return self.word


@pytest.fixture
def desk():
    acks = []
    paper = Paper()
    made = HaltDesk(paper, acks.append, where=f"place {next(_places)}")
    made.paper, made.acks = paper, acks
    made.states = lambda: [(ack.request_id, ack.state, ack.detail) for ack in acks]
    return made


def ask(request_id, action=Action.CHECKPOINT_AND_HALT):
    return ControlWord(request_id=request_id, action=action, reason="why")


def test_a_halt_is_voted_saved_and_done(desk):
    desk.paper.word = ask(4)
    assert desk.pending().request_id == 4
    desk.agreed(7, 4, step=9)
    verdict = desk.verdict(skipped=False)
    assert (verdict.halt, verdict.checkpoint, verdict.request_id, verdict.reason) == (True, True, 4, "why")
    desk.saved("/here/checkpoint-9")
    assert desk.states() == [
        (4, HaltState.VOTED, "why"),
        (4, HaltState.CHECKPOINTING, ""),
        (4, HaltState.DONE, "/here/checkpoint-9"),
    ]
    assert desk.halted
    assert desk.pending() is None, "a request is carried out once"


def test_a_save_that_the_loop_was_not_told_to_make_does_not_stand_for_the_one_asked_for(desk):
    desk.paper.word = ask(4)
    desk.pending()
    desk.agreed(7, 4, step=9)
    desk.saved("/here/checkpoint-9")  # the loop's own, between its optimizer's step and its verdict
    verdict = desk.verdict(skipped=False)
    assert (verdict.halt, verdict.checkpoint) == (True, True), "the same on every rank, whoever saves of itself"
    desk.saved("/here/asked-9")
    assert desk.acks[-1].detail == "/here/asked-9"


def test_a_halt_stands_until_the_loop_is_left_and_a_checkpoint_is_asked_for_once(desk):
    desk.paper.word = ask(4)
    desk.pending()
    desk.agreed(7, 4, step=9)
    desk.verdict(skipped=False)
    for saved in (False, True):
        again = desk.verdict(skipped=True)
        assert (again.halt, again.checkpoint, again.skipped, again.request_id) == (True, False, True, 4)
        if not saved:
            desk.saved("/here/checkpoint-9")
    assert desk.went_on == 2


def test_a_replica_that_does_not_save_leaves_it_to_rank_0(desk):
    desk.replica = True
    desk.paper.word = ask(4, Action.CHECKPOINT)
    desk.pending()
    desk.agreed(6, 4, step=9)
    assert desk.verdict(skipped=False).checkpoint
    assert not desk.verdict(skipped=False).checkpoint
    assert desk.states()[-1] == (4, HaltState.FINISHED, "left to rank 0")
    assert not desk.acting
    desk.paper.word = ask(5)
    desk.pending()
    desk.agreed(7, 5, step=12)
    desk.verdict(skipped=False)
    desk.run_ended(12)
    assert desk.states()[-1] == (5, HaltState.FINISHED, "left to rank 0")


def test_another_nodes_request_is_acknowledged_under_its_own_id(desk):
    desk.pending()
    desk.agreed(8, 31, step=2)
    assert desk.verdict(skipped=False).halt
    assert desk.states() == [(31, HaltState.VOTED, ""), (31, HaltState.DONE, "")]


def test_mild_actions_are_not_put_to_the_vote(desk):
    desk.paper.word = ask(1, Action.STACKS)
    assert desk.pending() is None
    assert desk.agreed(0, 0, step=1) is None
    assert desk.states() == []


def test_a_run_that_ends_first_says_finished(desk):
    desk.paper.word = ask(2)
    desk.run_ended(12)
    assert [(ack.state, ack.step) for ack in desk.acks] == [(HaltState.FINISHED, 12)]


def test_a_loop_that_ends_without_saving_has_failed(desk):
    desk.paper.word = ask(2)
    desk.pending()
    desk.agreed(7, 2, step=3)
    desk.verdict(skipped=False)
    desk.run_ended(3)
    assert desk.acks[-1].state is HaltState.FAILED
    assert "not reported as saved" in desk.acks[-1].detail
    assert "checkpoint_saved(path)" in desk.acks[-1].detail, "a loop that saved and did not say so learns what to call"


def test_a_request_is_refused_once(desk):
    desk.paper.word = ask(5)
    for _ in range(3):
        desk.pending()
        desk.refuse(1, "ranks cannot agree")
    assert desk.states() == [(5, HaltState.REFUSED, "ranks cannot agree")]


def test_a_second_attachment_does_not_repeat_a_request_already_carried_out(desk):
    desk.paper.word = ask(5)
    desk.pending()
    desk.agreed(7, 5, step=1)
    again = HaltDesk(desk.paper, desk.acks.append, where=desk._where)
    assert again.pending() is None


def test_a_request_learned_by_the_vote_alone_is_handled_and_not_called_finished_at_the_end(desk):
    desk.pending()
    desk.paper.word = ask(4)  # written after this rank looked and before the other did
    desk.agreed(7, 4, step=9)
    desk.verdict(skipped=False)
    desk.saved("/here/checkpoint-9")
    desk.run_ended(9)
    assert desk.acks[-1].state is HaltState.DONE
    assert desk.pending() is None


def test_a_halt_that_comes_while_a_checkpoint_is_agreed_gets_a_vote_of_its_own(desk):
    desk.pending()
    desk.paper.word = ask(5)
    desk.agreed(6, 3, step=9)  # another node's checkpoint
    desk.verdict(skipped=False)
    desk.saved("/here/checkpoint-9")
    assert desk.pending().request_id == 5


def test_what_was_asked_of_the_processes_before_this_one_is_not_asked_of_it(desk):
    began = process_began_ns()
    assert 0 < began < time.time_ns()
    desk.paper.word = replace(ask(4), made_wall_ns=began - 10**9)
    assert desk.pending() is None, "a run resumed after a halt must not halt at once"
    desk.run_ended(12)
    assert desk.acks == []
    desk.paper.word = replace(ask(5), made_wall_ns=began + 10**9)
    assert desk.pending().request_id == 5
