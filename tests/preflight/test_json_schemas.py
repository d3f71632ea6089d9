"""What a program reads keeps its documented shape: each command's JSON against the schema of its version in docs/schemas."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from grpo_sentinel.cli import main
from grpo_sentinel.diagnosis.triage import diagnose
from grpo_sentinel.history.logs.lines import Line

DOCS = Path(__file__).parents[2] / "docs"
SCHEMAS = {path.stem: json.loads(path.read_text()) for path in (DOCS / "schemas").glob("*.json")}
sys.path.append(str(Path(__file__).parents[1] / "diagnosis"))


def validate(body: Any, name: str) -> None:
    jsonschema.Draft202012Validator(SCHEMAS[name]).validate(body)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"what is {n}?", "answer": str(n), "reward": n / 9} for n in range(9)]
    (tmp_path / "good.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "bad.jsonl").write_text(
        (tmp_path / "good.jsonl").read_text() + "{\n" * 5 + json.dumps({**rows[0], "reward": "x\u0000"})
    )
    (tmp_path / "good.yaml").write_text(
        "num_generations: 8\nper_device_train_batch_size: 8\nlearning_rate: 1.0e-6\nsave_strategy: steps\nsave_steps: 50\n"
    )
    (tmp_path / "bad.yaml").write_text("num_generations: 1\nper_device_train_batch_size: 8\nlearning_rate: 0\n")
    (tmp_path / "r.py").write_text("def good(completions, answer, **kw):\n    return [float(a == c) for a, c in zip(answer, completions)]\n"
                                   "def bad(completions, **kw):\n    return [float('nan')] * len(completions)\n")  # fmt: skip
    return tmp_path


@pytest.mark.parametrize(
    "command",
    ["data good.jsonl", "data bad.jsonl --reward-range 0 1 --eval good.jsonl --write-clean clean.jsonl", "config good.yaml", "config bad.yaml --world-size 8",
     "reward r.py:good --data good.jsonl", "reward r.py:bad --data good.jsonl", "environment"],
)  # fmt: skip
def test_the_json_of_a_check_keeps_its_shape(world: Path, capsys: Any, command: str) -> None:
    code = main(["check", *command.split(), "--json"])
    body = json.loads(capsys.readouterr().out)
    validate(body, "check-1")
    assert body["schema"] == f"grpo-sentinel/{command.split()[0]}-check"
    assert code == (0 if body["clean"] else 1)


def test_the_json_of_all_checks_keeps_its_shape(world: Path, capsys: Any) -> None:
    main(["check", "all", "--data", "bad.jsonl", "--reward", "r.py:bad", "--trainer-config", "bad.yaml", "--json"])
    body = json.loads(capsys.readouterr().out)
    validate(body, "all-check-1")
    assert set(body["checks"]) == {"environment", "config", "data", "reward"}


def test_the_json_of_every_diagnosis_keeps_its_shape() -> None:
    import thread_rows

    for _, _, files in thread_rows.cases():
        lines = [Line(name, number, text) for name, texts in files.items() for number, text in enumerate(texts, 1)]
        validate(json.loads(json.dumps(diagnose(lines).as_json())), "diagnosis-1")


def test_every_key_of_a_schema_stands_in_the_guide_of_its_command() -> None:
    for name, guide in (("check-1", "checks.md"), ("all-check-1", "checks.md"), ("diagnosis-1", "diagnose.md")):
        text = (DOCS / guide).read_text()
        assert f"schemas/{name}.json" in text
        for key in SCHEMAS[name]["properties"]:
            assert f"`{key}" in text, key
