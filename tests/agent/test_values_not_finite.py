"""A value that is not finite goes into the record as it is: no view shows the last good one in its place."""

import math

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from ranks import Segment  # noqa: E402

from grpo_sentinel.agent import attach  # noqa: E402
from grpo_sentinel.protocol import RankReader, run_dir  # noqa: E402


@pytest.fixture
def agent(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
    monkeypatch.setenv("GRPO_SENTINEL_RUN_ID", "run")
    net = torch.nn.Linear(4, 1)
    agent = attach(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), max_grad_norm=1.0)
    agent.net, agent.ring = net, run_dir(tmp_path, "run") / "rank-00000.ring"
    yield agent
    agent.close()


def segment(agent):
    agent.close()
    reader = RankReader(agent.ring)
    try:
        return Segment(reader)
    finally:
        reader.close()


def test_a_step_whose_losses_are_all_nan_has_a_loss_and_a_norm_of_nan(agent):
    optimizer = torch.optim.SGD(agent.net.parameters(), lr=0.1)
    agent.watch(optimizer=optimizer)
    for factors in ([1.0, 1.0], [math.nan, math.nan], [math.nan, 1.0]):
        for factor in factors:
            loss = agent.net(torch.ones(2, 4)).sum() * factor
            loss.backward()
            agent.observe_policy(loss=loss)
        agent.observe_gradients()
        optimizer.step()
        optimizer.zero_grad()
        agent.end_step()
    steps = segment(agent).steps()
    assert [steps[step]["policy.loss_nonfinite"] for step in (1, 2, 3)] == [0, 2, 1]
    assert [math.isnan(steps[step]["policy.loss"]) for step in (1, 2, 3)] == [False, True, False]
    assert [math.isnan(steps[step]["gradient.norm_preclip"]) for step in (1, 2, 3)] == [False, True, True]
    assert math.isnan(steps[2]["gradient.clip_coefficient"])


def test_weights_that_are_not_finite_when_an_exception_leaves_are_named_before_it(agent):
    agent.end_step()
    with torch.no_grad():
        agent.net.bias.fill_(math.nan)
    agent.exception(RuntimeError("probability tensor contains inf or nan"), "generate")
    found = segment(agent)
    (told,) = found.of("nonfinite")
    assert (told["where"], told["names"], told["count"]) == ("weights", ["bias"], 1)
    kinds = [event.kind for event in found.events]
    assert kinds.index("nonfinite") < kinds.index("exception")


def test_finite_weights_at_an_exception_are_not_told(agent):
    agent.exception(RuntimeError("anything"), "generate")
    assert segment(agent).of("nonfinite") == []


def test_rewards_and_log_probs_of_which_none_is_finite_have_a_mean_of_nan(agent):
    agent.observe_rewards([math.nan, math.inf])
    agent.observe_policy(logp_BT=torch.full((2, 3), math.nan), mask_BT=torch.ones(2, 3))
    agent.end_step()
    found = segment(agent)
    assert any(math.isnan(record.values.get("reward.mean", 0.0)) for record in found.records)
    assert math.isnan(found.steps()[1]["policy.logp_mean_nats"])
