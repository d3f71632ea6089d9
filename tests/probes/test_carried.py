"""What is left of the step before is seen when the first gradient of a step arrives, whoever clears, and where."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from grpo_sentinel.agent.probes.carried import CarriedWatch
from grpo_sentinel.agent.probes.optimizer_facts import observe as facts

from .helpers import SyncCounter, harvest

pytestmark = pytest.mark.torch


def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))


def backward(net):
    net(torch.randn(3, 4)).square().sum().backward()


def read(watch):
    found = watch.pack()
    return None if found is None else dict(found) if isinstance(found, dict) else harvest(found).values


def test_a_step_that_was_cleared_carries_nothing_wherever_it_is_cleared():
    net, watch = model(), CarriedWatch()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watch.arm(list(net.parameters()))
    for set_to_none, before_forward in ((True, True), (False, True), (True, False), (False, False)):
        out = net(torch.randn(3, 4)) if not before_forward else None
        optimizer.zero_grad(set_to_none=set_to_none)
        (net(torch.randn(3, 4)) if out is None else out).square().sum().backward()
        backward(net)  # a second micro-batch finds the first one's gradients, as it should
        assert read(watch) == {"gradient.carried_norm": 0.0}


def test_a_gradient_that_was_never_cleared_is_seen_with_its_norm():
    net, watch = model(), CarriedWatch()
    watch.arm(list(net.parameters()))
    backward(net)
    assert read(watch) == {"gradient.carried_norm": 0.0}
    small = [net[0].bias, net[1].weight, net[2].bias]
    left = max(float(parameter.grad.norm()) for parameter in small)
    with SyncCounter() as counter:
        backward(net)
        pack = watch.pack()
    assert not counter.calls
    assert harvest(pack).values["gradient.carried_norm"] == pytest.approx(left)


def test_without_a_backward_nothing_is_said_and_no_parameter_is_kept_alive():
    net, watch = model(), CarriedWatch()
    watch.arm(list(net.parameters()))
    assert read(watch) is None
    kept = weakref.ref(net[0].bias)
    del net
    gc.collect()
    assert kept() is None
    watch.disarm()


def test_hooks_follow_parameters_that_are_replaced_and_leave_with_the_watch():
    net, watch = model(), CarriedWatch()
    watch.arm(list(net.parameters()))
    net[2] = torch.nn.Linear(4, 2)
    watch.arm(list(net.parameters()))
    backward(net)
    assert read(watch) == {"gradient.carried_norm": 0.0}
    watch.disarm()
    backward(net)
    assert read(watch) is None
    assert not any(parameter._backward_hooks for parameter in net.parameters())


def test_averaging_and_decay_of_the_first_group_are_facts():
    net = model()
    found = facts(torch.optim.AdamW(net.parameters(), betas=(0.8, 0.95), weight_decay=0.1), None, None)
    assert (found["optimizer.beta1"], found["optimizer.beta2"], found["optimizer.weight_decay"]) == (0.8, 0.95, 0.1)
    assert "optimizer.beta2" not in facts(torch.optim.SGD(net.parameters(), lr=0.1), None, None)
