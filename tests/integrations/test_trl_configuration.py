"""What the agent takes from TRL's own configuration, and puts around its reward functions, whatever the version."""

import asyncio
import inspect
from types import SimpleNamespace

import pytest

pytest.importorskip("trl")
from trl import GRPOConfig

from grpo_sentinel.agent.probes.reward import CallMeter
from grpo_sentinel.integrations.trl import _sampling_weights, timed_coroutine

pytestmark = pytest.mark.torch


def test_an_asynchronous_reward_function_stays_one_and_its_failures_are_counted():
    async def judge(prompts, completions):
        if not prompts:
            raise ValueError("nothing to judge")
        return [1.0]

    calls = CallMeter()
    timed = timed_coroutine(judge, calls, "judge")
    assert inspect.iscoroutinefunction(timed)
    assert asyncio.run(timed(["p"], completions=["c"])) == [1.0]
    with pytest.raises(ValueError, match="nothing to judge"):
        asyncio.run(timed([], ["c"]))
    found = calls.harvest()
    assert found["reward.func_failures[judge]"] == 1
    assert 0 <= found["reward.func_latency_seconds[judge]"] < 5


def test_the_cap_of_the_weights_against_the_rollout_engine_and_what_they_are_of(tmp_path):
    plain = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    assert _sampling_weights(plain) == {"sampling_cap": 3.0, "sampling_level": "sequence"}
    tokens = GRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_max=2.5,
    )  # fmt: skip
    assert _sampling_weights(tokens) == {"sampling_cap": 2.5, "sampling_level": "token"}
    older = SimpleNamespace(vllm_importance_sampling_cap=2.0)
    assert _sampling_weights(older) == {"sampling_cap": 2.0, "sampling_level": "token"}
    assert _sampling_weights(SimpleNamespace())["sampling_cap"] is None, "the probe's own then"
