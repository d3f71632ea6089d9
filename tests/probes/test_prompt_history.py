"""Success rates of prompts and shares of sources equal a count over everything that was given."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from grpo_sentinel.agent.probes.prompt_history import PromptHistory


def batches(seed, count, prompts=60, size=8, chance=0.5):
    rng = random.Random(seed)
    for _ in range(count):
        chosen = [str(rng.randrange(prompts)) for _ in range(4)]
        yield [key for key in chosen for _ in range(size)], [float(rng.random() < chance * int(key) / prompts) for key in chosen for _ in range(size)]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_the_share_of_prompts_at_either_end_equals_a_count_over_the_run(seed):
    history, seen, right, total = PromptHistory(), Counter(), Counter(), Counter()
    for prompts, rewards in batches(seed, 100):
        history.add(prompts, rewards)
        seen.update(set(prompts))
        total.update(prompts)
        right.update(dict.fromkeys(prompts, 0))
        for prompt, reward in zip(prompts, rewards, strict=True):
            right[prompt] += reward
    rates = [right[p] / total[p] for p in total if seen[p] > 1]
    assert len(rates) >= 32
    expected = sum(rate < 0.05 or rate > 0.95 for rate in rates) / len(rates)
    assert history.values()["reward.endpoint_prompt_ratio"] == pytest.approx(expected)
    assert 0 < expected < 1


def test_rewards_of_any_two_values_will_do_and_of_three_there_is_no_success_rate():
    history = PromptHistory()
    for _ in range(2):
        history.add([str(n) for n in range(40)], [-1.0] * 30 + [3.0] * 10)
    assert history.values()["reward.endpoint_prompt_ratio"] == 1
    history.add(["0"], [math.nan])
    assert history.values()["reward.endpoint_prompt_ratio"] == 1
    history.add(["0"], [0.5])
    assert "reward.endpoint_prompt_ratio" not in history.values()
    history.add([str(n) for n in range(40)], [-1.0] * 40)
    assert "reward.endpoint_prompt_ratio" not in history.values(), "also later"


def test_few_prompts_and_prompts_of_one_batch_say_nothing():
    history = PromptHistory()
    history.add([str(n) for n in range(100)], [float(n % 2) for n in range(100)])
    history.add([str(n) for n in range(31)], [float(n % 2) for n in range(31)])
    assert "reward.endpoint_prompt_ratio" not in history.values()


def test_memory_of_prompts_is_bounded_and_the_oldest_go_first():
    history = PromptHistory()
    for start in range(0, 20000, 100):
        history.add([str(n) for n in range(start, start + 100)], [float(n % 2) for n in range(100)])
    assert len(history._tallies) == 2048
    assert next(iter(history._tallies)) == str(20000 - 2048)


def test_sources_are_counted_over_the_newest_500_samples():
    history = PromptHistory()
    assert history.values() == {}
    history.add_sources(["old"] * 400)
    history.add_sources(["math"] * 400 + ["code"] * 80 + [None] * 5 + ["chat"] * 20)
    assert history.values() == {"data.sources": 3, "data.source_imbalance": 20}
