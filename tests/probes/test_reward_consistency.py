"""Scores that belong to other completions than their own are told by what the batch itself repeats."""

from __future__ import annotations

import math
import random

import pytest
import torch

from grpo_sentinel.agent.probes import reward

from .helpers import harvest

pytestmark = pytest.mark.torch
TEXTS = ["a b", "a b", "c", "d", "e", "a b", "f", "f"]  # two groups of four


def read(scores, texts=TEXTS, **more):
    return harvest(
        reward.observe(torch.tensor(scores).unsqueeze(1), ["f"], completions_B=texts, group_size=4, **more)
    ).values


def test_equal_completions_of_one_group_with_unequal_scores_are_counted():
    agree = [0.5, 0.5, 0.1, 0.2, 0.3, 0.9, 0.7, 0.7]  # "a b" of the other group answers another prompt
    assert read(agree)["reward.func_twin_mismatch[f]"] == 0
    assert read([0.5, 0.4, *agree[2:]])["reward.func_twin_mismatch[f]"] == 1
    assert read([0.5, 0.4, *agree[2:7], 0.1])["reward.func_twin_mismatch[f]"] == 2


def test_what_batching_and_rounding_do_to_a_score_is_no_mismatch_and_neither_is_a_missing_score():
    assert read([0.500001, 0.5, 0.1, 0.2, 0.3, 0.9, 0.7, 0.7])["reward.func_twin_mismatch[f]"] == 0
    assert read([math.nan, 0.5, 0.1, 0.2, 0.3, 0.9, 0.7, 0.7])["reward.func_twin_mismatch[f]"] == 0


def test_without_twins_completions_or_groups_nothing_is_said_of_them():
    scores = [float(index) for index in range(8)]
    assert "reward.func_twin_mismatch[f]" not in read(scores, [str(index) for index in range(8)])
    assert "reward.func_twin_mismatch[f]" not in read(scores, None)
    spans = reward.observe(torch.tensor(scores).unsqueeze(1), ["f"], completions_B=TEXTS)
    assert "reward.func_twin_mismatch[f]" not in harvest(spans).values


def test_scores_of_the_batch_before_under_other_completions_are_told_at_once():
    history, draw = reward.History(), random.Random(1)
    batches = [[draw.random() for _ in range(64)] for _ in range(4)]
    texts = [[f"{step} {row}" for row in range(64)] for step in range(4)]
    assert "reward.func_repeated[f]" not in read(batches[0], texts[0], history=history)
    assert read(batches[1], texts[1], history=history)["reward.func_repeated[f]"] == 0
    assert read(batches[1], texts[2], history=history)["reward.func_repeated[f]"] == 1
    assert read(batches[3], texts[3], history=history)["reward.func_repeated[f]"] == 0


def test_scores_that_repeat_because_completions_do_or_by_chance_are_no_repetition():
    draw = random.Random(2)
    fine, coarse = [draw.random() for _ in range(64)], [1.0] * 62 + [0.0] * 2
    history = reward.History()
    texts = [[f"{step} {row}" for row in range(64)] for step in range(2)]
    of_prompts = [float(row // 4) for row in range(64)]  # the same prompts, each worth what it is worth
    read(of_prompts, texts[0], history=history)
    assert "reward.func_repeated[f]" not in read(of_prompts, texts[1], history=history)
    read(fine, texts[0], history=history)
    assert "reward.func_repeated[f]" not in read(fine, texts[0], history=history)
    history = reward.History()
    read(coarse, texts[0], history=history)
    assert "reward.func_repeated[f]" not in read(coarse, texts[1], history=history)  # 13 bits
