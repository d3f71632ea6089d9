"""Hooks see the gradient of this rank alone, name what is wrong in it, and change nothing."""

from __future__ import annotations

import time

import pytest
import torch

from grpo_sentinel.agent.probes.local_watch import LocalWatch

from .helpers import SyncCounter, harvest

pytestmark = pytest.mark.torch


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))


def test_the_norm_of_one_backward_is_that_of_its_gradients_and_nothing_waits():
    model, watch = net(), LocalWatch()
    watch.arm(model.named_parameters())
    watch.arm(model.named_parameters())
    with SyncCounter() as counter:
        model(torch.randn(5, 3)).square().mean().backward()
        pack = watch.pack()
    assert counter.calls == []
    values = harvest(pack).values
    expected = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert values["gradient.norm_before_reduce"] == pytest.approx(float(expected), rel=1e-6)
    assert values["gradient.local_nonfinite_tensors"] == 0
    assert watch.pack() is None


def test_a_non_finite_local_gradient_is_named_with_its_micro_batch():
    model, watch = net(), LocalWatch()
    watch.arm(model.named_parameters())
    for index in range(3):
        watch.micro_batch()
        out = model(torch.randn(5, 3)).square().mean()
        if index == 1:
            model[0].weight.register_hook(lambda g: g * float("nan"))
            watch.disarm()
            watch.arm(model.named_parameters())
            watch.micro_batch()
            model(torch.randn(5, 3)).square().mean().backward()
            watch.micro_batch()
        out.backward()
    found = harvest(watch.pack())
    assert found.names_at("before_reduce") == ("0.weight",)
    assert found.values["gradient.local_nonfinite_tensors"] == 1


def test_the_micro_batch_with_the_largest_gradient_is_named():
    model, watch = net(), LocalWatch()
    watch.arm(model.named_parameters())
    for scale in (1.0, 100.0, 1.0):
        watch.micro_batch()
        (model(torch.ones(5, 3)).square().mean() * scale).backward()
    values = harvest(watch.pack()).values
    assert values["gradient.worst_micro_batch"] == 1
    watch.micro_batch()
    model(torch.ones(5, 3)).square().mean().backward()
    assert harvest(watch.pack()).values["gradient.worst_micro_batch"] == 0


def test_disarmed_hooks_are_gone_and_gradients_were_never_changed():
    model, twin, watch = net(), net(), LocalWatch()
    watch.arm(model.named_parameters())
    assert watch.armed
    for m in (model, twin):
        torch.manual_seed(1)
        m(torch.randn(5, 3)).square().mean().backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    watch.disarm()
    assert not watch.armed
    model(torch.randn(5, 3)).square().mean().backward()
    assert watch.pack() is None


def test_the_time_of_the_hooks_is_known_and_counted_once():
    model, watch = net(), LocalWatch()
    watch.arm(model.named_parameters())
    started = time.perf_counter()
    model(torch.randn(5, 3)).square().mean().backward()
    assert 0 < watch.take_seconds() < time.perf_counter() - started
    assert watch.take_seconds() == 0


def test_frozen_and_tied_parameters_are_watched_once():
    model, watch = net(), LocalWatch()
    model[0].bias.requires_grad_(False)
    watch.arm([*model.named_parameters(), ("again", model[1].weight)])
    model(torch.randn(5, 3)).square().mean().backward()
    expected = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert harvest(watch.pack()).values["gradient.norm_before_reduce"] == pytest.approx(float(expected), rel=1e-6)
