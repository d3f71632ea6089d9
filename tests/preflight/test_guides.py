"""Every guide can be followed as it stands: its files are made, its commands run, and each ends as the guide says."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from grpo_sentinel.cli import main

pytestmark = pytest.mark.torch
GUIDES = sorted((Path(__file__).resolve().parents[2] / "docs" / "guides").glob("*.md"))
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_EXIT = re.compile(r"#\s*exit ([0-9 or]+)$")

SAYS = {
    "before-you-start": {
        "check data train.jsonl --eval eval.jsonl --tok": ["[poison]", "[empty-answer]", "[leakage]"],
        "check config": ["[groups-do-not-fit]", "[never-saves]"],
    },
    "is-my-reward-model-sane": {
        "rewards.py:thorough": ["[length]", "[canary-wins]"], "rewards.py:ratio": ["[not-finite]", "[raises]"],
        "check reward models/reward_model": ["[canary-wins]"],
    },
    "my-run-just-died": {
        "diagnose": ["reward", "ZeroDivisionError"], "resume-point": ["checkpoint-4"], "--tolerance": ["first difference"],
    },
}  # fmt: skip


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_the_guide_can_be_followed_to_its_end(
    guide: Path, policy_dir: Path, reward_dir: Path, made: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    shutil.copytree(policy_dir, tmp_path / "models" / "policy")
    shutil.copytree(reward_dir, tmp_path / "models" / "reward_model")
    shutil.copytree(made, tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    expected, told = SAYS[guide.stem], set()
    commands = 0
    for language, text in _BLOCK.findall(guide.read_text()):
        if language == "python":
            (tmp_path / "block.py").write_text(text)
            runpy.run_path(str(tmp_path / "block.py"))
        if language != "sh":
            continue
        rest = []
        for line in text.splitlines():
            if not line.startswith("grpo-sentinel "):
                rest.append(line)
                continue
            if rest:
                subprocess.run(["bash", "-ec", "\n".join(rest)], check=True, timeout=60)
                rest = []
            allowed = _EXIT.search(line)
            assert allowed, f"the guide does not say how this ends: {line}"
            code = main(shlex.split(line, comments=True)[1:])
            out = capsys.readouterr().out
            assert code in map(int, allowed[1].split(" or ")), f"{line}\n{out}"
            commands += 1
            for part, words in expected.items():
                if part in line and code and part not in told:
                    assert [word for word in words if word not in out] == [], f"{line}\n{out}"
                    told.add(part)
                elif part in line and part == "resume-point":
                    assert words[0] in out
                    told.add(part)
    assert commands >= 5
    assert told == set(expected)


def test_every_guide_is_expected_to_say_something() -> None:
    assert {path.stem for path in GUIDES} == set(SAYS)
