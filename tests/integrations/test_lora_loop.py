"""Adapters of the real peft that come, go or stand still after the optimizer was built."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "agent"))
torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

from ranks import Segment  # noqa: E402

from grpo_sentinel.agent import attach  # noqa: E402
from grpo_sentinel.agent.settings import Settings  # noqa: E402
from grpo_sentinel.protocol import RankReader  # noqa: E402

pytestmark = pytest.mark.torch


class Base(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.v_proj = torch.nn.Linear(6, 6), torch.nn.Linear(6, 1)

    def forward(self, x):
        return self.v_proj(self.q_proj(x).tanh())


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Train a LoRA model for 40 steps; `events` maps a step to what is done to the model before it."""
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
    monkeypatch.setenv("GRPO_SENTINEL_RUN_ID", "run")

    def run(events):
        torch.manual_seed(0)
        model = peft.get_peft_model(Base(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        # generous, so that a busy machine thins no probe
        agent = attach(model=model, optimizer=optimizer, settings=Settings(strict=True, overhead_share=1.0))
        for step in range(1, 41):
            events.get(step, lambda model: None)(model)
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            agent.end_step()
        agent.close()
        reader = RankReader(agent.writer.path)
        try:
            return Segment(reader)
        finally:
            reader.close()

    return run


def test_only_the_adapter_is_trained_and_all_of_it_moves(train):
    last = train({}).steps()[40]
    assert last["optimizer.sampled_tensors"] == last["gradient.tensors"] == 4
    assert last["optimizer.unchanged_tensors"] == 0
    assert (last["optimizer.unheld_parameters"], last["optimizer.stale_parameters"]) == (0, 0)


def test_an_adapter_added_after_the_optimizer_was_built_is_held_by_nobody(train):
    def add(model):
        model.add_adapter("late", peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
        model.set_adapter("late")

    segment = train({10: add})
    last = segment.steps()[40]
    assert last["optimizer.unheld_parameters"] == 4, "it has gradients, and no optimizer steps it"
    assert last["gradient.tensors"] == 4, "and they are those of the adapter that is not stepped"
    (note,) = [event for event in segment.of("note") if event.get("what") == "parameters_changed"]
    assert note["added_count"] == 4
    assert "late" in note["added"][0]


def test_an_adapter_that_was_taken_away_leaves_the_optimizer_with_parameters_of_no_model(train):
    def swap(model):
        model.add_adapter("next", peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
        model.set_adapter("next")
        model.delete_adapter("default")

    last = train({10: swap}).steps()[40]
    assert last["optimizer.stale_parameters"] == 4
    assert last["optimizer.unheld_parameters"] == 4


def test_a_part_of_the_adapter_that_never_changes_is_counted(train):
    def stop(model):
        for name, parameter in model.named_parameters():
            if "q_proj.lora_B" in name:  # starts at zero, where weight decay moves nothing
                parameter.register_hook(torch.zeros_like)

    last = train({1: stop}).steps()[40]
    assert last["gradient.zero_tensors"] == 2, "with B at zero the gradient of A is zero as well"
    assert last["optimizer.unchanged_tensors"] == 1
