"""One command runs what the given paths allow, says what it did not run, and is not stopped by one check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_sentinel.cli import main
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.everything import AllOptions, check_everything, read_options


@pytest.fixture
def world(tmp_path: Path, monkeypatch: Any) -> Path:
    """Data, a reward and settings in which nothing is wrong."""
    rows = [{"prompt": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(30)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rewards.py").write_text(
        "import re\ndef accuracy(completions, answer, **kw):\n"
        "    return [float(re.findall('[0-9]+', c)[-1:] == [a]) for c, a in zip(completions, answer)]\n"
    )
    (tmp_path / "grpo.yaml").write_text(
        "num_generations: 8\nper_device_train_batch_size: 8\nlearning_rate: 1.0e-6\nsave_steps: 50\n"
        "lr_scheduler_type: constant\n"
    )
    (tmp_path / "all.yaml").write_text(
        "data: train.jsonl\nreward: rewards.py:accuracy\ntrainer-config: grpo.yaml\nworld_size: 2\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_names_everything_and_what_is_not_named_is_not_run_and_said(world: Path, capsys: Any) -> None:
    code = main(["check", "all", "--config", "all.yaml", "--json"])
    body = json.loads(capsys.readouterr().out)
    assert (body["schema"], body["version"]) == ("grpo-sentinel/all-check", 1)
    assert list(body["checks"]) == ["environment", "config", "data", "reward"]
    assert [body["checks"][name]["clean"] for name in ("config", "data", "reward")] == [True, True, True]
    assert code == (0 if body["clean"] else 1)
    assert [line.partition(":")[0] for line in body["not_run"]] == [
        "config (sentinel)", "checkpoint", "reward (model)", "policy", "gradients",
    ]  # fmt: skip


def test_options_win_over_the_file_and_unknown_keys_are_named(world: Path) -> None:
    given = AllOptions(data=("other.jsonl",))
    options = read_options(world / "all.yaml", given)
    assert (options.data, options.reward, options.world_size) == (("other.jsonl",), "rewards.py:accuracy", 2)
    (world / "bad.yaml").write_text("datas: x\n")
    with pytest.raises(SentinelError, match="datas is no key"):
        read_options(world / "bad.yaml", AllOptions())
    (world / "bad.yaml").write_text("world_size: many\n")
    with pytest.raises(SentinelError, match="expected a number"):
        read_options(world / "bad.yaml", AllOptions())


def test_a_check_that_cannot_run_is_a_fault_and_the_others_run(world: Path) -> None:
    report = check_everything(
        AllOptions(data=("none.jsonl",), trainer_config="grpo.yaml", reward="rewards.py:accuracy")
    )
    assert report.exit_code == 2
    assert [fault.code for fault in report.reports["data"].faults] == ["not-checked"]
    assert report.reports["config"].faults == ()
    assert "check data --help" in report.reports["data"].faults[0].remedy


@pytest.mark.torch
def test_models_and_checkpoints_are_part_of_it(world: Path, policy_dir: Path, capsys: Any) -> None:
    code = main(["check", "all", "--data", "train.jsonl", "--policy", str(policy_dir), "--reference", str(policy_dir),
                 "--checkpoint", str(policy_dir), "--trainer-config", "grpo.yaml", "--world-size", "1"])  # fmt: skip
    out = capsys.readouterr().out
    assert code in (0, 1)
    for line in (
        "data: nothing found",
        "policy: nothing found",
        "gradients: nothing found",
        "checkpoint: nothing found",
    ):
        assert line in out, out
    assert "not run: reward: needs --reward" in out
