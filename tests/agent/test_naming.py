"""Tensors behind a signal are named once, in an event that comes before the record."""

import pytest

torch = pytest.importorskip("torch")

from test_agent_steps import Loop  # noqa: E402

from grpo_sentinel.agent.naming import Naming  # noqa: E402

pytestmark = pytest.mark.torch


def test_a_fault_that_lasts_is_named_once_and_again_when_it_is_another():
    naming = Naming()
    told = [naming.changed({"data.dtype_mismatch": names}, {}, step) for step, names in enumerate(["a", "a", "a, b", "a, b"])]
    assert [[body["names"] for body in bodies] for bodies in told] == [["a"], [], ["a, b"], []]


def test_the_top_parameter_is_named_when_it_carries_much_and_not_at_every_step():
    naming = Naming()
    shares = [0.2, 0.6, 0.7, *[0.7] * 20]
    told = [
        naming.changed({"gradient.top_share": f"layer{step}"}, {"gradient.top_share": share}, step)
        for step, share in enumerate(shares)
    ]
    assert [step for step, bodies in enumerate(told) if bodies] == [1, 17]


def test_tensors_that_do_not_fit_the_batch_leave_the_trainer_by_name(tmp_path, monkeypatch):
    loop = Loop(tmp_path, monkeypatch)
    for _ in range(2):
        loop.agent.observe_data(
            prompt_ids=torch.zeros(2, 3, dtype=torch.long), prompt_mask=torch.ones(2, 3),
            completion_ids=torch.zeros(2, 4), completion_mask=torch.ones(2, 5), advantages=torch.zeros(2),
        )  # fmt: skip
        loop.agent.observe_policy(
            logp_BT=torch.zeros(2, 4), old_logp_BT=torch.zeros(2, 4, requires_grad=True), advantages=torch.zeros(2)
        )
        loop.step()
    named = {event["signal"]: event["names"] for event in loop.segment().of("named")}
    assert named["data.dtype_mismatch"] == "completion_ids"
    assert named["data.shape_mismatch"] == "completion_mask"
    assert named["policy.input_grad_leaks"] == "old_logp"
    assert len([event for event in loop.segment().of("named") if event["signal"] == "data.dtype_mismatch"]) == 1
