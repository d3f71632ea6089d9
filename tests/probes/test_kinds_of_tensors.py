"""Every probe, every kind of tensor: read exactly, or refused or counted as unread in so many words; never wrong."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from grpo_sentinel.agent.probes import data, gradient, policy, reward
from grpo_sentinel.agent.probes.local_watch import LocalWatch
from grpo_sentinel.agent.probes.optimizer import OptimizerProbe

from .helpers import harvest

pytestmark = pytest.mark.torch
REAL = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
LOGP = [[-1.5, -0.25, -3.0], [-0.5, -2.0, -0.125]]  # exact in every one of them


@pytest.fixture(autouse=True)
def nothing_is_dropped_in_passing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch only warns when it casts the imaginary part away
        yield


@pytest.mark.parametrize("dtype", REAL)
def test_log_probs_entropy_and_advantages_of_every_float_are_read_exactly(dtype):
    logp = torch.tensor(LOGP, dtype=dtype)
    values = harvest(
        policy.observe(
            logp_BT=logp,
            entropy_BT=-logp,
            advantages=torch.tensor([1.0, -2.0], dtype=dtype),
            loss=logp.sum(),
            on_policy=True,
        )
    ).values
    assert values["policy.logp_mean_nats"] == sum(map(sum, LOGP)) / 6
    assert values["policy.logp_min_nats"] == -3.0
    assert values["policy.entropy_nats"] == -values["policy.logp_mean_nats"]
    assert values["policy.pg_loss"] == 0.5
    assert values["policy.advantage_std"] == pytest.approx(math.sqrt(4.5))
    assert values["policy.loss"] == -7.375


@pytest.mark.parametrize(
    "name", ["logp_BT", "mask_BT", "old_logp_BT", "ref_logp_BT", "sampling_logp_BT", "entropy_BT", "completion_ids_BT"]
)
@pytest.mark.parametrize("kind", ["meta", "complex", "sparse"])
def test_policy_inputs_that_cannot_be_read_are_refused_by_name(name, kind):
    inputs = {"logp_BT": torch.tensor(LOGP), name: unreadable(torch.ones(2, 3), kind)}
    with pytest.raises(ValueError, match=f"{name.split('_BT')[0].removeprefix('completion_')} is a {kind} tensor"):
        policy.observe(**inputs)


@pytest.mark.parametrize("kind", ["meta", "complex", "sparse"])
def test_a_loss_and_rewards_that_cannot_be_read_are_refused_by_name(kind):
    with pytest.raises(ValueError, match=f"loss is a {kind} tensor"):
        policy.observe(loss=unreadable(torch.ones(1), kind))
    with pytest.raises(ValueError, match=f"rewards is a {kind} tensor"):
        reward.observe(unreadable(torch.ones(2, 1), kind), ["a"])


def test_log_probs_without_rows_are_refused():
    with pytest.raises(ValueError, match="rows x positions"):
        policy.observe(logp_BT=torch.zeros(3))


@pytest.mark.parametrize("dtype", [*REAL, torch.int64, torch.bool])
def test_rewards_of_every_real_dtype_are_read_exactly_and_empty_ones_have_no_mean(dtype):
    scores = torch.tensor([[0.0], [1.0], [1.0], [1.0]]).to(dtype)
    values = harvest(reward.observe(scores, ["a"], group_size=2)).values
    assert values["reward.mean"] == 0.75
    assert values["reward.zero_std_ratio"] == 0.5
    empty = harvest(reward.observe(scores[:0], ["a"], group_size=2)).values
    assert empty["reward.func_samples[a]"] == 0
    assert "reward.mean" not in empty


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_ids_of_every_integer_are_compared_with_the_vocabulary_exactly(dtype):
    ids = torch.tensor([[0, 200, 3], [4, 5, 6]]).to(dtype)
    for size, expected in ((100, 1), (200, 1), (201, 0), (300, 0), (70_000, 0)):
        values = harvest(
            data.observe(completion_ids_BC=ids, completion_mask_BC=torch.ones_like(ids), vocab_size=size)
        ).values
        assert values["data.out_of_vocabulary"] == expected
        assert values["data.token_id_max"] == 200
        assert values["data.completion_tokens"] == 6


@pytest.mark.parametrize("kind", ["meta", "sparse"])
def test_a_batch_that_cannot_be_read_is_unknown_and_not_healthy(kind):
    ids = unreadable(torch.ones(2, 3, dtype=torch.long), kind)
    values = harvest(
        data.observe(completion_ids_BC=ids, completion_mask_BC=ids, vocab_size=5, model_device=torch.device("cpu"))
    ).values
    assert not {"data.out_of_vocabulary", "data.completion_tokens", "data.token_id_max"} & set(values)
    assert values["data.device_mismatch" if kind == "meta" else "data.dtype_mismatch"] == 2


@pytest.mark.parametrize("make", [
    lambda: torch.ones(3, dtype=torch.long),
    lambda: torch.ones(3).to(torch.float8_e4m3fn),
    lambda: torch.eye(3).to_sparse_csr(),
    lambda: torch.ones(3, device="meta"),
    lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
])  # fmt: skip
def test_gradients_that_cannot_be_read_are_counted_and_the_others_kept(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch says of CSR and of quantised tensors being new or old
        odd = make()
    values = harvest(gradient.observe_tensors([("odd", odd), ("w", torch.tensor([3.0, 4.0]))])).values
    assert values["gradient.unread_tensors"] == 1
    assert values["gradient.tensors"] == 1
    assert values["gradient.norm_local"] == 5


@pytest.mark.parametrize("dtype", [*REAL, torch.complex64, torch.complex128])
def test_weights_of_every_dtype_are_watched_beside_frozen_empty_tied_and_0d_ones(dtype):
    real = not dtype.is_complex
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]).to(dtype) * (1 if real else 1j))
    frozen = torch.nn.Parameter(torch.full((2,), math.nan).to(dtype), requires_grad=False)
    tiny, empty = torch.nn.Parameter(torch.tensor(12.0).to(dtype)), torch.nn.Parameter(torch.empty(0, 3).to(dtype))
    named = [("weight", weight), ("tied", weight), ("frozen", frozen), ("tiny", tiny), ("empty", empty)]
    optimizer = torch.optim.SGD([weight, frozen, tiny, empty], lr=0.5)
    for parameter in (weight, tiny, empty):
        parameter.grad = torch.ones_like(parameter)
    seen = harvest(gradient.observe(named)).values
    assert seen["gradient.norm_local"] == pytest.approx(math.sqrt(3))
    assert seen["gradient.tensors"] == 3
    probe = OptimizerProbe()
    probe.before_step(optimizer)
    optimizer.step()
    values = harvest(probe.after_step(optimizer, named_parameters=named)).values
    expected = 2.5**2 + 3.5**2 + 11.5**2 if real else 2 * 0.25 + 9 + 16 + 11.5**2
    assert values["optimizer.weight_norm"] == pytest.approx(math.sqrt(expected), rel=1e-6)
    assert values["optimizer.update_norm"] == pytest.approx(math.sqrt(3 * 0.25), rel=1e-6)
    assert values["optimizer.sampled_tensors"] == 2
    assert values["optimizer.nonfinite_weights"] == 0


def test_meta_weights_are_unread_and_the_others_kept():
    here, meta = torch.nn.Parameter(torch.tensor([3.0, 4.0])), torch.nn.Parameter(torch.empty(3, device="meta"))
    probe = OptimizerProbe()
    optimizer = torch.optim.SGD([here, meta], lr=0.5)
    probe.before_step(optimizer)
    values = harvest(probe.after_step(optimizer, named_parameters=[("here", here), ("meta", meta)])).values
    assert values["optimizer.weight_norm"] == 5
    assert values["optimizer.sampled_tensors"] == 1


@pytest.mark.parametrize("dtype", [*REAL, torch.complex64])
def test_local_gradients_of_every_dtype_and_of_sparse_embeddings_are_read(dtype):
    weight, watch = torch.nn.Parameter(torch.ones(2, dtype=dtype)), LocalWatch()
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    watch.arm([("w", weight), ("embedding", embedding.weight)])
    watch.micro_batch()
    ((weight * torch.tensor([3.0, 4.0]).to(dtype)).sum().abs() + embedding(torch.tensor([1])).sum()).backward()
    values = harvest(watch.pack()).values
    watch.disarm()
    assert values["gradient.norm_before_reduce"] == pytest.approx(math.sqrt(25 + 2), rel=1e-5)
    assert values["gradient.local_nonfinite_tensors"] == 0


def unreadable(tensor, kind):
    if kind == "meta":
        return tensor.to("meta")
    return tensor.to(torch.complex64) if kind == "complex" else tensor.to_sparse()
