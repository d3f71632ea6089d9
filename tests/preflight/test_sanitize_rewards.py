"""Rewards are repaired only where somebody asked for it, every change is counted, and the count reaches the agent."""

from __future__ import annotations

import logging
import math
import subprocess
import sys

import pytest

import grpo_sentinel
from grpo_sentinel import sanitize_rewards
from grpo_sentinel.sanitize import sanitized_totals

BAD = [0.5, math.nan, math.inf, -math.inf, -3.0, 7.0, None]


def test_everything_that_is_changed_is_counted_once_under_what_was_wrong_with_it() -> None:
    rewards, counts = sanitize_rewards(BAD, low=-1.0, high=1.0)
    assert rewards == [0.5, -1.0, -1.0, -1.0, -1.0, 1.0, None]
    assert (counts.total, counts.nan, counts.infinite, counts.low, counts.high, counts.abstained) == (7, 1, 2, 1, 1, 1)
    assert counts.changed == 5


def test_good_rewards_come_back_unchanged_and_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rewards, counts = sanitize_rewards([0.0, 1.0, -1.0], low=-1.0, high=1.0, name="quiet")
    assert (rewards, counts.changed, caplog.records) == ([0.0, 1.0, -1.0], 0, [])


def test_a_range_is_rescaled_to_another_and_an_infinite_reward_is_no_prize() -> None:
    assert sanitize_rewards([0, 5, 10, math.inf], low=0, high=10, scale_to=(-1, 1)).rewards == [-1, 0, 1, -1]
    assert sanitize_rewards([math.inf, math.nan], replacement=0.25).rewards == [0.25, 0.25]
    assert sanitize_rewards([math.nan]).rewards == [0.0]


@pytest.mark.parametrize(("named", "match"), [
    ({"low": 1, "high": 0}, "low < high"), ({"low": 1, "high": 1}, "low < high"), ({"scale_to": (0, 1)}, "give low and high"),
    ({"low": math.nan}, "finite"), ({"replacement": math.inf}, "finite"),
])  # fmt: skip
def test_a_range_that_makes_no_sense_is_refused_in_a_sentence(named: dict[str, float], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        sanitize_rewards([0.0], **named)  # type: ignore[arg-type]


def test_counts_add_up_by_name_and_the_first_and_the_tenth_change_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="grpo_sentinel"):
        for _ in range(12):
            sanitize_rewards([math.nan], name="counted")
    assert sanitized_totals()["counted"] == 12
    assert [record.args[2] for record in caplog.records] == [1, 10]  # type: ignore[index]


def test_the_helper_loads_no_torch() -> None:
    code = "import sys, grpo_sentinel; grpo_sentinel.sanitize_rewards([1.0]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
    assert "sanitize_rewards" in grpo_sentinel.__all__


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_tensor_keeps_shape_dtype_and_counts_as_a_list_does(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    given = torch.tensor([BAD[:6], [0.0] * 6], dtype=getattr(torch, dtype))
    before = given.clone()
    rewards, counts = sanitize_rewards(given, low=-1.0, high=1.0, scale_to=(0.0, 1.0))
    wanted, same = sanitize_rewards([*BAD[:6], *[0.0] * 6], low=-1.0, high=1.0, scale_to=(0.0, 1.0))
    assert rewards.flatten().tolist() == pytest.approx(wanted)
    assert (rewards.dtype, rewards.shape, counts) == (given.dtype, given.shape, same)
    assert torch.equal(torch.nan_to_num(given), torch.nan_to_num(before)), "the caller's tensor was changed"


@pytest.mark.torch
def test_an_attached_agent_pushes_the_counts_as_a_signal() -> None:
    torch = pytest.importorskip("torch")
    from grpo_sentinel.agent.guard import Guard
    from grpo_sentinel.agent.observing import Observer
    from grpo_sentinel.agent.settings import Settings

    sanitize_rewards([math.nan, 9.0], high=1.0, name="judge")
    values = Observer(Settings(), Guard()).scores(torch.tensor([[1.0], [0.0]]), {"func_names": ["judge"]})
    assert values["reward.func_sanitized[judge]"] == 2.0
