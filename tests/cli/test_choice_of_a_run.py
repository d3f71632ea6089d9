"""One way to name a run over all commands, and a launched one that has recorded nothing yet is told of."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from run_support import HERE, Started, cli, until

from grpo_sentinel.cli import main
from grpo_sentinel.cli.launches import waiting
from grpo_sentinel.cli.runs import find_run
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.launches import noted
from grpo_sentinel.protocol import user_dir

TAKES_A_RUN = ["status", "top", "halt", "checkpoint", "capture", "report", "resume-point"]


@pytest.mark.parametrize("command", TAKES_A_RUN)
def test_every_command_takes_the_run_as_word_and_as_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for words in (["nosuch"], ["--run-id", "nosuch"]):
        said.append((main([command, *words]), capsys.readouterr().err))
    assert said[0] == said[1]
    assert "nosuch" in said[0][1] or command in ("top", "report"), "top wants a terminal, report a history"
    assert main([command, "a", "--run-id", "b"]) == 2
    assert "give one" in capsys.readouterr().err


def test_one_look_at_a_run_that_is_not_there_is_a_mistake(started: Started) -> None:
    for run in ("one", "two"):
        started.trainer(run, "--stdin")
    done = cli("run", "--once", "--run-id", "nope")
    assert done.returncode == 2
    assert "there is no run nope in" in done.stderr
    told = done.stderr.strip().splitlines()[-1].partition("runs there: ")[2]
    assert set(told.split(", ")) == {"one", "two"}
    assert cli("run", "--once", "--run-id", "one").returncode == 0


def test_a_run_of_the_very_name_goes_before_its_restarts_while_it_lives(started: Started) -> None:
    first = started.trainer("exp", "--stdin")
    started.trainer("exp-r1", "--stdin")
    started.trainer("exp-r2", "--stdin")
    assert find_run(Config(), "exp").name == "exp"
    first.kill()
    first.wait(10)
    until(lambda: find_run(Config(), "exp", alive_only=True).name == "exp-r2")
    assert find_run(Config(), "exp-r1").name == "exp-r1"


def test_status_tells_of_a_launched_command_that_waits_for_its_trainer(started: Started, tmp_path: Path) -> None:
    marker, config = tmp_path / "go", tmp_path / "sentinel.yaml"
    left_over = user_dir(tmp_path / "rings") / ".launches" / "killed.json"
    left_over.parent.mkdir(mode=0o700, parents=True)
    with noted(tmp_path / "rings", "killed", os.getpid(), ["train"], sidecar=True):
        text = left_over.read_text().replace(f'"pid": {os.getpid()},', '"pid": 1,')
    left_over.write_text(text)
    config.write_text(json.dumps({"http": {"port": 0}, "launch": {"linger_seconds": 0}}))
    script = (
        f"while [ ! -e {marker} ]; do sleep 0.05; done; exec {sys.executable} {HERE / 'fake_trainer.py'} --steps 9999"
    )
    process = started.cli("launch", "--no-daemon", "--config", config, "--run-id", "early", "--", "sh", "-c", script)
    until(lambda: waiting([tmp_path / "rings"]))
    assert not left_over.exists(), "what a killed launcher left behind goes with the next"
    shown = cli("status")
    assert shown.returncode == 0
    assert "run early" in shown.stdout
    assert "waits for its trainer's first record" in shown.stdout.replace("\n", " ")
    assert "no finding is firing" not in shown.stdout, "unknown is not healthy"
    body = json.loads(cli("status", "--run-id", "early", "--json").stdout)
    assert (body["run_id"], [one["run_id"] for one in body["waiting"]]) == ("early", ["early"])
    asked = cli("halt")
    assert asked.returncode == 2
    assert "waits for its trainer's first record" in asked.stderr
    marker.touch()
    until(lambda: not waiting([tmp_path / "rings"], list((tmp_path / "rings").glob("*/early"))))
    assert "waits for" not in cli("status").stdout
    process.send_signal(signal.SIGTERM)
    process.wait(20)
    assert not list(tmp_path.rglob("early.json"))
