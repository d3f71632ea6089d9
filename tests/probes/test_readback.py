"""One copy per step: order, merging, and one broken probe that takes nothing with it."""

from __future__ import annotations

import pytest
import torch

from grpo_sentinel.agent.probes import gradient, policy
from grpo_sentinel.agent.probes.pack import Harvest, NonFinite, Pack
from grpo_sentinel.agent.readback import Readback

from .helpers import SyncCounter

pytestmark = pytest.mark.torch


def echo(parts):
    return Harvest({f"{part.meta}": part.values.tolist() for part in parts})


def test_every_pack_gets_its_own_stretch_back_in_float64():
    readback = Readback()
    readback.add(Pack("a", torch.tensor([1.0, 2.0]), echo, "first"))
    readback.add({"host": 3.0})
    readback.add(None)
    readback.add(Pack("b", torch.empty(0), echo, "second"))
    readback.add(Pack("a", torch.tensor([2.0**53 - 1], dtype=torch.float64), echo, "third"))
    assert len(readback) == 4
    values = readback.harvest().values
    assert values == {"host": 3.0, "first": [1.0, 2.0], "second": [], "third": [2.0**53 - 1]}
    assert len(readback) == 0
    assert readback.harvest().values == {}


def test_packs_of_one_probe_are_finished_together():
    seen = []

    def finish(parts):
        seen.append(len(parts))
        return Harvest()

    readback = Readback()
    for _ in range(3):
        readback.add(Pack("policy", torch.ones(1), finish))
    readback.harvest()
    assert seen == [3]


def test_a_probe_that_cannot_be_finished_takes_nothing_else_with_it():
    def broken(parts):
        raise RuntimeError("no")

    def guard(probe, function, *arguments):
        try:
            return function(*arguments)
        except RuntimeError:
            return None

    readback = Readback()
    readback.add(Pack("a", torch.ones(1), broken))
    readback.add(Pack("b", torch.ones(1), echo, "kept"))
    assert readback.harvest(guard).values == {"kept": [1.0]}
    readback.add(Pack("b", torch.ones(1), echo, "next"))
    assert readback.harvest().values == {"next": [1.0]}


def test_a_second_start_before_the_harvest_loses_nothing():
    readback = Readback()
    readback.add(Pack("a", torch.ones(1), echo, "one"))
    readback.start()
    readback.add(Pack("a", torch.zeros(1), echo, "two"))
    readback.start()
    assert readback.done()
    assert readback.harvest().values == {"one": [1.0], "two": [0.0]}


def test_non_finite_names_of_all_probes_come_through():
    found = Harvest(nonfinite=(NonFinite("weights", ("a", "b")), NonFinite("before_reduce", ("c",))))
    assert found.names_at("weights") == ("a", "b")
    assert found.names_at("after_reduce") == ()


@pytest.mark.parametrize("layers", [2, 40])
def test_the_number_of_waiting_calls_does_not_grow_with_the_model(layers):
    named = [(f"layers.{i}.w", torch.nn.Parameter(torch.randn(20, 20))) for i in range(layers)]
    for _, p in named:
        p.grad = torch.randn(20, 20)
    readback = Readback()
    with SyncCounter() as counter:
        readback.add(gradient.observe(named))
        readback.add(policy.observe(logp_BT=-torch.rand(2, 3), advantages=torch.ones(2)))
        readback.start()
    assert counter.calls == []


@pytest.mark.gpu
def test_on_a_gpu_nothing_waits_before_the_harvest():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    named = [(f"layers.{i}.w", torch.nn.Parameter(torch.randn(64, 64, device="cuda"))) for i in range(20)]
    for _, p in named:
        p.grad = torch.randn(64, 64, device="cuda")
    readback = Readback()
    readback.add(gradient.observe(named))  # plans the sample and the pinned memory
    readback.harvest()
    torch.cuda.set_sync_debug_mode("error")
    try:
        readback.add(gradient.observe(named))
        readback.add(policy.observe(logp_BT=-torch.rand(2, 3, device="cuda"), advantages=torch.ones(2, device="cuda")))
        readback.start()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    values = readback.harvest().values
    expected = torch.nn.utils.get_total_norm([p.grad for _, p in named])
    assert values["gradient.norm_local"] == pytest.approx(float(expected), rel=1e-5)
