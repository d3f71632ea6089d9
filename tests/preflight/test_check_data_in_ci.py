"""The recipe for continuous integration in docs/checks.md does what it says, executed as a runner executes it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "checks.md").read_text(encoding="utf-8")
RECIPE = TEXT[TEXT.index("## In continuous integration") :].partition("\n## ")[0]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", RECIPE, re.MULTILINE | re.DOTALL)
EACH, ONLY_BROKEN = (text for language, text in BLOCKS if language == "sh")
(JOB,) = (yaml.safe_load(text) for language, text in BLOCKS if language == "text")

GOOD = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1), "reward": n / 40} for n in range(40)]
BROKEN = [*GOOD, {"prompt": "", "answer": "1", "reward": 0.5}]
DOUBTFUL = [*GOOD, {"prompt": "hi<|im_end|>", "answer": "1", "reward": 0.5}]
CONFIG = {"num_generations": 8, "per_device_train_batch_size": 8, "learning_rate": 1e-6, "save_steps": 50,
          "lr_scheduler_type": "constant"}  # fmt: skip


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with good data and settings, and a runner's PATH with the command on it."""
    command = tmp_path / "bin" / "grpo-sentinel"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m grpo_sentinel.cli "$@"\n')
    command.chmod(0o755)
    (tmp_path / "data").mkdir()
    (tmp_path / "grpo.yaml").write_text(yaml.safe_dump(CONFIG))
    (tmp_path / "preflight.yaml").write_text("data: data/train.jsonl\ntrainer_config: grpo.yaml\nworld_size: 8\n")
    fill(tmp_path, GOOD)
    return tmp_path


def fill(repository: Path, rows: list[dict[str, Any]]) -> None:
    (repository / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(repository: Path, script: str) -> int:
    """Run as a runner does: `bash -e`, with nothing but the repository's folder and PATH."""
    env = {**os.environ, "PATH": f"{repository / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script], cwd=repository, env=env, timeout=120,
        capture_output=True, text=True,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode


def faults(repository: Path, name: str) -> list[str]:
    return [one["code"] for one in json.loads((repository / name).read_text())["faults"]]


def test_the_step_passes_on_a_good_repository_and_fails_on_findings_with_the_report_written(repository: Path) -> None:
    assert run(repository, EACH) == 0
    assert (faults(repository, "data.json"), faults(repository, "config.json")) == ([], [])
    (repository / "grpo.yaml").write_text(yaml.safe_dump({**CONFIG, "fp16": True, "bf16": True}))
    assert run(repository, EACH) == 1
    assert faults(repository, "config.json") == ["fp16"]
    fill(repository, BROKEN)
    assert run(repository, EACH) == 1
    assert faults(repository, "data.json") == ["empty-prompt"]
    assert run(repository, EACH.replace("data/*.jsonl", "date/*.jsonl")) == 2


def test_the_job_runs_every_check_and_keeps_the_report_also_when_it_fails(repository: Path) -> None:
    steps = JOB["preflight"]["steps"]
    (script,) = (step["run"] for step in steps if "check all" in step.get("run", ""))
    (kept,) = (step for step in steps if step.get("if") == "always()")
    for rows, found in ((GOOD, []), (BROKEN, ["empty-prompt"])):
        fill(repository, rows)
        code = run(repository, script)
        report = json.loads((repository / kept["with"]["path"]).read_text())
        assert {"environment", "config", "data"} <= set(report["checks"])
        assert [one["code"] for one in report["checks"]["data"]["faults"]] == found
        assert report["clean"] == (code == 0)
        assert code == 1 or not found  # the node of a test may have findings of its own


def test_the_job_that_fails_only_where_a_run_would_break_tells_levels_apart(repository: Path) -> None:
    for rows, code in ((GOOD, 0), (DOUBTFUL, 0), (BROKEN, 1)):
        fill(repository, rows)
        assert run(repository, ONLY_BROKEN) == code
    assert run(repository, ONLY_BROKEN.replace("data/*.jsonl", "date/*.jsonl")) != 0
