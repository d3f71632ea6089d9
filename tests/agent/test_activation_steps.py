"""Activations are looked at in the steps that were asked for, and in no other; never by default."""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from ranks import Segment  # noqa: E402

from grpo_sentinel.agent import Settings, attach  # noqa: E402
from grpo_sentinel.protocol import RankReader, run_dir  # noqa: E402


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Train a small model for some steps; gives the segment and whether hooks were there in each forward."""

    def run(steps=7, compiled=False, **settings):
        monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
        monkeypatch.setenv("GRPO_SENTINEL_RUN_ID", "run")
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        model = torch.compile(net, backend="eager") if compiled else net
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        agent = attach(model=model, optimizer=optimizer, settings=Settings(**{"strict": True, **settings}))
        hooked = []
        for _ in range(steps):
            hooked.append(any(part._forward_hooks for part in net.modules()))
            loss = model(torch.ones(2, 4)).sum()
            agent.observe_policy(loss=loss)
            loss.backward()
            agent.observe_gradients()
            optimizer.step()
            optimizer.zero_grad()
            agent.end_step()
        agent.close()
        assert not any(part._forward_hooks for part in net.modules())
        reader = RankReader(run_dir(tmp_path, "run") / "rank-00000.ring")
        try:
            return Segment(reader), hooked
        finally:
            reader.close()

    return run


def test_the_first_step_and_every_third_after_it_are_looked_at(train):
    segment, hooked = train(activations_every=3)
    assert hooked == [True, False, False, True, False, False, True]
    seen = [step for step, values in segment.steps().items() if "policy.activation_nonfinite" in values]
    assert seen == [1, 4, 7]
    assert 0 < segment.steps()[4]["policy.activation_range_ratio"] < 1e-30
    assert segment.steps()[1]["policy.activation_std_min"] > 0


def test_by_default_there_is_never_a_hook(train):
    segment, hooked = train()
    assert not any(hooked)
    assert not any(name.startswith("policy.activation") for values in segment.steps().values() for name in values)


def test_a_compiled_model_is_left_alone_and_that_is_said_once(train):
    segment, hooked = train(activations_every=1, compiled=True, steps=3)
    assert not any(hooked)
    (note,) = [note for note in segment.of("note") if note.get("what") == "activations"]
    assert "compiled" in note["text"]


def test_a_hook_that_fails_reaches_neither_forward_nor_training_and_is_told_once(train, monkeypatch):
    from grpo_sentinel.agent.probes import activations

    def broken(tensor):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(activations, "_some", broken)
    segment, _ = train(activations_every=1, strict=False)
    assert max(segment.steps()) == 7
    assert [event["probe"] for event in segment.of("probe_error")] == ["activations"]
