"""Weight versions of samples and tokens equal a loop over them; what cannot be compared is left out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_sentinel.agent.probes import data

from .helpers import SyncCounter, Untouched, harvest

pytestmark = pytest.mark.torch
CURRENT = 9


def batch(seed, rows, tokens):
    g = torch.Generator().manual_seed(seed)
    rises = torch.randint(0, 2, (rows, tokens), generator=g) * torch.randint(1, 3, (rows, tokens), generator=g)
    return {
        "completion_ids_BC": torch.randint(0, 9, (rows, tokens), generator=g),
        "completion_mask_BC": torch.randint(0, 2, (rows, tokens), generator=g),
        "weight_versions": rises.cumsum(1) + torch.randint(3, 8, (rows, 1), generator=g),
        "weight_version": CURRENT,
    }


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 6))
def test_lags_and_spans_equal_a_loop_over_the_tokens_of_all_micro_batches(seed, count, tokens):
    batches = [batch(seed + i, rows=2 + i, tokens=tokens) for i in range(count)]
    values = harvest(*(data.observe(**b) for b in batches)).values
    lags, ahead, spans = [], 0, 0
    for b in batches:
        for versions, mask in zip(b["weight_versions"].tolist(), b["completion_mask_BC"].tolist(), strict=True):
            kept = [v for v, m in zip(versions, mask, strict=True) if m] or [CURRENT]
            lags.append(CURRENT - min(kept))
            ahead += max(kept) > CURRENT
            spans += len(set(kept)) > 2
    assert values["data.version_lag_max"] == max(lags)
    assert values["data.version_lag_mean"] == pytest.approx(sum(lags) / len(lags))
    assert values["data.version_ahead"] == ahead
    assert values["data.version_spans_ratio"] == pytest.approx(spans / len(lags))


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_one_version_per_sample_is_enough_and_a_sample_from_the_future_is_named(shape):
    ids = torch.ones(4, 3, dtype=torch.long)
    found = harvest(
        data.observe(
            completion_ids_BC=ids, completion_mask_BC=ids, weight_versions=torch.tensor([7, 9, 10, 9]).view(shape),
            weight_version=9, stale_dropped=1,
        )
    )  # fmt: skip
    values = found.values
    assert (values["data.version_lag_max"], values["data.version_lag_mean"]) == (2, 0.25)
    assert values["data.version_ahead"] == 1
    assert found.samples["data.version_ahead"] == (2,)
    assert values["data.version_spans_ratio"] == 0
    assert (values["data.stale_dropped"], values["data.stale_dropped_ratio"]) == (1, 0.2)


@pytest.mark.parametrize(
    "versions",
    [torch.zeros(3), torch.zeros(4, 2), torch.zeros(4, 3, device="meta"), torch.zeros(4, 3, dtype=torch.complex64)],
    ids=["too few rows", "too few tokens", "meta", "complex"],
)
def test_versions_that_do_not_fit_are_left_out_and_the_batch_is_read_all_the_same(versions):
    ids = torch.ones(4, 3, dtype=torch.long)
    values = harvest(
        data.observe(completion_ids_BC=ids, completion_mask_BC=ids, weight_versions=versions, weight_version=9)
    ).values
    assert not any("version" in name for name in values)
    assert values["data.completion_tokens"] == 12


def test_without_the_trainers_own_version_nothing_is_judged_and_nothing_waits_or_changes():
    b = batch(0, 4, 5)
    with Untouched(*(t for t in b.values() if isinstance(t, torch.Tensor))), SyncCounter() as counter:
        data.observe(**b)
    assert counter.calls == []
    del b["weight_version"]
    assert not any("version" in name for name in harvest(data.observe(**b)).values)
