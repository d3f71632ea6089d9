"""What hooks on a few layers say equals what the activations themselves say in float64, and costs them nothing else."""

from __future__ import annotations

import gc
import math
import weakref

import pytest
import torch

from grpo_sentinel.agent.guard import Guard
from grpo_sentinel.agent.probes.activations import ActivationWatch
from grpo_sentinel.agent.probes.layers_to_watch import find, is_compiled

from .helpers import SyncCounter, Untouched, harvest

pytestmark = pytest.mark.torch


class Block(torch.nn.Module):
    def __init__(self, width, act):
        super().__init__()
        self.up, self.act, self.down = torch.nn.Linear(width, 16), act(), torch.nn.Linear(16, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Model(torch.nn.Module):
    def __init__(self, depth=3, act=torch.nn.SiLU, width=6):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Linear(width, width)
        self.layers = torch.nn.ModuleList(Block(width, act) for _ in range(depth))

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return x


class Router(torch.nn.Module):
    """Chooses 2 of 4 experts by its input's first numbers; gives logits and places as transformers' routers do."""

    def __init__(self, places=True):
        super().__init__()
        self.num_experts, self.top_k, self.places = 4, 2, places
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        logits = x[..., :4] * self.scale
        chosen = logits.topk(2, dim=-1)
        return (logits, chosen.values, chosen.indices) if self.places else logits


def armed(model, most=8):
    guard = Guard(strict=True)
    watch = ActivationWatch(lambda function, *given: guard.run("activations", function, *given))
    watch.arm(find(model, most))
    return watch


def recorded(model):
    """Outputs of blocks, inputs and outputs of activation functions, in float64, call by call."""
    seen = {"blocks": {}, "inputs": {}, "outputs": {}}

    def block(name):
        return lambda module, given, out: seen["blocks"].setdefault(name, []).append(out.detach().double())

    def function(name):
        def look(module, given, out):
            seen["inputs"].setdefault(name, []).append(given[0].detach().double())
            seen["outputs"].setdefault(name, []).append(out.detach().double())

        return look

    for name, layer in enumerate(model.layers):
        layer.register_forward_hook(block(name))
        layer.act.register_forward_hook(function(name))
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_range_spread_and_dead_units_equal_a_reference_over_all_micro_batches(dtype):
    model = Model(act=torch.nn.ReLU).to(dtype)
    with torch.no_grad():
        model.layers[1].up.bias[:5] = -50.0  # 5 of 16 units are dead
        model.layers[2].up.weight.mul_(20)
    watch, seen = armed(model), recorded(model)
    for seed in (1, 2):
        torch.manual_seed(seed)
        model(torch.randn(3, 7, 6, dtype=dtype)).sum().backward()
    found = harvest(watch.pack())
    top = max(float(out.abs().max()) for outs in seen["blocks"].values() for out in outs)
    assert found.values["policy.activation_range_ratio"] == pytest.approx(top / torch.finfo(dtype).max, rel=1e-9)
    assert found.subjects["policy.activation_range_ratio"] == "layers.2"
    assert found.values["policy.activation_nonfinite"] == 0
    stds = [float(torch.cat([x.flatten() for x in xs]).std(correction=0)) for xs in seen["inputs"].values()]
    assert found.values["policy.activation_std_min"] == pytest.approx(min(stds), rel=1e-4)
    assert found.values["policy.activation_std_ratio"] == pytest.approx(max(stds) / min(stds), rel=1e-4)
    alive = {
        n: torch.cat([o.flatten(0, 1) for o in outs]).gt(0).double().mean(0) for n, outs in seen["outputs"].items()
    }
    assert found.values["policy.dead_unit_ratio"] == max(float((a < 0.01).double().mean()) for a in alive.values())
    assert found.values["policy.dead_unit_ratio"] >= 5 / 16
    assert found.subjects["policy.dead_unit_ratio"] == "layers.1.act"
    assert watch.pack() is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_blocks_whose_output_is_not_finite_are_counted_and_named(bad):
    model = Model()
    watch = armed(model)
    with torch.no_grad():
        model.layers[1].down.bias[0] = bad
    model(torch.ones(2, 6)).sum().backward()
    found = harvest(watch.pack())
    assert found.values["policy.activation_nonfinite"] == 2
    assert found.subjects["policy.activation_nonfinite"] == "layers.1, layers.2"
    assert math.isfinite(found.values["policy.activation_range_ratio"])


def test_an_fp16_activation_near_the_end_of_its_range_is_told_before_it_overflows():
    model = Model().half()
    with torch.no_grad():
        model.layers[0].down.bias[0] = 64000.0
    watch = armed(model)
    model(torch.ones(2, 6, dtype=torch.float16)).sum().backward()
    assert harvest(watch.pack()).values["policy.activation_range_ratio"] == pytest.approx(64000 / 65504, rel=0.01)


@pytest.mark.parametrize("places", [True, False], ids=["indices", "logits alone"])
def test_the_load_of_experts_is_counted_exactly_over_micro_batches(places):
    model = torch.nn.Module()
    model.router = Router(places)
    watch = armed(model)
    x = torch.tensor([[9.0, 8, 0, 0], [9, 0, 8, 0], [9, 8, 0, 0]])  # expert 0 three times, 1 twice, 2 once, 3 never
    for _ in range(2):
        model.router(x)
    found = harvest(watch.pack())
    assert found.values["policy.expert_load_ratio"] == 3 / 1.5
    assert found.values["policy.expert_unused_ratio"] == 0.25
    assert found.subjects["policy.expert_load_ratio"] == "router"


def test_forwards_without_autograd_are_not_looked_at_and_hooks_go_when_asked():
    model = Model()
    watch = armed(model)
    with torch.no_grad():
        model(torch.ones(2, 6))
    assert watch.pack() is None
    watch.disarm()
    assert not any(module._forward_hooks for module in model.modules())
    model(torch.ones(2, 6)).sum().backward()
    assert watch.pack() is None


def test_nothing_waits_changes_or_is_kept():
    model, twin = Model(), Model()
    watch = armed(model)
    x = torch.randn(4, 600, 6, generator=torch.Generator().manual_seed(3))
    refs = []
    model.layers[1].act.register_forward_hook(lambda m, given, out: refs.extend(map(weakref.ref, (given[0], out))))
    with Untouched(x, *model.parameters()), SyncCounter() as counter:
        out = model(x)
        pack = watch.pack()
    assert counter.calls == []
    out.square().sum().backward()
    expected = twin(x)
    expected.square().sum().backward()
    assert torch.equal(out, expected)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    del out, expected
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
    assert harvest(pack).values["policy.activation_nonfinite"] == 0


def test_a_sample_of_layers_is_watched_with_the_first_and_the_last():
    names = [name for name, _ in find(Model(depth=40), 8).blocks]
    assert len(names) == 8
    assert (names[0], names[-1]) == ("layers.0", "layers.39")
    assert [name for name, _ in find(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), 8).blocks] == ["0"]


def test_layers_of_transformers_are_found_by_what_they_are():
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3MoeConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=16, moe_intermediate_size=8, num_experts=4, num_experts_per_tok=2, decoder_sparse_step=1,
    )  # fmt: skip
    model = transformers.Qwen3MoeForCausalLM(config)
    watched = find(model, 8)
    assert [name for name, _ in watched.blocks] == ["model.layers.0", "model.layers.1"]
    assert [(name, r.experts, r.chosen) for name, r in watched.routers] == [
        ("model.layers.0.mlp.gate", 4, 2),
        ("model.layers.1.mlp.gate", 4, 2),
    ]
    watch = armed(model)
    model(input_ids=torch.randint(0, 32, (2, 9))).logits.sum().backward()
    values = harvest(watch.pack()).values
    assert 1 <= values["policy.expert_load_ratio"] <= 2, "4 experts, 2 chosen: at most twice the mean"
    assert 0 < values["policy.activation_range_ratio"] < 1
    assert not is_compiled(model)
