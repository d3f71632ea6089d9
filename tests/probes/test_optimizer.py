"""What a step did to the weights: exact where the catalogue says exact, inside the stated error where it is sampled."""

from __future__ import annotations

import gc
import itertools
import math
import weakref

import pytest
import torch

from grpo_sentinel.agent.probes import optimizer as probe
from grpo_sentinel.agent.probes.optimizer import OptimizerProbe

from .helpers import SyncCounter, Untouched, harvest

pytestmark = pytest.mark.torch


def model(sizes=(8, 8), dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(*[torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]).to(dtype)


def train_step(net, optimizer, watch, seed=1, **kwargs):
    """One observed step; gives the harvest and the true change of every weight in float64."""
    torch.manual_seed(seed)
    net(torch.randn(16, net[0].in_features, dtype=net[0].weight.dtype)).square().mean().backward()
    old = [p.detach().double().clone() for p in net.parameters()]
    watch.before_step(optimizer)
    optimizer.step()
    pack = watch.after_step(optimizer, named_parameters=net.named_parameters(), **kwargs)
    moved = torch.cat([(p.detach().double() - q).flatten() for p, q in zip(net.parameters(), old, strict=True)])
    optimizer.zero_grad()
    return harvest(pack), moved


def norm_of(tensors):
    return math.sqrt(sum(float(t.detach().double().square().sum()) for t in tensors))


def test_a_small_model_is_read_whole():
    net = model((4, 8))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    found, moved = train_step(net, optimizer, OptimizerProbe())
    values = found.values
    assert values["optimizer.update_norm"] == pytest.approx(float(moved.norm()), rel=1e-9)
    assert values["optimizer.weight_norm"] == pytest.approx(norm_of(net.parameters()), rel=1e-6)
    assert values["optimizer.weight_abs_max"] == max(float(p.detach().abs().max()) for p in net.parameters())
    assert values["optimizer.update_ratio"] == values["optimizer.update_norm"] / values["optimizer.weight_norm"]
    for order, name in ((1, "exp_avg"), (2, "exp_avg_sq")):
        states = [optimizer.state[p][name] for p in net.parameters()]
        assert values[f"optimizer.moment{order}_norm"] == pytest.approx(norm_of(states), rel=1e-6)
    assert values["optimizer.learning_rate"] == 1e-2
    assert values["optimizer.nonfinite_moments"] == 0
    assert values["optimizer.sampled_tensors"] == 2
    assert values["optimizer.unchanged_tensors"] == 0
    assert values["optimizer.step_applied"] == 1


@pytest.mark.parametrize("seed", range(3))
def test_the_update_norm_of_a_larger_model_keeps_to_its_stated_error(seed):
    net = model((300, 400, 300), seed=seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    watch = OptimizerProbe()
    for step in range(2):
        found, moved = train_step(net, optimizer, watch, seed=step)
    assert found.values["optimizer.update_norm"] == pytest.approx(float(moved.norm()), rel=0.04)
    assert found.values["optimizer.weight_norm"] == pytest.approx(norm_of(net.parameters()), rel=1e-6)
    moments = [optimizer.state[p]["exp_avg"] for p in net.parameters()]
    assert found.values["optimizer.moment1_norm"] == pytest.approx(norm_of(moments), rel=0.06)


def test_non_finite_weights_are_named_at_once_and_moments_at_a_full_step():
    net = model((4, 4, 4))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    watch = OptimizerProbe(full_every=2)
    train_step(net, optimizer, watch)
    with torch.no_grad():
        net[1].weight[0, 0] = float("nan")
        optimizer.state[net[0].bias]["exp_avg"][1] = float("inf")
    found = harvest(watch.after_step(optimizer, named_parameters=net.named_parameters()))
    assert found.names_at("weights") == ("1.weight",)
    assert found.values["optimizer.nonfinite_weights"] == 1
    assert "optimizer.nonfinite_moments" not in found.values
    found = harvest(watch.after_step(optimizer))
    assert found.values["optimizer.nonfinite_moments"] == 1
    assert found.names_at("weights") == ("parameter_2",)


def test_tensors_that_never_change_are_counted():
    net = model((4, 4, 4))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0)
    net[0].weight.register_hook(torch.zeros_like)
    found, _ = train_step(net, optimizer, OptimizerProbe())
    assert found.values["optimizer.unchanged_tensors"] == 1
    assert found.values["optimizer.sampled_tensors"] == 4


def test_updates_below_what_bf16_holds_are_seen_to_be_swallowed():
    net = model((64, 64), dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-6, weight_decay=0)
    found, moved = train_step(net, optimizer, OptimizerProbe())
    true = float((moved == 0).double().mean())
    assert found.values["optimizer.bf16_swallowed_ratio"] == pytest.approx(true, abs=0.05)
    assert found.values["optimizer.bf16_swallowed_ratio"] > 0.9
    assert found.values["optimizer.low_precision_weights"] == 1
    wide, _ = train_step(model((64, 64)), torch.optim.SGD(model().parameters(), lr=1.0), OptimizerProbe())
    assert "optimizer.bf16_swallowed_ratio" not in wide.values


def test_without_a_moment_the_gradient_says_what_an_update_meant_to_do():
    net = model((8, 8), dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-9)
    found, _ = train_step(net, optimizer, OptimizerProbe())
    assert found.values["optimizer.bf16_swallowed_ratio"] == 1
    optimizer.param_groups[0]["lr"] = 0.0
    found, _ = train_step(net, optimizer, OptimizerProbe())
    assert "optimizer.bf16_swallowed_ratio" not in found.values  # nothing was meant to move


def test_a_parameter_without_state_or_gradient_does_not_hide_the_others():
    net = model((4, 4, 4))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net[0](torch.ones(1, 4)).sum().backward()
    watch = OptimizerProbe()
    watch.before_step(optimizer)
    optimizer.step()
    values = harvest(watch.after_step(optimizer)).values
    states = [optimizer.state[p]["exp_avg"] for p in net[0].parameters()]
    assert values["optimizer.moment1_norm"] == pytest.approx(norm_of(states), rel=1e-6)
    assert values["optimizer.unchanged_tensors"] == 2


def test_a_skipped_update_is_said_and_an_unseen_one_not_made_up():
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    watch = OptimizerProbe()
    watch.before_step(optimizer)
    values = harvest(watch.after_step(optimizer, skipped=True)).values
    assert values["optimizer.step_skipped"] == 1
    assert values["optimizer.step_applied"] == 0
    assert values["optimizer.update_norm"] == 0
    values = harvest(watch.after_step(optimizer)).values
    assert values["optimizer.step_applied"] == 0
    assert "optimizer.update_norm" not in values


class Scaler:
    def __init__(self, scales):
        self.scales = iter(scales)

    def get_scale(self):
        return next(self.scales)


def test_a_scaler_whose_scale_falls_has_skipped():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    watch, scaler = OptimizerProbe(), Scaler([4.0, 2.0, 2.0, 4.0])
    seen = [train_step(net, optimizer, watch, scaler=scaler)[0].values for _ in range(4)]
    assert [v["optimizer.scaler_skips"] for v in seen] == [0, 1, 1, 1]
    assert [v["optimizer.step_applied"] for v in seen] == [1, 0, 1, 1]
    assert seen[1]["optimizer.loss_scale"] == 2


def test_an_engine_counts_its_own_skips():
    class Engine:
        skipped_steps = 3
        optimizer = type("Inner", (), {"loss_scale": 128})()

    net = model()
    values = harvest(OptimizerProbe().after_step(torch.optim.SGD(net.parameters(), lr=1), engine=Engine())).values
    assert values["optimizer.scaler_skips"] == 3
    assert values["optimizer.loss_scale"] == 128


def test_parameters_the_optimizer_lost_or_never_got_are_counted():
    net = model((4, 4, 4))
    optimizer = torch.optim.SGD(net[0].parameters(), lr=1e-3)
    old = net[0]
    net[0] = torch.nn.Linear(4, 4)
    values = harvest(OptimizerProbe().after_step(optimizer, named_parameters=net.named_parameters())).values
    assert values["optimizer.unheld_parameters"] == 4
    assert values["optimizer.stale_parameters"] == 2
    net[0].requires_grad_(False)
    del old
    values = harvest(OptimizerProbe().after_step(optimizer, named_parameters=net.named_parameters())).values
    assert values["optimizer.unheld_parameters"] == 2


def test_states_of_another_shape_are_counted():
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    train_step(net, optimizer, OptimizerProbe())
    optimizer.state[net[0].weight]["exp_avg"] = torch.zeros(3)
    values = harvest(OptimizerProbe().after_step(optimizer)).values
    assert values["optimizer.state_shape_mismatch"] == 1


def test_the_learning_rate_is_read_with_its_schedule_and_never_waited_for():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=torch.tensor(0.5))
    values = harvest(OptimizerProbe().after_step(optimizer, learning_rate_expected=0.25)).values
    assert values["optimizer.learning_rate"] == 0.5
    assert values["optimizer.learning_rate_expected"] == 0.25
    optimizer.param_groups[0]["lr"] = torch.tensor(0.5, device="meta")
    assert "optimizer.learning_rate" not in harvest(OptimizerProbe().after_step(optimizer)).values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_equal_weights_have_one_digest_and_one_changed_bit_another(dtype):
    one, two = model((16, 16), dtype=dtype), model((16, 16), dtype=dtype)
    digests = [float(OptimizerProbe().digest(torch.optim.SGD(net.parameters(), lr=1))) for net in (one, two)]
    assert digests[0] == digests[1]
    assert digests[0] == int(digests[0])
    assert 0 <= digests[0] < 2**52
    with torch.no_grad():
        two[0].bias[5] = torch.nextafter(two[0].bias[5], torch.tensor(9.0, dtype=dtype))
    assert float(OptimizerProbe().digest(torch.optim.SGD(two.parameters(), lr=1))) != digests[0]


def test_swapped_weights_do_not_cancel_in_the_digest():
    net = model((16, 16))
    optimizer, watch = torch.optim.SGD(net.parameters(), lr=1), OptimizerProbe()
    before = float(watch.digest(optimizer))
    with torch.no_grad():
        net[0].bias[[0, 1]] = net[0].bias[[1, 0]].clone()
    assert float(watch.digest(optimizer)) != before


def test_the_digest_is_in_the_record_only_where_ranks_hold_the_same():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1)
    watch = OptimizerProbe()
    values = harvest(watch.after_step(optimizer)).values
    assert values["optimizer.parameter_digest"] == float(watch.digest(optimizer))
    assert "optimizer.parameter_digest" not in harvest(OptimizerProbe(replicated=False).after_step(optimizer)).values


def test_a_digest_before_the_step_serves_as_its_sample_unless_the_weights_changed(monkeypatch):
    net = model((4, 8))
    optimizer, watch = torch.optim.SGD(net.parameters(), lr=1e-3), OptimizerProbe()
    gathers = []
    original = probe.sample.gather
    monkeypatch.setattr(probe.sample, "gather", lambda *a: gathers.append(1) or original(*a))
    watch.digest(optimizer)
    watch.before_step(optimizer)
    assert len(gathers) == 1
    watch.digest(optimizer)
    with torch.no_grad():
        net[0].weight.add_(1)
    watch.before_step(optimizer)
    assert len(gathers) == 3
    assert harvest(watch.after_step(optimizer)).values["optimizer.update_norm"] == 0


def test_frozen_empty_and_complex_parameters_do_no_harm():
    parameters = [
        torch.nn.Parameter(torch.empty(0, 3)),
        torch.nn.Parameter(torch.tensor(2.0)),
        torch.nn.Parameter(torch.tensor([3 + 4j])),
        torch.nn.Parameter(torch.ones(3), requires_grad=False),
    ]
    optimizer, watch = torch.optim.Adam(parameters, lr=0.1), OptimizerProbe()
    for p in parameters[:3]:
        p.grad = torch.ones_like(p) * (1 + 1j if p.is_complex() else 1)
    old = parameters[2].detach().clone()
    watch.before_step(optimizer)
    optimizer.step()
    values = harvest(watch.after_step(optimizer)).values
    assert values["optimizer.weight_abs_max"] == pytest.approx(float(parameters[2].detach().abs()))
    moved = float((parameters[2].detach() - old).abs()) ** 2 + float(parameters[1].detach() - 2.0) ** 2
    assert values["optimizer.update_norm"] == pytest.approx(math.sqrt(moved), rel=1e-5)
    nothing = harvest(OptimizerProbe().after_step(torch.optim.SGD([parameters[3]], lr=1))).values
    assert nothing["optimizer.weight_norm"] == 0


def test_a_step_is_watched_without_waiting_changing_or_keeping_anything():
    net = model((30, 30, 30))
    optimizer, watch = torch.optim.AdamW(net.parameters(), lr=1e-3), OptimizerProbe()
    train_step(net, optimizer, watch)
    tensors = [t for p in net.parameters() for t in (p, *optimizer.state[p].values())]
    with Untouched(*tensors), SyncCounter() as counter:
        watch.digest(optimizer)
        watch.before_step(optimizer)
        pack = watch.after_step(optimizer, named_parameters=list(net.named_parameters()))
    assert counter.calls == []
    seen = [weakref.ref(t) for t in tensors]
    del tensors, net, optimizer
    gc.collect()
    assert [ref() for ref in seen] == [None] * len(seen)
    assert harvest(pack).values["optimizer.sampled_tensors"] == 4


def test_the_share_of_float32_weights_whose_bf16_image_stands_still_is_that_of_the_sampled_ones():
    net = model((64, 64))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, weight_decay=0)
    old = [p.detach().clone() for p in net.parameters()]
    found, _ = train_step(net, optimizer, OptimizerProbe())
    same = [(p.detach().bfloat16() == q.bfloat16()) for p, q in zip(net.parameters(), old, strict=True)]
    true = float(torch.cat([s.flatten() for s in same]).double().mean())
    assert 0.5 < true < 0.999
    assert found.values["optimizer.bf16_image_same_ratio"] == pytest.approx(true, abs=0.02)
    whole = model((4, 8))  # read whole: exact
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-4, weight_decay=0)
    old = [p.detach().clone() for p in whole.parameters()]
    found, _ = train_step(whole, optimizer, OptimizerProbe())
    same = [(p.detach().bfloat16() == q.bfloat16()) for p, q in zip(whole.parameters(), old, strict=True)]
    assert found.values["optimizer.bf16_image_same_ratio"] == float(
        torch.cat([s.flatten() for s in same]).double().mean()
    )


def test_weights_of_another_dtype_do_not_count_among_the_float32_ones():
    narrow = model((64, 64), dtype=torch.bfloat16)
    found, _ = train_step(narrow, torch.optim.SGD(narrow.parameters(), lr=1e-9), OptimizerProbe())
    assert "optimizer.bf16_image_same_ratio" not in found.values
    wide, narrow = torch.nn.Parameter(torch.ones(32)), torch.nn.Parameter(torch.ones(32, dtype=torch.bfloat16))
    optimizer, watch = torch.optim.SGD([wide, narrow], lr=1.0), OptimizerProbe()
    wide.grad, narrow.grad = torch.zeros(32), torch.ones(32, dtype=torch.bfloat16)
    wide.grad[:8] = 1e-5
    wide.grad[8:12] = 0.5
    watch.before_step(optimizer)
    optimizer.step()
    values = harvest(watch.after_step(optimizer)).values
    assert values["optimizer.bf16_image_same_ratio"] == 28 / 32
    optimizer.param_groups[0]["lr"] = 0.0
    watch.before_step(optimizer)
    optimizer.step()
    assert "optimizer.bf16_image_same_ratio" not in harvest(watch.after_step(optimizer)).values


def test_the_spread_of_every_tensor_is_read_at_every_full_step_and_its_extremes_named():
    net = model((32, 32, 32))
    with torch.no_grad():
        net[1].bias.fill_(0.25)
    optimizer, watch = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0), OptimizerProbe(full_every=2)
    found, _ = train_step(net, optimizer, watch)
    stds = {name: float(p.detach().double().std(correction=0)) for name, p in net.named_parameters()}
    top = max(stds.values())
    assert found.values["optimizer.tensor_std_max[weights]"] == pytest.approx(top, rel=0.15)
    assert found.values["optimizer.tensor_std_min[weights]"] == pytest.approx(min(stds.values()), rel=1e-6)
    assert found.subjects["optimizer.tensor_std_min[weights]"] == "1.bias"
    for order, name in ((1, "exp_avg"), (2, "exp_avg_sq")):
        low = min(float(optimizer.state[p][name].double().std(correction=0)) for p in net.parameters())
        assert found.values[f"optimizer.tensor_std_min[moment{order}]"] == pytest.approx(low, rel=0.3)
    found, _ = train_step(net, optimizer, watch)
    assert not any("tensor_std" in name for name in found.values)


def test_the_spread_of_tensors_that_are_read_whole_is_exact_and_one_element_has_none():
    parameters = [torch.nn.Parameter(torch.randn(32)), torch.nn.Parameter(torch.tensor(3.0))]
    optimizer, watch = torch.optim.SGD(parameters, lr=0.0), OptimizerProbe()
    values = harvest(watch.after_step(optimizer)).values
    std = float(parameters[0].detach().double().std(correction=0))
    assert values["optimizer.tensor_std_max[weights]"] == pytest.approx(std, rel=1e-12)
    assert values["optimizer.tensor_std_min[weights]"] == values["optimizer.tensor_std_max[weights]"]


def test_beside_a_complex_parameter_the_real_ones_are_judged_as_ever():
    wide, other = torch.nn.Parameter(torch.randn(32)), torch.nn.Parameter(torch.ones(32, dtype=torch.complex64))
    optimizer, watch = torch.optim.SGD([wide, other], lr=1.0), OptimizerProbe()
    wide.grad, other.grad = torch.zeros(32), torch.ones(32, dtype=torch.complex64) * 5
    wide.grad[:4] = 5.0
    watch.before_step(optimizer)
    optimizer.step()
    values = harvest(watch.after_step(optimizer)).values
    assert values["optimizer.bf16_image_same_ratio"] == 28 / 32
    std = float(wide.detach().double().std(correction=0))
    assert values["optimizer.tensor_std_max[weights]"] == pytest.approx(std, rel=1e-9)


def test_gradients_far_above_their_second_moment_are_counted_where_they_are():
    parameters = [torch.nn.Parameter(torch.randn(32)), torch.nn.Parameter(torch.randn(64))]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    watch = OptimizerProbe(full_every=2)

    def step(spiked=0, zeros=0):
        for p in parameters:
            p.grad = torch.full_like(p, 0.1)
        parameters[0].grad[:spiked] = 10.0
        parameters[0].grad[32 - zeros :] = 0.0
        watch.before_step(optimizer)
        before = {p: optimizer.state[p]["exp_avg_sq"].clone() for p in parameters if optimizer.state[p]}
        optimizer.step()
        found = harvest(watch.after_step(optimizer)).values.get("optimizer.gradient_spike_ratio")
        pairs = [(p.grad.double() ** 2, v.double()) for p, v in before.items()]
        judged = sum(int((v > 0).sum()) for _, v in pairs)
        return found, sum(int(((v > 0) & (g > 5000 * v)).sum()) for g, v in pairs) / judged if judged else None

    assert step(zeros=4) == (None, None), "before the first update there is no moment"
    assert step(spiked=5, zeros=4)[0] is None, "every second step only"
    found, expected = step(spiked=5, zeros=4)
    assert found == expected == 0, "5 elements have a large moment by now"
    step()
    optimizer.state[parameters[0]]["exp_avg_sq"].fill_(1e-6)
    found, expected = step(spiked=5)
    assert found == pytest.approx(expected)
    assert expected == pytest.approx((5 + 27) / 96), "0.01 against 1e-6 is 10000 times"
    plain = torch.optim.SGD(parameters, lr=1e-3)
    other = OptimizerProbe(full_every=1)
    other.before_step(plain)
    plain.step()
    assert "optimizer.gradient_spike_ratio" not in harvest(other.after_step(plain)).values
