"""The catalogue and the probes name the same signals: none made up, none promised and missing."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_sentinel import catalog, signal_origins
from grpo_sentinel.agent.probes import data, gradient, policy, reward
from grpo_sentinel.agent.probes.carried import CarriedWatch
from grpo_sentinel.agent.probes.groups import observe_groups, shared_over_ranks
from grpo_sentinel.agent.probes.live_tensors import LiveTensors
from grpo_sentinel.agent.probes.local_watch import LocalWatch
from grpo_sentinel.agent.probes.memory import MemoryProbe, outside_allocator, parse_cuda
from grpo_sentinel.agent.probes.optimizer import OptimizerProbe

from .helpers import harvest
from .test_activations import Router, armed
from .test_data import TOKENS
from .test_data import batch as data_batch
from .test_optimizer import Scaler
from .test_policy import batch as policy_batch
from .test_reward import Head

pytestmark = pytest.mark.torch
LAYERS = ("data", "reward", "policy", "gradient", "optimizer", "memory")
VERSIONS = {"weight_versions": torch.zeros(5), "weight_version": 1, "stale_dropped": 1}
BY_THE_AGENT = {"optimizer.skipped_updates", "reward.func_nothing"}  # counted where updates are stopped, rewards read
BY_THE_INTEGRATION = {
    "data.sample_age_steps", "policy.kl_reported_nats", "reward.func_sanitized", "memory.engine_released_bytes",
    "memory.engine_budget_bytes",
}  # fmt: skip
QUOTIENTS = {
    "ratio_max",
    "ratio_mean",
    "sampling_mult_error",
    "sampling_weight_mean",
    "sampling_ppl_ratio",
}  # of any size
NEEDS_A_CGROUP = {"memory.cgroup_used_bytes", "memory.cgroup_limit_bytes"}  # tested with files of both versions
NEEDS_A_LIMIT = {"memory.open_files_limit"}


def everything():
    """Call every probe once with all it can be given."""
    limits = {"max_prompt_length": 4, "max_completion_length": 6, "group_size": 2}
    tokens = {**TOKENS, "vocab_size": 100}
    rewards = torch.tensor([[0.0, 0.1], [1.0, 0.4], [1.0, 0.2], [1.0, 0.2]])
    b = policy_batch(tokens=12)
    found = [
        harvest(data.observe(**data_batch(), **tokens, **limits, **VERSIONS)).values,
        observe_groups(["a", "a"], ["b", "c"], group_size=2),
        shared_over_ranks([("a", "b"), ("a", "c")], rows=1, rank=0),
        harvest(
            reward.observe(
                rewards, ["f", "g"], group_size=2, completion_lengths_B=[1, 2, 3, 4], history=reward.History()
            )
        ).values,
        reward.observe_model("f", Head(), scores=torch.ones(1), adapters=False),
        harvest(
            policy.observe(**b, loss=1.0, beta=0.1, vocab_size=9, on_policy=False, group_size=2, scale_rewards="group")
        ).values,
        harvest(reward.observe(torch.tensor([0.0, 1.0, 1.0, 1.0]), ["f"], group_size=2)).values,
        harvest(reward.observe(torch.arange(32.0), ["f"], history=reward.History(), sources_B=["s"] * 32)).values,
        twice(torch.arange(32.0) % 2, prompts_B=list(range(32))),
        MemoryProbe().observe(),
        outside_allocator({"memory.cuda_reserved_bytes": 1.0}, 3, 8),
        LiveTensors().observe()[0],
    ]
    history = reward.History()
    for texts in ("abcdefgh" * 8, "jjklmnop" * 8):  # a group with the same completion twice, another batch's scores
        scored = reward.observe(torch.arange(64.0), ["f"], completions_B=texts, group_size=8, history=history)
        found.append(harvest(scored).values)
    watched = torch.nn.Sequential(
        torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2), torch.nn.ReLU(), Router()
    )
    found.append(harvest(seen_by_hooks(watched, torch.rand(1, 2))).values)
    meter = reward.CallMeter()
    with meter.measure("f"):
        pass
    found.append(meter.harvest())
    found.append(parse_cuda(dict.fromkeys(
        ("allocated_bytes.all.current", "reserved_bytes.all.current", "allocated_bytes.all.peak",
         "inactive_split_bytes.all.current", "num_alloc_retries", "num_ooms"), 0)))  # fmt: skip
    net = torch.nn.Linear(4, 4).bfloat16()
    net.single = torch.nn.Parameter(torch.ones(4))
    optimizer, watch, local = torch.optim.AdamW(net.parameters(), lr=1e-3), OptimizerProbe(), LocalWatch()
    carried = CarriedWatch()
    local.arm(net.named_parameters())
    carried.arm(list(net.parameters()))
    net(torch.ones(1, 4).bfloat16()).sum().backward()
    found.append(harvest(gradient.observe(net.named_parameters(), clip_limit=1.0), local.pack(), carried.pack()).values)
    watch = OptimizerProbe(full_every=1)
    optimizer.step()
    watch.before_step(optimizer)
    optimizer.step()
    after = watch.after_step(
        optimizer, named_parameters=net.named_parameters(), learning_rate_expected=1e-3, scaler=Scaler([2.0])
    )
    found.append(harvest(after).values)
    return {name: value for values in found for name, value in values.items()}


def twice(rewards, **details):
    history = reward.History()
    first = reward.observe(rewards, ["f"], history=history, **details)
    return harvest(first, reward.observe(rewards, ["f"], history=history, **details)).values


def seen_by_hooks(model, inputs):
    watch = armed(model)
    model(inputs)
    return watch.pack()


def test_every_signal_of_a_probe_is_in_the_catalogue_and_every_one_of_the_catalogue_comes_from_a_probe():
    found = everything()
    bases = {catalog.split_name(name)[0] for name in found}
    assert bases - set(catalog.SIGNALS) == set()
    promised = {name for name, signal in catalog.SIGNALS.items() if signal.layer in LAYERS}
    missing = promised - bases - BY_THE_AGENT - BY_THE_INTEGRATION - NEEDS_A_CGROUP - NEEDS_A_LIMIT
    assert missing == set()


def test_every_signal_says_where_it_is_read_from_and_what_it_costs():
    for name in catalog.SIGNALS:
        source, cost = signal_origins.origin_of(name)
        assert source, name
        assert set(cost.split(", ")) <= set(signal_origins.COSTS), name
    unused = [start for start in signal_origins.ORIGINS if not any(name.startswith(start) for name in catalog.SIGNALS)]
    assert unused == []


def test_values_are_python_floats_that_keep_to_their_units():
    for name, value in everything().items():
        signal = catalog.signal_of(name)
        assert type(value) is float, name
        assert math.isfinite(value), name
        if signal.unit == "flag":
            assert value in (0.0, 1.0), name
        if signal.unit == "count":
            assert value >= 0, name
            assert value == int(value), name
        if signal.unit == "ratio" and name.split(".")[1] not in QUOTIENTS:
            assert 0 <= value <= 1 or "imbalance" in name, name
        assert ("[" in name) == bool(signal.dimension), name
