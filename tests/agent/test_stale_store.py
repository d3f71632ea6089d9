"""A store that outlives the processes of a job, as torchrun's does over a restart, still holds their answers."""

import pytest

pytestmark = pytest.mark.torch


def test_a_rank_with_a_problem_has_a_reason_also_where_an_older_decision_says_go():
    import torch.distributed as dist

    from grpo_sentinel.agent.handshake import agree

    store = dist.HashStore()
    store.set("group/decision", "go")  # of the processes before the restart
    assert agree(store, "group", rank=0, world=2, timeout_s=1, problem="gloo failed on rank 0") == "gloo failed on rank 0"


def test_of_two_problems_the_first_that_was_told_is_everybodys():
    import torch.distributed as dist

    from grpo_sentinel.agent.handshake import agree

    store = dist.HashStore()
    assert agree(store, "group", rank=1, world=2, timeout_s=1, problem="second's") == "second's"
    assert agree(store, "group", rank=0, world=2, timeout_s=1, problem="first's") == "second's"
