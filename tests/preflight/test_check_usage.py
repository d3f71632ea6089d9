"""What a newcomer gives by mistake is one sentence, or a fault with its cause; nothing passes for want of a look."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from grpo_sentinel.cli import main

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.fixture
def rows(tmp_path: Path) -> str:
    (tmp_path / "r.py").write_text(
        "def good(completions, answer, **kw):\n    return [float(c == a) for c, a in zip(completions, answer)]\n"
        "class Reward:\n    def __call__(self, completions, answer, **kw):\n        return good(completions, answer)\n"
        "made = Reward()\n"
    )
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n} + {n}?", "answer": str(2 * n)}) + "\n" for n in range(2, 30)))
    return str(path)


def refused(capsys: Any, *command: str) -> str:
    assert main(["check", *command]) == 2, command
    told = capsys.readouterr()
    assert (told.err.count("\n"), told.out) == (1, "")
    return str(told.err)


def checked(capsys: Any, *command: str) -> dict[str, Any]:
    assert main(["check", *command, "--json"]) in (0, 1)
    body: dict[str, Any] = json.loads(capsys.readouterr().out)
    return body


@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1"])
def test_a_time_that_is_none_is_refused_by_every_check_that_takes_one(value: str, rows: str, capsys: Any) -> None:
    for check in (["reward", f"{Path(rows).parent / 'r.py'}:good"], ["policy", "m"], ["gradients", "m"], ["all"]):
        assert "--timeout" in refused(capsys, *check, "--data", rows, "--timeout", value)


@pytest.mark.parametrize("options", [
    ("--max-std", "-1"), ("--max-std", "nan"), ("--min-rank-correlation", "2"), ("--reward-range", "1", "0"),
    ("--reward-range", "nan", "nan"), ("--reward-range", "0", "inf"),
])  # fmt: skip
def test_limits_of_a_reward_that_make_no_sense_are_refused(options: tuple[str, ...], rows: str, capsys: Any) -> None:
    told = refused(capsys, "reward", f"{Path(rows).parent / 'r.py'}:good", "--data", rows, *options)
    assert options[0] in told


@pytest.mark.parametrize("line", [
    "timeout: .nan", "timeout: 0", "timeout: -5", "reward_low: .inf", "reward_low: 1\nreward_high: 0",
])  # fmt: skip
def test_the_file_of_check_all_is_held_to_the_same(line: str, rows: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "all.yaml").write_text(f"data: {rows}\n{line}\n")
    assert line.partition(":")[0] in refused(capsys, "all", "--config", str(tmp_path / "all.yaml"))


@pytest.mark.parametrize("option", ["--prompt", "--answer", "--response"])
def test_a_field_that_no_row_has_is_refused_with_the_fields_there_are(option: str, rows: str, capsys: Any) -> None:
    told = refused(capsys, "reward", f"{Path(rows).parent / 'r.py'}:good", "--data", rows, option, "colour")
    assert f"{rows}: {option} colour" in told
    assert "answer, prompt" in told


def test_a_prompt_field_that_no_row_has_is_refused_by_check_data(rows: str, capsys: Any) -> None:
    assert f"{rows}: --prompt colour" in refused(capsys, "data", rows, "--prompt", "colour")


def test_a_class_is_no_reward_and_an_instance_of_it_is(rows: str, capsys: Any) -> None:
    assert "is a class" in refused(capsys, "reward", f"{Path(rows).parent / 'r.py'}:Reward", "--data", rows)
    assert checked(capsys, "reward", f"{Path(rows).parent / 'r.py'}:made", "--data", rows)["clean"]


def test_an_evaluation_set_that_holds_nothing_is_refused_and_one_that_is_torn_is_not_said_to_be_compared(
    rows: str, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "none.jsonl").write_text("\n")
    assert "none.jsonl" in refused(capsys, "data", rows, "--eval", str(tmp_path / "none.jsonl"))
    (tmp_path / "torn.jsonl").write_text('{"prompt": "another one?"}\n{"prompt": "torn\n')
    body = checked(capsys, "data", rows, "--eval", str(tmp_path / "torn.jsonl"))
    assert any("1 row of the evaluation set" in line for line in body["not_seen"])
    assert any(line == "1 prompt of the evaluation set" for line in body["looked_at"])


def test_data_that_was_never_fetched_is_told_as_that(tmp_path: Path, capsys: Any) -> None:
    for name, text, word in (
        ("a.jsonl", POINTER, "git lfs pull"), ("a.parquet", POINTER, "git lfs pull"),
        ("b.jsonl", "<!DOCTYPE html>\n<html><body>404</body></html>\n", "HTML"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        (fault,) = checked(capsys, "data", str(tmp_path / name))["faults"]
        assert fault["code"] == "unreadable"
        assert fault["count"] == 1
        assert word in fault["examples"][0]


@pytest.mark.torch
def test_a_model_that_was_never_fetched_or_is_put_together_of_two_is_one_sentence(
    policy_dir: Path, tmp_path: Path, capsys: Any
) -> None:
    model = tmp_path / "model"
    shutil.copytree(policy_dir, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "hidden_size": 64}))
    assert "other shapes" in refused(capsys, "policy", str(model))
    (model / "model.safetensors").write_text(POINTER)
    for check in ("policy", "gradients"):
        assert "git lfs pull" in refused(capsys, check, str(model))


def test_torn_files_of_a_tokenizer_are_not_taken_for_missing_ones(
    policy_dir: Path, tmp_path: Path, capsys: Any
) -> None:
    model = tmp_path / "model"
    shutil.copytree(policy_dir, model)
    (model / "generation_config.json").write_text("{}")
    assert checked(capsys, "environment", "--policy", str(model))["schema"] == "grpo-sentinel/environment-check"
    (model / "tokenizer.json").write_text('{"version"')
    assert "tokenizer.json" in refused(capsys, "environment", "--policy", str(model))


@pytest.mark.torch
def test_a_model_directory_without_tokenizer_is_refused_by_check_data(
    policy_dir: Path, rows: str, tmp_path: Path, capsys: Any
) -> None:
    model = tmp_path / "model"
    shutil.copytree(policy_dir, model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()
    told = refused(capsys, "data", rows, "--tokenizer", str(model))
    assert "token" in told
    assert str(model) in told


@pytest.mark.torch
def test_messages_without_a_chat_template_are_noted(
    policy_dir: Path, prompts_file: str, rows: str, tmp_path: Path, capsys: Any
) -> None:
    model = tmp_path / "model"
    shutil.copytree(policy_dir, model)
    assert not any(
        "chat template" in one for one in checked(capsys, "data", prompts_file, "--tokenizer", str(model))["notes"]
    )
    (model / "chat_template.jinja").unlink()
    body = checked(capsys, "data", prompts_file, "--tokenizer", str(model))
    assert any("no chat template" in one for one in body["notes"])
    assert not any("chat template" in one for one in checked(capsys, "data", rows, "--tokenizer", str(model))["notes"])
