"""Whatever a reward does to its process, the command has an answer and JSON that can be read."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from grpo_sentinel.cli import main

REWARDS = r"""
import ctypes, os, re, sys, time

def good(completions, answer, **kw):
    return [float(c == a) for c, a in zip(completions, answer)]

def exits(completions, answer, **kw):
    os._exit(4)

def crashes(completions, answer, **kw):
    if "" in completions:
        ctypes.string_at(0)
    return good(completions, answer)

def crashes_together(completions, answer, **kw):
    if len(completions) > 30:
        ctypes.string_at(0)
    return good(completions, answer)

def killed(completions, answer, **kw):
    os.kill(os.getpid(), 9)

def leaves(completions, answer, **kw):
    sys.exit(3)

def never_comes_back(completions, answer, **kw):
    re.match(r"(a+)+$", "a" * 60 + "b")  # holds the interpreter for years

def policy_reward(completions, **kw):
    os._exit(4)
"""


@pytest.fixture
def world(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "ending.py").write_text(REWARDS)
    rows = ({"prompt": f"What is {n} + 0?", "answer": str(n)} for n in range(10, 50))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path / "ending.py"), str(tmp_path / "a.jsonl")


def checked(capsys: Any, *command: str) -> tuple[int, dict[str, Any]]:
    code = main(["check", *command, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("name", "how", "where"), [
    ("exits", "exit status 4", "a.jsonl:1 ["), ("crashes", "SIGSEGV", "a.jsonl:1, empty ["), ("killed", "SIGKILL", "a.jsonl:1 ["),
    ("crashes_together", "SIGSEGV", "a.jsonl:1 and 39 more at once, each by itself does no harm ["),
])  # fmt: skip
def test_a_reward_that_ends_its_process_is_a_fault_with_the_input_that_does_it(
    world: tuple[str, str], capsys: Any, name: str, how: str, where: str
) -> None:
    code, body = checked(capsys, "reward", f"{world[0]}:{name}", "--data", world[1])
    (fault,) = body["faults"]
    assert (code, fault["code"], fault["level"], body["clean"]) == (1, "ends-process", "broken", False)
    assert how in fault["message"]
    assert f"{fault['message']} [".endswith(where)
    assert main(["check", "reward", f"{world[0]}:{name}", "--data", world[1]]) == 1
    assert "[ends-process]" in capsys.readouterr().out


def test_what_was_found_before_the_end_is_kept_and_what_was_not_tried_is_said(
    world: tuple[str, str], capsys: Any
) -> None:
    _, body = checked(capsys, "reward", f"{world[0]}:crashes", "--data", world[1])
    assert body["facts"]["scores"]["gold_mean"] == 1.0
    assert any("determinism" in line for line in body["looked_at"])
    assert any(line.startswith("canaries") and "ended" in line for line in body["not_seen"])


def test_sys_exit_is_an_exception_like_any_other(world: tuple[str, str], capsys: Any) -> None:
    code, body = checked(capsys, "reward", f"{world[0]}:leaves", "--data", world[1])
    assert code == 1
    assert {"raises", "no-score"} == {fault["code"] for fault in body["faults"]}
    assert not any("together" in line for line in body["faults"][1]["examples"])


def test_a_reward_that_never_gives_the_interpreter_back_is_ended_in_time(world: tuple[str, str], capsys: Any) -> None:
    began = time.monotonic()
    code, body = checked(capsys, "reward", f"{world[0]}:never_comes_back", "--data", world[1], "--timeout", "0.5")
    assert time.monotonic() - began < 20
    assert (code, [fault["code"] for fault in body["faults"]]) == (1, ["timeout"])


def test_the_answers_are_those_of_the_check_in_this_process(world: tuple[str, str], capsys: Any) -> None:
    from grpo_sentinel.preflight.reward import check_reward

    code, body = checked(capsys, "reward", f"{world[0]}:good", "--data", world[1])
    here = check_reward(f"{world[0]}:good", [world[1]])
    assert code == here.exit_code == 0
    assert (body["notes"], body["looked_at"], body["not_seen"]) == ([*here.notes], [*here.looked_at], [*here.not_seen])
    assert body["facts"].keys() == here.facts.keys()


def test_standard_input_and_what_a_shell_puts_in_place_of_a_file_are_read(world: tuple[str, str]) -> None:
    command = f"{sys.executable} -m grpo_sentinel check reward {world[0]}:good"
    for data in (f"--data - < {world[1]}", f"--data <(cat {world[1]})"):
        done = subprocess.run(
            ["bash", "-c", f"{command} {data}"], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "20 samples" in done.stdout


def test_a_module_that_ends_the_process_when_it_is_imported_is_one_sentence(
    world: tuple[str, str], tmp_path: Path, capsys: Any
) -> None:
    for name, line in (("exiting", "import os; os._exit(5)"), ("leaving", "import sys; sys.exit(5)")):
        (tmp_path / f"{name}.py").write_text(f"{line}\n")
        assert main(["check", "reward", f"{tmp_path / name}.py:f", "--data", world[1]]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "5" in error


def test_check_all_goes_on_after_a_reward_that_ends_its_process(world: tuple[str, str], capsys: Any) -> None:
    code, body = checked(capsys, "all", "--data", world[1], "--reward", f"{world[0]}:exits")
    assert code == 1
    assert [fault["code"] for fault in body["checks"]["reward"]["faults"]] == ["ends-process"]
    assert {"environment", "data", "reward"} <= body["checks"].keys()


@pytest.mark.torch
@pytest.mark.parametrize("check", ["policy", "gradients"])
def test_check_of_a_policy_goes_on_without_a_reward_that_ends_the_process(
    world: tuple[str, str], policy_dir: Path, prompts_file: str, capsys: Any, check: str
) -> None:
    code, body = checked(capsys, check, str(policy_dir), "--data", prompts_file, "--samples", "8", "--max-tokens", "4",
                         "--reward", f"{world[0]}:policy_reward")  # fmt: skip
    assert code == 1
    (fault,) = [fault for fault in body["faults"] if fault["code"] == "ends-process"]
    assert "exit status 4" in fault["message"]
    assert len(body["looked_at"]) > 1


def test_the_process_of_a_check_ends_with_the_command_however_that_ends(world: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(
        "import os, time\nfrom pathlib import Path\n"
        "def waits(completions, **kw):\n"
        f"    Path({str(tmp_path / 'half')!r}).write_text(str(os.getpid())); os.replace({str(tmp_path / 'half')!r}, {str(tmp_path / 'pid')!r})\n"
        "    time.sleep(600)\n"
    )
    command = [
        sys.executable,
        "-m",
        "grpo_sentinel",
        "check",
        "reward",
        f"{tmp_path / 'waiting.py'}:waits",
        "--data",
        world[1],
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as parent:
        until = time.monotonic() + 30
        while not (tmp_path / "pid").exists() and time.monotonic() < until:
            time.sleep(0.02)
        parent.kill()
    child = int((tmp_path / "pid").read_text())
    while _lives(child) and time.monotonic() < until:
        time.sleep(0.02)
    assert not _lives(child)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
