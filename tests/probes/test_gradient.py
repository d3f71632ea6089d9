"""Gradient statistics equal a plain float64 reference, whatever kind of tensor holds the gradient."""

from __future__ import annotations

import gc
import math
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_sentinel.agent.probes import gradient

from .helpers import SyncCounter, Untouched, harvest

pytestmark = pytest.mark.torch
BAD = (float("nan"), float("inf"), float("-inf"))


def parameter(grad, name="w"):
    p = torch.nn.Parameter(torch.zeros_like(grad, layout=torch.strided) if not grad.is_sparse else torch.zeros(grad.shape))
    p.grad = grad
    return name, p


def read(*grads, **kwargs):
    named = [parameter(g, f"block.{i}.weight") for i, g in enumerate(grads)]
    return harvest(gradient.observe(named, **kwargs))


def reference(grads):
    flat = torch.cat([g.detach().to(torch.float64).reshape(-1) for g in grads])
    return {"norm": float(flat.square().sum().sqrt()), "max": float(flat.abs().max()), "std": float(flat.std(correction=0))}


@st.composite
def gradients(draw):
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    scale = draw(st.sampled_from([1e-4, 1.0, 1e3]))
    shapes = draw(st.lists(st.lists(st.integers(1, 17), min_size=0, max_size=3), min_size=1, max_size=5))
    return [(torch.randn(shape, generator=generator) * scale).to(dtype) for shape in shapes]


@settings(max_examples=60, deadline=None)
@given(gradients())
def test_norm_max_and_deviation_equal_a_float64_reference(grads):
    values, expected = read(*grads).values, reference(grads)
    assert values["gradient.norm_local"] == pytest.approx(expected["norm"], rel=2e-6, abs=1e-30)
    assert values["gradient.abs_max"] == expected["max"]
    whole = sum(grad.numel() for grad in grads) <= 8192
    assert values["gradient.std"] == pytest.approx(expected["std"], rel=1e-9 if whole else 2e-3, abs=1e-30)
    assert values["gradient.tensors"] == len(grads)
    assert values["gradient.nonfinite_tensors"] == 0
    assert "gradient.abs_p50" in values


@settings(max_examples=60, deadline=None)
@given(gradients(), st.data())
def test_every_tensor_with_a_non_finite_element_is_counted_and_named(grads, data):
    marks = [data.draw(st.sampled_from([None, *BAD]), label="mark") for _ in grads]
    for grad, mark in zip(grads, marks, strict=True):
        if mark is not None:
            grad.view(-1)[data.draw(st.integers(0, grad.numel() - 1), label="place")] = mark
    found = read(*grads)
    wrong = [f"block.{i}.weight" for i, mark in enumerate(marks) if mark is not None]
    assert list(found.names_at("after_reduce")) == wrong
    assert found.values["gradient.nonfinite_tensors"] == len(wrong)
    assert found.values["gradient.nan_tensors"] == sum(mark is not None and math.isnan(mark) for mark in marks)
    assert found.values["gradient.inf_tensors"] == sum(mark is not None and math.isinf(mark) for mark in marks)
    assert math.isfinite(found.values["gradient.norm_local"]) == (not wrong)
    assert found.values["gradient.norm_overflow"] == 0
    good = [g for g, mark in zip(grads, marks, strict=True) if mark is None]
    if good:
        assert found.values["gradient.abs_max"] == reference(good)["max"]
    else:
        assert "gradient.abs_max" not in found.values


def test_a_tensor_cut_into_pieces_is_read_whole(monkeypatch):
    monkeypatch.setattr(gradient.norms, "PIECE", 64)
    grads = [torch.randn(1000), torch.randn(3), torch.randn(513)]
    grads[0][-1] = 50.0
    values = read(*grads).values
    assert values["gradient.norm_local"] == pytest.approx(reference(grads)["norm"], rel=1e-6)
    assert values["gradient.abs_max"] == 50.0
    grads[2][512] = float("nan")
    assert read(*grads).names_at("after_reduce") == ("block.2.weight",)


def test_quantiles_of_a_small_model_are_exact():
    values = read(torch.arange(1.0, 1001.0)).values
    assert values["gradient.abs_p50"] == 500
    assert values["gradient.abs_p95"] == 950
    assert values["gradient.abs_p99"] == 990
    assert values["gradient.abs_mean"] == 500.5


@pytest.mark.parametrize("seed", range(5))
def test_sampled_quantiles_and_mean_keep_to_the_stated_error(seed):
    torch.manual_seed(seed)
    grads = [torch.randn(700, 300).pow(3), torch.randn(90_000) * 0.1, torch.randn(50)]
    flat = torch.cat([g.flatten() for g in grads]).abs().double()
    values = read(*grads).values
    for name, q in (("gradient.abs_p50", 0.5), ("gradient.abs_p95", 0.95), ("gradient.abs_p99", 0.99)):
        rank = float((flat <= values[name]).double().mean())
        assert abs(rank - q) < 4 * math.sqrt(q * (1 - q) / 8192)
    assert abs(values["gradient.abs_mean"] - float(flat.mean())) < 4 * float(flat.std()) / math.sqrt(8192)


def test_the_deviation_of_a_large_model_takes_its_second_moment_from_the_exact_norm():
    torch.manual_seed(0)
    grads = [torch.randn(100_000) * 3, torch.randn(1000) * 100]
    assert read(*grads).values["gradient.std"] == pytest.approx(reference(grads)["std"], rel=1e-3)


def test_the_sample_is_the_same_at_every_call_and_draws_no_random_number():
    grads = [torch.randn(100_000)]
    with Untouched(*grads):
        first, second = read(*grads).values, read(*grads).values
    assert first == second


def test_overflow_of_the_norm_is_told_apart_from_an_infinite_gradient():
    values = read(torch.full((16,), 3e19)).values
    assert values["gradient.norm_overflow"] == 1
    assert values["gradient.nonfinite_tensors"] == 0
    assert math.isinf(values["gradient.norm_local"])
    assert values["gradient.abs_max"] == pytest.approx(3e19)


def test_a_norm_whose_squares_vanish_is_not_zero():
    values = read(torch.full((4,), 1e-30)).values
    assert values["gradient.norm_local"] >= 1e-30
    assert values["gradient.zero_tensors"] == 0


def test_a_half_precision_norm_does_not_overflow_or_lose_digits():
    grads = [torch.full((10_000,), 300.0, dtype=torch.float16)]
    assert read(*grads).values["gradient.norm_local"] == pytest.approx(30_000.0, rel=1e-6)
    grads = [torch.full((300_000,), 1.0, dtype=torch.bfloat16)]
    assert read(*grads).values["gradient.norm_local"] == pytest.approx(math.sqrt(300_000), rel=1e-6)


def test_complex_gradients_are_read_by_their_modulus():
    grad = torch.tensor([3 + 4j, 1j, 0], dtype=torch.complex64)
    values = read(grad).values
    assert values["gradient.norm_local"] == pytest.approx(math.sqrt(26), rel=1e-6)
    assert values["gradient.abs_max"] == 5
    assert read(torch.conj(grad)).values["gradient.norm_local"] == pytest.approx(math.sqrt(26), rel=1e-6)
    grad[1] = complex(float("inf"), float("nan"))
    assert read(grad).values["gradient.nan_tensors"] == 1


def test_transposed_gapped_and_expanded_gradients_are_read_exactly():
    base = torch.randn(40, 30)
    for grad in (base.t(), base[:, ::2], torch.randn(1, 30).expand(40, 30), base.view(4, 10, 30).permute(2, 0, 1)):
        values, expected = read(grad).values, reference([grad])
        assert values["gradient.norm_local"] == pytest.approx(expected["norm"], rel=2e-6)
        assert values["gradient.abs_max"] == expected["max"]


def test_empty_and_zero_dimensional_gradients_count_as_what_they_are():
    values = read(torch.empty(0, 5), torch.tensor(-3.0), torch.zeros(2)).values
    assert values["gradient.tensors"] == 3
    assert values["gradient.norm_local"] == 3
    assert values["gradient.zero_tensors"] == 1  # an empty one is not: FSDP1 leaves such pieces on some ranks
    nothing = read().values
    assert nothing["gradient.tensors"] == 0
    assert nothing["gradient.norm_local"] == 0
    assert "gradient.abs_max" not in nothing


def test_a_sparse_gradient_with_repeated_rows_is_summed_first():
    embedding = torch.nn.Embedding(10, 3, sparse=True)
    embedding(torch.tensor([1, 1, 4])).sum().backward()
    values = harvest(gradient.observe(embedding.named_parameters())).values
    assert values["gradient.norm_local"] == pytest.approx(math.sqrt(3 * 4 + 3))
    assert values["gradient.abs_max"] == 2
    assert values["gradient.sparse_tensors"] == 1


def test_a_meta_gradient_is_unread_and_not_zero():
    with torch.device("meta"):
        p = torch.nn.Parameter(torch.empty(3))
        p.grad = torch.empty(3)
    values = harvest(gradient.observe([("w", p)])).values
    assert values["gradient.unread_tensors"] == 1
    assert values["gradient.tensors"] == 0


def test_frozen_missing_and_tied_parameters():
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3), "c": torch.nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    model["c"].requires_grad_(False)
    model["a"](torch.ones(1, 3)).sum().backward()
    named = list(model.named_parameters(remove_duplicate=False))
    values = harvest(gradient.observe(named)).values
    assert values["gradient.tensors"] == 2
    assert values["gradient.missing_tensors"] == 1  # the bias of b; the frozen ones are not missing
    total = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert values["gradient.norm_local"] == pytest.approx(float(total))


def test_groups_are_blocks_of_layers_and_their_squares_add_up():
    names = ["model.embed.weight", "model.layers.0.mlp.up.weight", "model.layers.0.norm.weight", "model.layers.11.q.weight"]
    named = [parameter(torch.randn(5), name) for name in names]
    values = harvest(gradient.observe(named)).values
    groups = {k: v for k, v in values.items() if k.startswith("gradient.group_norm")}
    assert set(groups) == {f"gradient.group_norm[{g}]" for g in ("model.embed", "model.layers.0", "model.layers.11")}
    assert math.sqrt(sum(v * v for v in groups.values())) == pytest.approx(values["gradient.norm_local"])


def test_the_largest_contributor_is_named():
    found = harvest(gradient.observe([parameter(torch.ones(4), "small"), parameter(torch.full((4,), 9.0), "large")]))
    assert found.subjects["gradient.top_share"] == "large"
    assert found.values["gradient.top_share"] == pytest.approx(81 / 82)


@pytest.mark.parametrize(("limit", "coefficient"), [(None, 1.0), (0.0, 1.0), (math.inf, 1.0), (10.0, 1.0), (2.5, 0.5)])
def test_the_clip_coefficient_is_that_of_torch(limit, coefficient):
    values = read(torch.tensor([3.0, 4.0]), clip_limit=limit).values
    assert values["gradient.clip_coefficient"] == pytest.approx(coefficient, rel=1e-6)
    assert ("gradient.clip_limit" in values) == (limit in (10.0, 2.5))


def test_the_norm_of_the_trainer_wins_and_a_sharded_one_is_not_made_up():
    assert read(torch.ones(4), norm_preclip=torch.tensor(7.0)).values["gradient.norm_preclip"] == 7
    assert read(torch.ones(4), norm_preclip=9.0).values["gradient.norm_preclip"] == 9
    values = read(torch.ones(4), sharded=True, clip_limit=1.0).values
    assert "gradient.norm_preclip" not in values
    assert "gradient.clip_coefficient" not in values
    assert values["gradient.norm_local"] == 2


def test_wrappers_do_not_show_in_names():
    found = harvest(gradient.observe([parameter(torch.tensor([float("nan")]), "module._orig_mod.layers.0._fsdp_wrapped_module.w")]))
    assert found.names_at("after_reduce") == ("layers.0.w",)


def test_observing_calls_nothing_that_waits_and_as_few_operations_per_tensor_as_stated():
    named = [parameter(torch.randn(50, 50), f"layers.{i}.weight") for i in range(100)]
    gradient.observe(named)  # plans the sample
    with SyncCounter() as counter:
        pack = gradient.observe(named)
    assert counter.calls == []
    assert counter.operations < 8 * len(named)
    assert float(pack.norm) == pytest.approx(float(torch.nn.utils.get_total_norm([p.grad for _, p in named])), rel=1e-6)


def test_no_gradient_outlives_its_owner_and_none_is_changed():
    named = [parameter(torch.randn(30, 30), f"layers.{i}.weight") for i in range(3)]
    with Untouched(*[p.grad for _, p in named]):
        pack = gradient.observe(named)
    seen = [weakref.ref(p.grad) for _, p in named] + [weakref.ref(p) for _, p in named]
    del named
    gc.collect()
    assert [ref() for ref in seen] == [None] * 6
    assert harvest(pack).values["gradient.tensors"] == 3
