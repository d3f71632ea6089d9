"""Every count of a batch equals what a loop over its tokens finds, and contradictions are counted, not raised."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_sentinel.agent.probes import data
from grpo_sentinel.agent.probes.groups import digest, observe_groups

from .helpers import SyncCounter, Untouched, harvest

pytestmark = pytest.mark.torch
PAD, EOS, UNK = 0, 1, 2
TOKENS = {"vocab_size": 40, "pad_id": PAD, "eos_id": EOS, "unk_id": UNK}


def batch(seed=0, rows=5, prompt=4, completion=6):
    g = torch.Generator().manual_seed(seed)
    return {
        "prompt_ids_BP": torch.randint(0, 50, (rows, prompt), generator=g) - 3,
        "prompt_mask_BP": torch.randint(0, 2, (rows, prompt), generator=g),
        "completion_ids_BC": torch.randint(0, 50, (rows, completion), generator=g) - 3,
        "completion_mask_BC": torch.randint(0, 2, (rows, completion), generator=g),
    }


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 7), st.integers(1, 6))
def test_counts_equal_a_loop_over_the_tokens_of_all_micro_batches(seed, count, prompt, completion):
    batches = [batch(seed + i, rows=2 + i, prompt=prompt, completion=completion) for i in range(count)]
    limits = {"max_prompt_length": prompt, "max_completion_length": completion, "group_size": 2}
    packs = [data.observe(**b, **TOKENS, **limits) for b in batches]
    values = harvest(*packs).values
    ids, prompts, completions, ended, unknown, truncated, right = [], [], [], [], 0, [], 0
    for b in batches:
        for p, pm, c, cm in zip(*(t.tolist() for t in b.values()), strict=True):
            ids += p + c
            prompts.append(sum(pm))
            completions.append(sum(cm))
            unknown += sum(t == UNK and m for t, m in zip(p + c, pm + cm, strict=True))
            ended.append(any(t == EOS and m for t, m in zip(c, cm, strict=True)))
            masked_whole = sum(cm) == 0 and EOS not in c and c[-1] != PAD
            truncated.append(not ended[-1] and (sum(cm) >= completion or masked_whole))
            right += pm[-1] == 0 and sum(pm) > 0
    total, n = [p + c for p, c in zip(prompts, completions, strict=True)], len(prompts)
    expected = {
        "samples": n,
        "tokens": sum(total),
        "completion_tokens": sum(completions),
        "token_id_min": min(ids),
        "token_id_max": max(ids),
        "vocab_size": 40,
        "group_size": 2,
        "out_of_vocabulary": sum(t < 0 or t >= 40 for t in ids),
        "empty_rows": total.count(0),
        "empty_prompt_rows": prompts.count(0),
        "masked_completions": completions.count(0),
        "masked_completion_ratio": completions.count(0) / n,
        "nonbinary_mask": 0,
        "pad_ratio": 1 - sum(total) / len(ids),
        "eos_ratio": sum(ended) / n,
        "truncated_ratio": sum(truncated) / n,
        "right_padded_prompts": right,
        "prompt_length_mean": sum(prompts) / n,
        "prompt_length_max": max(prompts),
        "prompt_clip_ratio": sum(p >= prompt for p in prompts) / n,
        "completion_length_mean": sum(completions) / n,
        "completion_length_min": min(completions),
        "completion_length_max": max(completions),
        "sequence_length_imbalance": (max(total) - min(total)) / max(1.0, sum(total) / n),
        "shape_mismatch": 0,
        "device_mismatch": 0,
        "dtype_mismatch": 0,
    }
    if sum(total):
        expected["unk_ratio"] = unknown / sum(total)
    assert values == {f"data.{name}": pytest.approx(value, abs=1e-12) for name, value in expected.items()}
    tally = data.Tally()
    one_by_one = [harvest(data.observe(**b, **TOKENS, **limits, so_far=tally)) for b in batches]
    assert one_by_one[-1].values == values
    assert one_by_one[-1].samples == harvest(*packs).samples


def test_rows_behind_a_count_are_named():
    b = batch()
    for name in b:
        b[name] = torch.ones_like(b[name])
    b["completion_ids_BC"][3, 2] = 40
    b["prompt_mask_BP"][1] = b["completion_mask_BC"][1] = b["completion_mask_BC"][4] = 0
    samples = harvest(data.observe(**b, **TOKENS)).samples
    assert samples["data.out_of_vocabulary"] == (3,)
    assert samples["data.empty_rows"] == (1,)
    assert samples["data.masked_completions"] == (1, 4)
    second = harvest(data.observe(**batch(), **TOKENS), data.observe(**b, **TOKENS)).samples
    assert 5 + 3 in second["data.out_of_vocabulary"]


def test_whole_sequences_with_a_loss_mask_are_read_as_well():
    ids = torch.tensor([[0, 5, 6, 7, 1], [8, 9, 10, 11, 12]])
    attention = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
    loss_mask = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1]])
    values = harvest(
        data.observe(input_ids_BT=ids, attention_mask_BT=attention, completion_mask_BC=loss_mask, **TOKENS)
    ).values
    assert values["data.tokens"] == 9
    assert values["data.prompt_length_mean"] == 2
    assert values["data.completion_length_max"] == 3
    assert values["data.eos_ratio"] == 0.5
    assert values["data.pad_ratio"] == pytest.approx(0.1)


def test_several_end_tokens_count():
    b = batch()
    b["completion_ids_BC"][:] = 7
    b["completion_mask_BC"][:] = 1
    b["completion_ids_BC"][0, 1], b["completion_ids_BC"][1, 2] = 30, 31
    values = harvest(data.observe(**b, eos_id=[30, 31], max_completion_length=6)).values
    assert values["data.eos_ratio"] == pytest.approx(0.4)
    assert values["data.truncated_ratio"] == pytest.approx(0.6)


def test_shapes_devices_and_dtypes_that_do_not_fit_are_named():
    b = batch()
    b["prompt_mask_BP"] = b["prompt_mask_BP"][:, 1:]
    others = {
        "old_per_token_logps": torch.zeros(5, 5),
        "ref_per_token_logps": torch.zeros(5, 6, device="meta"),
        "sampling_per_token_logps": torch.zeros(5, 6, dtype=torch.long),
        "labels": torch.zeros(5, 10),
        "num_items_in_batch": torch.tensor(3),
        "pixel_values": torch.zeros(7, 3),
    }
    found = harvest(
        data.observe(**b, advantages_B=torch.zeros(4), others=others, model_device=torch.device("cpu"), **TOKENS)
    )
    assert found.subjects["data.shape_mismatch"] == "prompt_mask, advantages, old_per_token_logps"
    assert found.subjects["data.device_mismatch"] == "ref_per_token_logps"
    assert found.subjects["data.dtype_mismatch"] == "sampling_per_token_logps, labels"
    assert found.values["data.samples"] == 5
    assert "data.completion_tokens" in found.values
    assert "data.tokens" not in found.values  # unknown without the prompt's mask, not zero


def test_masks_that_are_not_binary_are_counted():
    b = batch()
    b["completion_mask_BC"] = b["completion_mask_BC"].float()
    b["completion_mask_BC"][0, 0] = 0.5
    b["prompt_mask_BP"][2, 1] = 2
    assert harvest(data.observe(**b)).values["data.nonbinary_mask"] == 2
    b["prompt_mask_BP"] = b["prompt_mask_BP"].bool()
    assert harvest(data.observe(**b)).values["data.nonbinary_mask"] == 1


def test_masks_of_bool_have_no_other_values_and_say_so():
    b = {name: tensor.bool() if "mask" in name else tensor for name, tensor in batch().items()}
    assert harvest(data.observe(**b)).values["data.nonbinary_mask"] == 0


def test_what_one_micro_batch_does_not_know_is_unknown_for_all():
    tally = data.Tally()
    first = harvest(data.observe(**batch(), **TOKENS, so_far=tally)).values
    without = {name: tensor for name, tensor in batch(1).items() if name != "completion_mask_BC"}
    second = harvest(data.observe(**without, **TOKENS, so_far=tally)).values
    assert "data.completion_tokens" in first
    assert "data.completion_tokens" not in second
    assert second["data.prompt_length_mean"] == pytest.approx(
        (batch()["prompt_mask_BP"].sum() + batch(1)["prompt_mask_BP"].sum()).item() / 10
    )


def test_an_empty_batch_and_no_batch_have_no_shares():
    empty = {name: tensor[:0] for name, tensor in batch().items()}
    assert harvest(data.observe(**empty, **TOKENS)).values["data.samples"] == 0
    assert harvest(data.observe()).values["data.samples"] == 0


def test_reading_a_batch_waits_for_nothing_changes_nothing_and_keeps_nothing():
    b = batch()
    with Untouched(*b.values()), SyncCounter() as counter:
        pack = data.observe(**b, **TOKENS, max_completion_length=6, max_prompt_length=4)
    assert counter.calls == []
    assert counter.operations < 120
    seen = [weakref.ref(tensor) for tensor in b.values()]
    del b
    gc.collect()
    assert [ref() for ref in seen] == [None] * 4
    assert harvest(pack).values["data.samples"] == 5


def test_groups_with_two_prompts_and_repeated_prompts_are_found():
    prompts = ["a", "a", "b", "c", "a", "a"]
    completions = ["x", "x", "y", "z", "w", "w"]
    values = observe_groups(prompts, completions, group_size=2)
    assert values["data.mixed_groups"] == 1
    assert values["data.duplicate_prompt_ratio"] == pytest.approx(2 / 4)
    assert values["data.duplicate_completion_ratio"] == pytest.approx((0.5 + 0 + 0.5) / 3)
    assert observe_groups([], [], group_size=2) == {}


def test_prompts_compare_by_content_whatever_holds_them():
    chat = [{"role": "user", "content": "1+1\ud800"}]
    assert digest(chat) == digest([dict(reversed(chat[0].items()))])
    assert digest(torch.tensor([1, 2])) == digest([1, 2]) == digest((1, 2))
    assert digest("ab") != digest("ba")
    assert observe_groups([chat, chat, "x", "x"], group_size=2)["data.mixed_groups"] == 0
