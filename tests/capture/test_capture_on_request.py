"""Evidence that is asked for: taken at the step after the vote, acknowledged with its path, training goes on."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from grpo_sentinel.agent.capture import rng  # noqa: E402
from grpo_sentinel.records import HaltState  # noqa: E402

pytestmark = pytest.mark.torch


def test_a_capture_has_the_random_state_from_before_the_step_and_its_log_probs(loop):
    run = loop(samples="full", dropout=0.5)
    run.ask(1, "CAPTURE")
    assert not run.step(1).halt
    assert run.acks().state is HaltState.VOTED
    states = []
    run.step(2, spoil=lambda batch: states.append(torch.get_rng_state()))
    tensors, facts = run.captured()
    assert (facts["step"], facts["reason"], facts["asked"]) == (2, "request", "a test asks")
    assert torch.equal(tensors["rng/before/torch_cpu"], states[0])
    assert tensors["policy/0/logp_BT"].shape == (3, 6)
    assert {"rng/before/python", "rng/after/torch_cpu", "gradient/2.weight"} <= tensors.keys()
    ack = run.acks()
    assert (ack.request_id, ack.state, ack.detail) == (1, HaltState.DONE, str(run.files()[0]))
    run.step(3)
    assert len(run.files()) == 1, "asked once, taken once"


def test_a_memory_snapshot_names_parameters_gradients_and_optimizer_state(loop):
    run = loop()
    run.step(1)
    run.ask(1, "MEMORY_SNAPSHOT")
    leak = torch.zeros(1000, 1000)
    run.step(2)
    told = run.told()
    groups = {(group["kind"], group["shape"]): group for group in told["groups"]}
    assert told["groups"][0]["shape"] == "[1000, 1000]"
    assert "2.weight" in groups["parameter", "[11, 4]"]["creators"]
    assert any("exp_avg of 0.weight" in group["creators"] for (kind, _), group in groups.items() if "state" in kind)
    assert any(kind == "gradient" for kind, _ in groups)
    assert told["bytes"] >= leak.nbytes
    assert run.acks().state is HaltState.DONE


def test_a_trace_names_the_operation_of_the_first_nan_and_the_line_and_raises_nothing(loop):
    run = loop()

    def loss(batch):
        logp = run.model(batch["completion_ids"]).log_softmax(-1)
        return logp[..., 0], (logp * 0).sqrt().sum()  # the derivative of a root at 0 is infinite

    run.ask(1, "ANOMALY_TRACE")
    run.step(1)
    run.loss = loss
    assert run.step(2).skipped
    told = run.told()
    assert told["first"]["phase"] == "backward"
    assert told["first"]["node"] == "MulBackward0"
    assert any("logp * 0" in frame for frame in told["first"]["stack"])
    assert "MulBackward0" in run.acks().detail
    assert not torch.is_anomaly_enabled()
    assert run.step(3).skipped
    assert len(run.files(".json")) == 1


def test_a_nan_that_came_in_with_the_batch_is_told_as_such(loop, spoil):
    run = loop()
    run.ask(1, "ANOMALY_TRACE")
    run.step(1)
    run.step(2, spoil=spoil)
    assert run.told()["told"] == "advantages of the batch holds NaN before the forward"


def test_a_trace_of_a_healthy_step_says_so(loop):
    run = loop()
    run.ask(1, "ANOMALY_TRACE")
    run.step(1)
    run.step(2)
    assert run.acks().detail == "no operation of this step made a NaN"
    assert run.told()["operations"] > 10


def test_a_loop_that_shows_no_batch_is_traced_too(loop):
    run = loop()
    run.ask(1, "ANOMALY_TRACE")
    for step in (1, 2):
        (run.model(torch.tensor([1, 2])).sum() * float("inf") * (0.0 if step == 2 else 1e-30)).backward()
        run.optimizer.step()
        run.agent.end_step(step)
    assert run.acks().state is HaltState.DONE
    assert run.told()["first"]["operation"].startswith("aten.mul")


def test_what_stops_the_run_goes_before_evidence(loop):
    run = loop()
    run.ask(1, "ANOMALY_TRACE")
    run.step(1)
    run.ask(2, "HALT_NOW")
    assert run.step(2).halt
    ack = run.acks()
    assert (ack.request_id, ack.state) == (2, HaltState.DONE)


def test_evidence_that_the_end_of_training_forestalls_is_acknowledged_as_failed(loop):
    run = loop()
    run.ask(1, "CAPTURE")
    run.step(1)
    run.agent.close()
    assert run.acks().state is HaltState.FAILED


@pytest.mark.parametrize("numpy_too", [False, True])
def test_random_states_come_back_as_they_were(numpy_too):
    import random

    numpy = pytest.importorskip("numpy") if numpy_too else None
    random.gauss(0, 1)  # leaves half a pair behind
    saved = rng.states()

    def draw():
        drawn = [torch.rand(3).tolist(), random.random(), random.gauss(0, 1)]
        return [*drawn, numpy.random.rand(2).tolist()] if numpy_too else drawn

    first = draw()
    assert draw() != first
    rng.restore(saved)
    assert draw() == first


def test_an_agent_that_does_not_capture_says_so_at_once(loop):
    run = loop(capture="off")
    run.ask(1, "CAPTURE")
    run.step(1)
    assert (run.acks().state, run.acks().detail) == (HaltState.FAILED, "capturing is off (agent.capture)")
