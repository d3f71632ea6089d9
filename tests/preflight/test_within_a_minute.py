"""Every check that runs a model ends within a minute on its default sample, also with 100 million parameters on a CPU."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models_made
import pytest

from grpo_sentinel.preflight.everything import AllOptions, check_everything
from grpo_sentinel.preflight.gradients import check_gradients
from grpo_sentinel.preflight.policy import PolicyOptions, check_policy
from grpo_sentinel.preflight.reward import check_reward

pytestmark = [pytest.mark.torch, pytest.mark.slow]
REWARD = (
    "def accuracy(completions, answer, **kw):\n    return [float(a in str(c)) for c, a in zip(completions, answer)]\n"
)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy and a reward model of 99 million random parameters each, data, and a reward function."""
    from transformers import Qwen3ForCausalLM, Qwen3ForSequenceClassification

    root = tmp_path_factory.mktemp("large")
    size = {"vocab_size": 32_000, "hidden_size": 640, "intermediate_size": 2560, "num_hidden_layers": 12}
    size |= {"num_attention_heads": 10, "num_key_value_heads": 10, "head_dim": 64, "max_position_embeddings": 1024}
    for name, kind, extra in (
        ("policy", Qwen3ForCausalLM, {}),
        ("reward", Qwen3ForSequenceClassification, {"num_labels": 1}),
    ):
        made = models_made.tokenizer(root / name)
        model = kind(models_made.config(made, **size, **extra))
        assert sum(one.numel() for one in model.parameters()) > 90e6
        model.save_pretrained(root / name)
    rows = [{"prompt": [{"role": "user", "content": f"What is {n} plus {n + 3}? " + "Explain it. " * 8}],
             "completion": [{"role": "assistant", "content": f"It is {2 * n + 3}."}], "answer": str(2 * n + 3)} for n in range(60)]  # fmt: skip
    (root / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "rewards.py").write_text(REWARD)
    return root


def _all(root: Path) -> Any:
    data = (str(root / "train.jsonl"),)
    return check_everything(AllOptions(
        data=data, policy=str(root / "policy"), reference=str(root / "policy"), reward_model=str(root / "reward"),
        reward=f"{root / 'rewards.py'}:accuracy",
    ))  # fmt: skip


CHECKS: dict[str, Callable[[Path], Any]] = {
    "policy": lambda root: check_policy(str(root / "policy"), PolicyOptions(data=(str(root / "train.jsonl"),), reward=f"{root / 'rewards.py'}:accuracy")),
    "gradients": lambda root: check_gradients(str(root / "policy")),
    "reward": lambda root: check_reward(str(root / "reward"), [str(root / "train.jsonl")]),
    "all": _all,
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_of_a_model_with_100_million_parameters_takes_less_than_a_minute_of_processor_time(
    large: Path, name: str
) -> None:
    began = time.process_time()  # a busy machine stretches the wall clock, not this
    report = CHECKS[name](large)
    assert time.process_time() - began < 60
    reports = report.reports.values() if name == "all" else [report]
    assert all(one.looked_at for one in reports)
    left_out = [line for one in reports for line in one.not_seen if "samples" in line and "--timeout" in line]
    assert left_out or name in ("reward", "gradients")  # and it says so; an idle machine does all of these in its time
