"""Policy statistics equal a token-by-token reference in Python floats, masked and merged over micro-batches."""

from __future__ import annotations

import gc
import math
import statistics
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_sentinel.agent.probes import policy

from .helpers import SyncCounter, Untouched, harvest

pytestmark = pytest.mark.torch


def batch(seed=0, rows=4, tokens=9, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    logp = (-3 * torch.rand(rows, tokens, generator=g)).to(dtype)
    shift = lambda scale: (logp.double() + scale * torch.randn(rows, tokens, generator=g).double()).to(dtype)  # noqa: E731
    return {
        "logp_BT": logp,
        "mask_BT": (torch.rand(rows, tokens, generator=g) < 0.7).long(),
        "advantages": torch.randn(rows, generator=g),
        "old_logp_BT": shift(0.3),
        "ref_logp_BT": shift(0.2),
        "sampling_logp_BT": shift(0.1),
        "entropy_BT": torch.rand(rows, tokens, generator=g).to(dtype),
        "completion_ids_BT": torch.randint(0, 5, (rows, tokens), generator=g),
    }


def reference(batches, low=0.2, high=0.28):
    """Walk over the unmasked tokens in Python floats."""
    tokens = []
    for b in batches:
        adv = b["advantages"].tolist()
        for i, row in enumerate(b["mask_BT"].tolist()):
            for t, kept in enumerate(row):
                if kept:
                    tokens.append(
                        [float(b[k][i][t]) for k in ("logp_BT", "old_logp_BT", "ref_logp_BT", "sampling_logp_BT")]
                        + [adv[i]]
                    )
    mean = statistics.fmean
    ratios = [math.exp(lp - old) for lp, old, *_ in tokens]
    advantages = [a for *_, a in tokens]
    k3 = [math.exp(ref - lp) - 1 - (ref - lp) for lp, _, ref, *_ in tokens]
    weights = [math.exp(old - s) for _, old, _, s, _ in tokens]
    gaps = [abs(old - s) for _, old, _, s, _ in tokens]
    all_advantages = [a for b in batches for a in b["advantages"].tolist()]
    return {
        "policy.logp_mean_nats": mean(t[0] for t in tokens),
        "policy.logp_min_nats": min(t[0] for t in tokens),
        "policy.ratio_mean": mean(ratios),
        "policy.ratio_max": max(ratios),
        "policy.log_ratio_abs_max": max(abs(t[0] - t[1]) for t in tokens),
        "policy.ess_ratio": sum(ratios) ** 2 / (len(ratios) * sum(r * r for r in ratios)),
        "policy.clip_low_ratio": mean(float(r < 1 - low and a < 0) for r, a in zip(ratios, advantages, strict=True)),
        "policy.clip_high_ratio": mean(float(r > 1 + high and a > 0) for r, a in zip(ratios, advantages, strict=True)),
        "policy.pg_loss": mean(
            -min(r * a, max(1 - low, min(1 + high, r)) * a) for r, a in zip(ratios, advantages, strict=True)
        ),
        "policy.approx_kl_nats": mean(1 / r - 1 + math.log(r) for r in ratios),
        "policy.kl_k1_nats": mean(lp - ref for lp, _, ref, *_ in tokens),
        "policy.kl_k2_nats": mean((lp - ref) ** 2 / 2 for lp, _, ref, *_ in tokens),
        "policy.kl_k3_nats": mean(k3),
        "policy.kl_loss": 0.05 * mean(k3),
        "policy.sampling_gap_mean_nats": mean(gaps),
        "policy.sampling_gap_max_nats": max(gaps),
        "policy.sampling_mult_error": mean(math.exp(g) for g in gaps),
        "policy.sampling_k3_nats": mean(math.exp(old - s) - 1 - (old - s) for _, old, _, s, _ in tokens),
        "policy.sampling_correlation": statistics.correlation(
            [math.exp(t[1]) for t in tokens], [math.exp(t[3]) for t in tokens]
        ),
        "policy.sampling_ppl_ratio": math.exp(mean(s - old for _, old, _, s, _ in tokens)),
        "policy.sampling_weight_mean": mean(weights),
        "policy.sampling_ess_ratio": sum(weights) ** 2 / (len(weights) * sum(w * w for w in weights)),
        "policy.sampling_probability_gap_max": max(abs(math.exp(t[1]) - math.exp(t[3])) for t in tokens),
        "policy.sampling_capped_ratio": mean(float(w > 1.1) for w in weights),
        "policy.advantage_mean": mean(all_advantages),
        "policy.advantage_std": statistics.stdev(all_advantages),
        "policy.advantage_abs_max": max(map(abs, all_advantages)),
    }


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
)
def test_every_term_equals_a_walk_over_the_tokens_of_all_micro_batches(seed, count, dtype):
    batches = [batch(seed + i, rows=3 + i, tokens=8 + i, dtype=dtype) for i in range(count)]
    packs = [policy.observe(**b, epsilon_low=0.2, epsilon_high=0.28, beta=0.05, sampling_cap=1.1) for b in batches]
    values = harvest(*packs).values
    for name, expected in reference(batches).items():
        assert values[name] == pytest.approx(expected, rel=1e-6, abs=1e-9), name
    both = values["policy.clip_low_ratio"] + values["policy.clip_high_ratio"]
    assert values["policy.clip_ratio"] == pytest.approx(both)


def test_weights_of_whole_completions_are_products_over_their_tokens():
    b = batch(rows=40)
    b["mask_BT"][3] = 0  # weighs nothing and is not counted
    b["sampling_logp_BT"][5, 5] = float("nan")
    log_weights = torch.where(b["mask_BT"] != 0, (b["old_logp_BT"].double() - b["sampling_logp_BT"].double()), 0.0)
    log_weights = log_weights.nan_to_num(0.0).sum(1)
    kept = b["mask_BT"].any(1)
    expected = float((log_weights[kept].exp() > 1.5).double().mean())
    assert 0 < expected < 1
    values = harvest(policy.observe(**b, sampling_cap=1.5, sampling_level="sequence")).values
    assert values["policy.sampling_capped_ratio"] == pytest.approx(expected)
    del b["sampling_logp_BT"]
    assert "policy.sampling_capped_ratio" not in harvest(policy.observe(**b)).values


def test_what_the_mask_hides_changes_nothing_even_when_it_is_nan():
    clean, dirty = batch(), batch()
    for name, tensor in dirty.items():
        if name.endswith(("logp_BT", "entropy_BT")):
            tensor[dirty["mask_BT"] == 0] = float("nan")
        if name == "completion_ids_BT":
            tensor[dirty["mask_BT"] == 0] = 99
    assert harvest(policy.observe(**clean)).values == harvest(policy.observe(**dirty)).values


def test_non_finite_log_probs_are_counted_where_they_are_and_leave_the_rest_alone():
    b = batch()
    b["mask_BT"][:] = 1
    b["logp_BT"][0, 0] = float("nan")
    b["old_logp_BT"][1, :2] = float("-inf")
    b["ref_logp_BT"][2, 3] = float("inf")
    b["sampling_logp_BT"][3, 3] = float("nan")
    b["entropy_BT"][0, 1] = float("nan")
    values = harvest(policy.observe(**b)).values
    assert values["policy.logp_nonfinite"] == 1
    assert values["policy.old_logp_nonfinite"] == 2
    assert values["policy.ref_logp_nonfinite"] == 1
    assert values["policy.sampling_logp_nonfinite"] == 1
    assert values["policy.entropy_nonfinite"] == 1
    assert all(math.isfinite(v) for v in values.values())


def test_k3_that_overflows_in_the_loss_is_counted_though_its_mean_is_finite():
    logp = torch.tensor([[-200.0, -1.0]])
    values = harvest(policy.observe(logp_BT=logp, ref_logp_BT=torch.tensor([[-1.0, -1.0]]))).values
    assert values["policy.kl_k3_overflow"] == 1
    assert values["policy.kl_k3_max_nats"] == pytest.approx(math.exp(199))
    assert values["policy.kl_k3_nats"] == pytest.approx(math.exp(199) / 2)
    half = harvest(
        policy.observe(logp_BT=torch.tensor([[-13.0]]).half(), ref_logp_BT=torch.tensor([[-1.0]]).half())
    ).values
    assert half["policy.kl_k3_overflow"] == 1  # exp(12) is above what float16 holds, and far below float32's


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 2))
def test_the_quarter_of_the_completions_with_the_most_kl_is_found_as_by_a_walk(seed, count):
    batches = [batch(seed + i, rows=3, tokens=9 + i) for i in range(count)]
    quarters = [0.0] * 4
    for b in batches:
        for i, row in enumerate(b["mask_BT"].tolist()):
            own = [t for t, kept in enumerate(row) if kept]
            for place, t in enumerate(own):
                d = float(b["logp_BT"][i][t]) - float(b["ref_logp_BT"][i][t])
                quarters[4 * place // len(own)] += math.exp(-d) - 1 + d
    found = harvest(*[policy.observe(**b) for b in batches]).values["policy.kl_position_share"]
    assert found == pytest.approx(max(quarters) / sum(quarters), rel=1e-9)


def test_huge_ratios_do_not_overflow_the_mean_or_the_sample_size():
    old = torch.tensor([[-500.0, -1.0, -1.0]])
    values = harvest(policy.observe(logp_BT=torch.full((1, 3), -1.0), old_logp_BT=old)).values
    assert values["policy.log_ratio_abs_max"] == 499
    assert values["policy.ess_ratio"] == pytest.approx(1 / 3)
    assert math.isfinite(values["policy.ratio_mean"])


def test_a_first_visit_without_old_log_probs_has_ratio_one():
    values = harvest(policy.observe(logp_BT=batch()["logp_BT"], advantages=torch.ones(4), on_policy=True)).values
    assert values["policy.ratio_mean"] == pytest.approx(1)
    assert values["policy.clip_ratio"] == 0
    assert values["policy.pg_loss"] == pytest.approx(-1)
    without = harvest(policy.observe(logp_BT=batch()["logp_BT"], on_policy=False)).values
    assert "policy.ratio_mean" not in without


def test_a_first_visit_equals_one_whose_old_log_probs_are_the_current_ones():
    b = {name: batch()[name] for name in ("logp_BT", "mask_BT", "advantages")}
    b["logp_BT"][0, 0] = float("nan")
    b["mask_BT"][0, 0] = 1
    b["advantages"][2] = float("inf")
    given = harvest(policy.observe(**b, old_logp_BT=b["logp_BT"])).values
    known = harvest(policy.observe(**b, on_policy=True)).values
    del given["policy.old_logp_nonfinite"], known["policy.on_policy"]
    assert known == {name: pytest.approx(value) for name, value in given.items()}
    assert known["policy.ratio_max"] == known["policy.ess_ratio"] == 1


def test_sequence_level_ratios_are_those_of_the_row():
    b = batch()
    values = harvest(policy.observe(**b, importance_sampling_level="sequence")).values
    mask = b["mask_BT"].double()
    mean = ((b["logp_BT"].double() - b["old_logp_BT"].double()) * mask).sum(1) / mask.sum(1)
    assert values["policy.ratio_mean"] == pytest.approx(float((mean.exp() * mask.sum(1)).sum() / mask.sum()))
    assert values["policy.log_ratio_abs_max"] == pytest.approx(float(mean.abs().max()))


@pytest.mark.parametrize("scale", ["group", True])
def test_the_advantage_bound_is_exact_for_a_group_scaled_by_its_sample_deviation(scale):
    reward = torch.tensor([1.0] + [0.0] * 7)
    advantages = (reward - reward.mean()) / reward.std()
    values = harvest(policy.observe(advantages=advantages, group_size=8, scale_rewards=scale)).values
    assert values["policy.advantage_abs_bound"] == pytest.approx(7 / math.sqrt(8))
    assert values["policy.advantage_abs_max"] == pytest.approx(values["policy.advantage_abs_bound"], rel=1e-6)
    for other in ("batch", "none", False, None):
        free = harvest(policy.observe(advantages=advantages, group_size=8, scale_rewards=other)).values
        assert "policy.advantage_abs_bound" not in free


def test_advantages_per_token_count_rows_that_are_zero_inside_their_mask():
    advantages = torch.tensor([[0.0, 5.0, 0.0], [0.0, 0.0, 2.0], [1.0, float("nan"), 1.0]])
    mask = torch.tensor([[1, 0, 1], [1, 1, 1], [1, 1, 1]])
    values = harvest(policy.observe(logp_BT=torch.zeros(3, 3), mask_BT=mask, advantages=advantages)).values
    assert values["policy.advantage_zero_ratio"] == pytest.approx(1 / 3)
    assert values["policy.advantage_abs_max"] == 2
    assert values["policy.advantage_nonfinite"] == 1


def test_the_loss_is_the_mean_of_its_micro_batches_with_the_division_undone():
    packs = [policy.observe(loss=torch.tensor(value), loss_scale=4.0) for value in (0.5, 1.0, float("nan"))]
    values = harvest(*packs, policy.observe(loss=0.25, loss_scale=4.0)).values
    assert values["policy.loss"] == pytest.approx((2 + 4 + 1) / 3)
    assert values["policy.loss_nonfinite"] == 1


def test_entropy_by_place_uses_each_completions_own_length():
    entropy = torch.tensor([[1.0, 2, 3, 4, 5, 6, 7, 8], [10, 20, 30, 40, 0, 0, 0, 0]])
    mask = torch.tensor([[1] * 8, [1] * 4 + [0] * 4])
    values = harvest(policy.observe(entropy_BT=entropy, mask_BT=mask, vocab_size=100)).values
    assert values["policy.entropy_first_nats"] == pytest.approx((1 + 2 + 10) / 3)
    assert values["policy.entropy_last_nats"] == pytest.approx((7 + 8 + 40) / 3)
    assert values["policy.entropy_max_nats"] == pytest.approx(math.log(100))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=12, max_size=12), min_size=1, max_size=4), st.integers(0, 12))
def test_repetition_and_single_token_share_equal_a_count_in_python(rows, length):
    mask = torch.zeros(len(rows), 12, dtype=torch.long)
    mask[:, :length] = 1
    values = harvest(policy.observe(completion_ids_BT=torch.tensor(rows), mask_BT=mask)).values
    shares, single = [], []
    for row in (r[:length] for r in rows):
        grams = [tuple(row[i : i + 4]) for i in range(len(row) - 3)]
        if grams:
            shares.append(1 - len(set(grams)) / len(grams))
        if len(row) >= 8:
            single.append(max(row.count(t) for t in set(row)) > 0.9 * len(row))
    for name, expected in (("policy.repetition_ratio", shares), ("policy.single_token_ratio", single)):
        if expected:
            assert values[name] == pytest.approx(sum(expected) / len(expected))
        else:
            assert name not in values


def test_inputs_with_a_gradient_or_another_dtype_are_named_and_counted():
    b = batch()
    b["ref_logp_BT"] = b["ref_logp_BT"].clone().requires_grad_()
    b["old_logp_BT"] = b["old_logp_BT"].bfloat16()
    found = harvest(policy.observe(**b))
    assert found.values["policy.input_grad_leaks"] == 1
    assert found.subjects["policy.input_grad_leaks"] == "ref_logp"
    assert found.values["policy.loss_dtype_mismatch"] == 1
    assert found.values["policy.loss_device_mismatch"] == 0


def test_shapes_that_contradict_are_named():
    b = batch()
    b["old_logp_BT"] = b["old_logp_BT"][:, 1:]
    with pytest.raises(ValueError, match=r"old_logp of shape \(4, 8\)"):
        policy.observe(**b)


def test_all_masked_and_empty_batches_give_counts_and_no_means():
    b = batch()
    b["mask_BT"][:] = 0
    values = harvest(policy.observe(**b)).values
    assert values["policy.logp_nonfinite"] == 0
    assert not {"policy.logp_mean_nats", "policy.ratio_mean", "policy.kl_k3_nats", "policy.entropy_nats"} & set(values)
    empty = {name: tensor[:, :0] if tensor.dim() == 2 else tensor for name, tensor in b.items()}
    assert "policy.logp_mean_nats" not in harvest(policy.observe(**empty)).values


def test_observing_waits_for_nothing_changes_nothing_and_keeps_nothing():
    b = batch()
    with Untouched(*b.values()), SyncCounter() as counter:
        pack = policy.observe(**b, loss=torch.tensor(1.0), beta=0.1, vocab_size=10, on_policy=True, group_size=2)
    assert counter.calls == []
    assert counter.operations < 240
    seen = [weakref.ref(tensor) for tensor in b.values()]
    del b
    gc.collect()
    assert [ref() for ref in seen] == [None] * len(seen)
    assert pack.values.dtype == torch.float64
