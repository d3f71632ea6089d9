"""What programs read: JSON from requests, a pipe whose reader leaves early, the log that launch finds by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_support import Started, cli

from grpo_sentinel.cli.launch import own_output

CLI = [sys.executable, "-m", "grpo_sentinel.cli"]


@pytest.mark.parametrize("command", ["halt", "checkpoint"])
def test_a_request_is_answered_as_json(started: Started, tmp_path: Path, command: str) -> None:
    started.trainer("run", "--output-dir", tmp_path / "out")
    done = cli(command, "run", "--json", "--wait", 20)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["request_id"], told["run_id"], told["state"]) == (1, "run", "done")
    assert told["action"] == ("checkpoint-and-halt" if command == "halt" else "checkpoint")
    assert told["detail"].startswith(str(tmp_path / "out"))


def test_stacks_without_a_sidecar_are_refused_in_a_sentence(started: Started) -> None:
    started.trainer("run")
    done = cli("capture", "run", "--kind", "stacks")
    assert done.returncode == 2
    assert "taken by the sidecar" in done.stderr


@pytest.mark.parametrize("words", [["incident", "list"], ["rules", "list"], ["--help"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_early_is_no_failure(words: list[str], unbuffered: str) -> None:
    with subprocess.Popen(
        [*CLI, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": unbuffered}
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(30) == 0
    assert said == b""


def test_launch_finds_the_file_that_its_output_goes_to(tmp_path: Path) -> None:
    code = "import sys; from grpo_sentinel.cli.launch import own_output; sys.stderr.write('|'.join(own_output()))"
    with (tmp_path / "train.log").open("w") as log:
        done = subprocess.run([sys.executable, "-c", code], stdout=log, stderr=subprocess.PIPE, text=True, check=True)
    assert done.stderr == str(tmp_path / "train.log")
    assert own_output() == [] or all(Path(name).is_file() for name in own_output())
