"""A fault is captured by itself, before the optimizer runs, bounded, and never against the trainer."""

from __future__ import annotations

import gc
import math
import time
import weakref

import pytest

torch = pytest.importorskip("torch")

from grpo_sentinel.agent.capture import capture as capture_module  # noqa: E402
from grpo_sentinel.agent.capture.files import BadCapture, read  # noqa: E402
from grpo_sentinel.agent.core import Outcome  # noqa: E402

pytestmark = pytest.mark.torch


def test_the_first_nonfinite_gradient_is_captured_with_batch_loss_weights_and_names(loop, spoil):
    run = loop(samples="full")
    run.step(1)
    assert not run.files(), "a healthy step writes nothing"
    before = {name: weight.clone() for name, weight in run.model.named_parameters()}
    run.step(2, spoil=spoil)
    tensors, facts = run.captured()
    assert (facts["step"], facts["rank"], facts["reason"]) == (2, 0, "gradient")
    assert set(facts["nonfinite_gradients"]) == {"0.weight", "2.weight", "2.bias"}
    assert facts["losses"] == [["nan", 1.0]]
    assert facts["offending_rows"] == {"batch/0/advantages": [1]}
    assert tensors["batch/0/completion_ids"].shape == (3, 6)
    assert tensors["gradient/2.bias"].isnan().any()
    for name, weight in before.items():
        assert torch.equal(tensors[f"weight/{name}"], weight), "weights as they were when the step was computed"
    (event,) = run.events("capture")
    assert event.body["path"] == str(run.files()[0])
    assert event.step == 2


def test_gradients_are_those_from_before_clipping_which_spreads_the_nan(loop):
    run = loop()
    handle = run.model[2].bias.register_hook(lambda gradient: gradient * float("nan"))
    run.step(1, clip=1.0)
    handle.remove()
    tensors, facts = run.captured()
    assert facts["nonfinite_gradients"] == ["2.bias"]
    assert not facts["clipped"]
    assert tensors["gradient/2.bias"].isnan().all()
    assert tensors["gradient/2.weight"].isfinite().all()


def test_token_ids_are_hashed_unless_asked_for_in_full(loop, spoil):
    run = loop()
    run.step(1, spoil=spoil)
    tensors, facts = run.captured()
    assert "batch/0/completion_ids" not in tensors
    assert "batch/0/advantages" in tensors
    hashes = facts["row_sha256"]["batch/0/completion_ids"]
    assert len(hashes) == 3
    assert all(len(text) == 64 for text in hashes)
    off = loop(run="off", samples="off")
    off.step(1, spoil=spoil)
    assert "row_sha256" not in off.captured()[1]


def test_an_exception_in_the_step_is_captured_before_it_leaves(loop):
    run = loop(samples="full")
    batch = {"completion_ids": torch.randint(0, 11, (3, 6)), "advantages": torch.randn(3)}
    with pytest.raises(ValueError, match="boom"), run.agent:  # noqa: PT012
        run.agent.observe_data(batch)
        raise ValueError("boom")
    tensors, facts = run.captured()
    assert facts["reason"] == "exception"
    assert facts["error"] == "ValueError: boom"
    assert torch.equal(tensors["batch/0/advantages"], batch["advantages"])


def test_a_score_that_is_not_finite_is_captured(loop):
    run = loop()
    run.agent.observe_rewards(torch.tensor([1.0, float("inf"), 0.0]), func_names=["score"])
    tensors, facts = run.captured()
    assert facts["reason"] == "reward"
    assert math.isinf(tensors["reward/scores"][1])


def test_a_loss_that_is_not_finite_is_captured_though_its_gradient_is(loop):
    run = loop()
    run.agent.observe_data({"advantages": torch.ones(2)})
    run.agent.observe_policy(loss=torch.tensor(float("inf")))
    run.agent.end_step(1)
    assert run.captured()[1]["reason"] == "loss"


def test_a_storm_writes_one_file_of_its_kind_and_never_more_than_allowed(loop, spoil, monkeypatch):
    run = loop(capture_files=2)
    for step in range(1, 20):
        run.step(step, spoil=spoil)
    assert [path.name for path in run.files()] == ["step-1-gradient.safetensors"]
    monkeypatch.setattr(capture_module, "AGAIN_STEPS", 1)
    run.agent.guard.strict = False
    for step in range(20, 30):
        run.step(step, spoil=spoil)
    assert len(run.files()) == 2
    assert "capture_files" in run.events("probe_error")[0].body["error"]


def test_what_does_not_fit_is_left_out_and_named(loop, spoil):
    run = loop(capture_bytes=100_000)
    run.model.register_parameter("large", torch.nn.Parameter(torch.zeros(50_000)))
    run.agent.observer.watch(run.model, None, None, None)
    run.step(1, spoil=spoil)
    assert run.files()[0].stat().st_size < 120_000
    assert "weight" in run.captured()[1]["left_out"]


def test_a_disk_that_takes_nothing_costs_training_nothing(loop, spoil, tmp_path):
    (tmp_path / "spool").write_text("a file where the folder should be")
    run = loop()
    run.agent.guard.strict = False
    assert run.step(1, spoil=spoil).skipped
    assert not run.step(2).skipped
    assert "capture" in run.events("probe_error")[0].body["probe"]


def test_switched_off_or_on_request_only_no_fault_is_captured(loop, spoil):
    for setting in ("off", "on_request"):
        run = loop(run=setting, capture=setting)
        run.step(1, spoil=spoil)
        assert not run.files()


def test_nothing_of_the_users_is_kept_alive(loop):
    run = loop()
    batch = {"completion_ids": torch.randint(0, 11, (3, 6)), "advantages": torch.randn(3)}
    seen = [weakref.ref(tensor) for tensor in batch.values()]
    run.agent.observe_data(batch)
    del batch
    gc.collect()
    assert [ref() for ref in seen] == [None, None]


@pytest.mark.parametrize("cut", [0, 7, 20, -1])
def test_a_damaged_file_is_refused_in_a_sentence(loop, spoil, cut):
    run = loop()
    run.step(1, spoil=spoil)
    path = run.files()[0]
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BadCapture, match="no readable capture"):
        read(path)


def test_the_file_is_plain_safetensors(loop, spoil):
    safetensors = pytest.importorskip("safetensors.torch")
    run = loop()
    run.step(1, spoil=spoil)
    theirs, (ours, _) = safetensors.load_file(run.files()[0]), run.captured()
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name].nan_to_num(), ours[name].nan_to_num()) for name in ours)


def test_a_healthy_step_costs_a_few_microseconds(loop):
    run = loop()
    batch = {name: torch.zeros(4) for name in "abcdefgh"}
    loss, outcome, capture = torch.tensor(1.0), Outcome(voted=True), run.agent.capture

    def step(number):
        run.agent.step = number
        capture.batch(batch)
        capture.recent.policy(number, {"loss": loss})
        capture.due(outcome)
        capture.next_step()
        capture.landed(number, {})

    def cost():
        started = time.thread_time()
        for number in range(2000):
            step(number)
        return (time.thread_time() - started) / 2000

    assert min(cost() for _ in range(5)) < 15e-6


def test_inputs_that_are_no_mapping_are_passed_over(loop):
    run = loop()
    run.agent.capture.batch([torch.zeros(2)])
    assert run.agent.capture.recent.batches(run.agent.step) == []
