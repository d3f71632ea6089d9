"""Reward statistics equal Python's statistics module on the finite scores; what is not finite is counted."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_sentinel.agent.probes import reward
from grpo_sentinel.agent.probes.model_state import autograd_kept, observe_model

from .helpers import SyncCounter, Untouched, harvest

pytestmark = pytest.mark.torch
NAN, INF = float("nan"), float("inf")
scores = st.one_of(st.floats(-1e3, 1e3), st.sampled_from([0.0, 1.0, NAN, INF, -INF]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(scores, scores), min_size=1, max_size=12))
def test_each_functions_moments_are_those_of_its_finite_scores(rows):
    values = harvest(reward.observe(torch.tensor(rows, dtype=torch.float64), ["a", "b"])).values
    for index, name in enumerate("ab"):
        column = [row[index] for row in rows]
        finite = [x for x in column if math.isfinite(x)]
        assert values[f"reward.func_samples[{name}]"] == len(rows)
        assert values[f"reward.func_nonfinite[{name}]"] == len(rows) - len(finite)
        assert values[f"reward.func_infinite[{name}]"] == sum(map(math.isinf, column))
        if finite:
            assert values[f"reward.func_mean[{name}]"] == pytest.approx(statistics.fmean(finite), abs=1e-9)
            assert values[f"reward.func_min[{name}]"] == min(finite)
            assert values[f"reward.func_max[{name}]"] == max(finite)
        else:
            assert f"reward.func_mean[{name}]" not in values
        if len(finite) > 1:
            assert values[f"reward.func_std[{name}]"] == pytest.approx(statistics.stdev(finite), rel=1e-9, abs=1e-9)


def test_none_is_left_out_of_a_row_and_infinity_is_not():
    rewards = torch.tensor([[1.0, 2.0], [NAN, 2.0], [NAN, NAN], [INF, 1.0], [INF, -INF]])
    found = harvest(reward.observe(rewards, ["a", "b"], weights=[1.0, 10.0]))
    assert found.values["reward.nonfinite"] == 3
    assert found.samples["reward.nonfinite"] == (2, 3, 4)
    assert found.values["reward.mean"] == pytest.approx((21 + 20) / 2)
    same = harvest(reward.observe(rewards, ["a", "b"], weights=torch.tensor([1.0, 10.0])))
    assert same.values == found.values


def test_groups_that_do_not_vary_are_split_into_all_right_and_all_wrong():
    rewards = torch.tensor([1, 1, 0, 0, 0, 1, 0.5, 0.5, NAN, 1]).unsqueeze(1)
    values = harvest(reward.observe(rewards, ["a"], group_size=2)).values
    assert values["reward.zero_std_ratio"] == pytest.approx(3 / 4)
    assert values["reward.all_right_ratio"] == pytest.approx(1 / 4)
    assert values["reward.all_wrong_ratio"] == pytest.approx(1 / 4)
    assert values["reward.group_std_mean"] == pytest.approx(statistics.stdev([0, 1]) / 4)
    constant = harvest(reward.observe(torch.ones(4, 1), ["a"], group_size=2)).values
    assert constant["reward.zero_std_ratio"] == 1
    assert "reward.all_right_ratio" not in constant  # the best and the worst of a constant batch are the same
    odd = harvest(reward.observe(torch.ones(5, 1), ["a"], group_size=2)).values
    assert "reward.zero_std_ratio" not in odd


def test_the_correlation_with_length_is_pearsons():
    rewards, lengths = [0.1, 0.4, 0.2, 0.9], [3, 10, 7, 20]
    values = harvest(reward.observe(torch.tensor(rewards), ["a"], completion_lengths_B=lengths)).values
    assert values["reward.length_correlation"] == pytest.approx(statistics.correlation(rewards, lengths), rel=1e-6)
    huge = harvest(reward.observe(torch.tensor(rewards).double() * 1e200, ["a"], completion_lengths_B=lengths)).values
    assert huge["reward.length_correlation"] == pytest.approx(values["reward.length_correlation"], rel=1e-6)
    flat = harvest(reward.observe(torch.ones(4), ["a"], completion_lengths_B=lengths)).values
    assert "reward.length_correlation" not in flat


def test_the_ceiling_is_that_of_the_run():
    history = reward.History()
    first = harvest(reward.observe(torch.tensor([1.0, 5.0]), ["a"], history=history)).values
    second = harvest(reward.observe(torch.tensor([1.0, 4.0]), ["a"], history=history)).values
    assert first["reward.at_ceiling_ratio"] == 0.5
    assert second["reward.at_ceiling_ratio"] == 0


def test_shares_of_variance_add_up_and_equal_names_stay_apart():
    rewards = torch.tensor([[0.0, 0.0, 1.0], [1.0, 3.0, 1.0]])
    values = harvest(reward.observe(rewards, ["len", "len", "len"])).values
    shares = [values[f"reward.func_variance_share[{name}]"] for name in ("len", "len#2", "len#3")]
    assert shares == pytest.approx([0.1, 0.9, 0.0])
    alone = harvest(reward.observe(rewards[:, :1], ["len"])).values
    assert not any("variance_share" in name for name in alone), "one function alone has all of it"


def test_several_generation_batches_of_a_step_are_judged_together():
    parts = [torch.tensor([1.0, 2.0]), torch.tensor([6.0, 7.0, 9.0])]
    values = harvest(*(reward.observe(part, ["a"]) for part in parts)).values
    assert values["reward.mean"] == 5
    assert values["reward.std"] == pytest.approx(statistics.stdev([1, 2, 6, 7, 9]))


def test_names_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="do not fit the 1 names"):
        reward.observe(torch.ones(2, 2), ["a"])


def test_reading_rewards_waits_for_nothing():
    rewards = torch.rand(8, 2)
    with Untouched(rewards), SyncCounter() as counter:
        reward.observe(rewards, ["a", "b"], weights=torch.ones(2), group_size=4, completion_lengths_B=torch.arange(8))
    assert counter.calls == []


def test_calls_are_timed_and_failures_counted_and_passed_on():
    meter = reward.CallMeter()
    with meter.measure("a"):
        pass
    with pytest.raises(KeyError), meter.measure("b"):
        raise KeyError
    first = meter.harvest()
    assert first["reward.func_failures[a]"] == 0
    assert first["reward.func_failures[b]"] == 1
    assert first["reward.func_latency_seconds[a]"] >= 0
    assert meter.harvest() == {"reward.func_failures[a]": 0.0, "reward.func_failures[b]": 1.0}


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.1), torch.nn.Dropout(0.0))
        self.score = torch.nn.Linear(3, 1)

    def forward(self, x):
        return self.score(self.body(x))


def test_the_state_of_a_reward_model_is_read_module_by_module():
    model = Head()
    torch.nn.init.constant_(model.score.bias, -3.0)
    values = observe_model("rm", model, scores=model(torch.ones(1, 3)))
    assert values["reward.model_training_modules[rm]"] == 6
    assert values["reward.model_active_dropouts[rm]"] == 1
    assert values["reward.model_trainable_parameters[rm]"] == 4
    assert values["reward.model_head_bias[rm]"] == 3
    assert values["reward.model_autograd[rm]"] == 1
    model.eval().requires_grad_(False)
    model.body[1].train()
    values = observe_model("rm", model, scores=model(torch.ones(1, 3)))
    assert values["reward.model_training_modules[rm]"] == 1
    assert values["reward.model_active_dropouts[rm]"] == 1
    assert values["reward.model_trainable_parameters[rm]"] == 0
    assert values["reward.model_autograd[rm]"] == 0
    assert "reward.model_adapter_mismatch[rm]" not in values


def test_an_output_with_logits_shows_its_kept_graph():
    class Output:
        logits = torch.ones(1, requires_grad=True) * 2

    assert autograd_kept(Output())
    assert not autograd_kept(torch.ones(1))
    assert not autograd_kept(None)


def test_adapters_in_the_wrong_state_are_counted():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(Head(), peft.LoraConfig(target_modules=["score"], r=2))
    assert observe_model("rm", model, adapters=True)["reward.model_adapter_mismatch[rm]"] == 0
    assert observe_model("rm", model, adapters=False)["reward.model_adapter_mismatch[rm]"] == 1
    with model.disable_adapter():
        assert observe_model("rm", model, adapters=True)["reward.model_adapter_mismatch[rm]"] == 1
        assert observe_model("rm", model, adapters=False)["reward.model_adapter_mismatch[rm]"] == 0
    assert observe_model("rm", Head(), adapters=True)["reward.model_adapter_mismatch[rm]"] == 1
