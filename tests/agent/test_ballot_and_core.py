"""The vote's arithmetic and the core's decisions, without processes."""

import inspect
import math

import pytest

pytestmark = pytest.mark.torch
from grpo_sentinel.agent.ballot import CLEAN, NONFINITE, Ballot, count, fill  # noqa: E402
from grpo_sentinel.agent.core import Core  # noqa: E402
from grpo_sentinel.agent.handshake import Alone  # noqa: E402


class Others:
    """A transport in which given ballots vote along."""

    def __init__(self, *others):
        self.others = others

    def maximum(self, words):
        return [max(column) for column in zip(words, *(fill(other) for other in self.others), strict=True)]


def tally(*ballots):
    return count([max(column) for column in zip(*(fill(ballot) for ballot in ballots), strict=True)])


def test_equal_norms_agree_and_one_bit_differs():
    same = tally(Ballot(rank=0, norm=1.5), Ballot(rank=1, norm=1.5))
    assert not same.norms_differ
    other = tally(Ballot(rank=0, norm=1.5), Ballot(rank=1, norm=math.nextafter(1.5, 2)))
    assert other.norms_differ
    assert (other.norm_min, other.norm_max) == (1.5, math.nextafter(1.5, 2))


def test_nan_norms_of_any_sign_are_equal_and_differ_from_a_number():
    assert not tally(Ballot(rank=0, norm=math.nan), Ballot(rank=1, norm=-math.nan)).norms_differ
    assert tally(Ballot(rank=0, norm=math.nan), Ballot(rank=1, norm=3.0)).norms_differ
    assert tally(Ballot(rank=0, norm=math.inf), Ballot(rank=1, norm=0.0)).norm_min == 0.0


def test_the_strongest_request_wins_and_a_rank_that_knows_nothing_never_does():
    agreed = tally(Ballot(rank=0, action=6, request_id=900), Ballot(rank=1, action=7, request_id=3), Ballot(rank=2))
    assert (agreed.action, agreed.request_id) == (7, 3)
    silent = tally(Ballot(rank=0), Ballot(rank=1))
    assert (silent.action, silent.norm_min, silent.norm_max, silent.digests_differ) == (0, None, None, False)


def test_flagged_ranks_are_the_first_and_the_last():
    agreed = tally(*(Ballot(rank=rank, flag=NONFINITE if rank in (2, 5) else CLEAN) for rank in range(8)))
    assert (agreed.flag, agreed.first_flagged, agreed.last_flagged) == (NONFINITE, 2, 5)
    assert tally(Ballot(rank=0, flag=NONFINITE), Ballot(rank=1)).first_flagged == 0
    assert tally(Ballot(rank=0), Ballot(rank=1)).first_flagged == -1


def test_digests_differ_only_between_ranks_that_have_one():
    assert not tally(Ballot(rank=0, digest=5), Ballot(rank=1)).digests_differ
    assert tally(Ballot(rank=0, digest=5), Ballot(rank=1, digest=6)).digests_differ


def test_a_vote_between_versions_is_refused():
    words = fill(Ballot(rank=0))
    words[0] += 1
    with pytest.raises(ValueError, match="different versions"):
        count(words)


@pytest.mark.parametrize(
    ("norm", "bound", "gate", "skipped"),
    [
        (1.0, math.inf, "skip", False),
        (math.nan, math.inf, "skip", True),
        (math.inf, math.inf, "halt", True),
        (math.nan, math.inf, "off", False),
        (5.0, 4.0, "skip", True),
        (4.0, 4.0, "skip", False),
        (None, 1.0, "skip", False),
    ],
)
def test_the_gate_stops_what_is_not_finite_or_above_the_bound(norm, bound, gate, skipped):
    core = Core(rank=0, transport=Alone(), gate=gate)
    assert core.decide(norm, bound=bound).skip is skipped
    assert core.skipped_updates == skipped


class Sharded:
    """Two ranks: what the other one says is given, what this one says is kept."""

    def __init__(self, ballot, square, bound):
        self.ballot, self.row = ballot, [square, bound]

    def maximum(self, words):
        return [max(pair) for pair in zip(words, fill(self.ballot), strict=True)]

    def gather(self, row):
        return [list(row), self.row]


@pytest.mark.parametrize(
    ("square", "bound", "skipped", "norm"),
    [(16.0, math.inf, True, 5.0), (15.9, math.inf, False, math.sqrt(24.9)), (15.9, 4.9, True, math.sqrt(24.9))],
)
def test_parts_of_a_sharded_gradient_are_added_up_before_they_are_judged(square, bound, skipped, norm):
    core = Core(rank=0, world=2, transport=Sharded(Ballot(rank=1, norm=4.0), square, bound), skip_above_norm=4.999)
    outcome = core.decide(3.0, copies=1)
    assert (outcome.skip, outcome.summed) == (skipped, True)
    assert outcome.norm == pytest.approx(norm)


def test_a_rank_that_asks_for_the_sum_is_joined_by_one_that_does_not_know_its_part():
    other = Ballot(rank=1, norm=4.0, partial=True)
    outcome = Core(rank=0, world=2, transport=Sharded(other, 16.0, 1.0)).decide(None)
    assert (outcome.skip, outcome.summed, outcome.norm) == (False, False, None), "unknown stops no update"


def test_shards_that_several_ranks_hold_count_once():
    core = Core(rank=0, world=2, transport=Sharded(Ballot(rank=1, norm=3.0), 4.5, math.inf), skip_above_norm=3.1)
    outcome = core.decide(3.0, copies=2)
    assert not outcome.skip
    assert outcome.norm == pytest.approx(3.0)


def test_a_flag_of_another_rank_stops_this_one():
    core = Core(rank=0, transport=Others(Ballot(rank=1, flag=NONFINITE, norm=math.nan)))
    outcome = core.decide(1.0)
    assert outcome.skip
    assert (outcome.first_flagged, outcome.norms_differ) == (1, True)


def test_every_decision_is_voted_so_that_no_rank_ever_acts_alone():
    core = Core(rank=0, transport=Others(Ballot(rank=1, action=7, request_id=1, flag=NONFINITE)))
    seen = [core.decide(1.0) for _ in range(4)]
    assert [(outcome.voted, outcome.skip, outcome.action) for outcome in seen] == [(True, True, 7)] * 4
    assert "vote_every" not in inspect.signature(Core).parameters


def test_without_a_vote_a_request_is_not_acted_on():
    core = Core(rank=0, transport=None, why_off="no core on rank 3")
    outcome = core.decide(math.nan, action=7, request_id=1)
    assert (outcome.action, outcome.voted, outcome.skip) == (0, False, True)
