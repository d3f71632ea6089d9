"""`launch.on_notice`: a scheduler's signal becomes a request to the run; what cannot be asked is passed on."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from run_support import HERE, Started, directory_of, last_step, until

FAKE = HERE / "fake_trainer.py"


def _launched(
    started: Started, folder: Path, notice: dict[str, str], *trainer: object, **launching: object
) -> tuple[object, int]:
    config = folder / "sentinel.yaml"
    body = {"http": {"port": 0}, "launch": {"linger_seconds": 1, "on_notice": notice, **launching}}
    config.write_text(json.dumps({**body, "collectors": {"nvml": {"enabled": False}}}))
    words = ["launch", "--config", config, "--run-id", "run", "--", sys.executable, FAKE]
    launch = started.cli(*words, "--output-dir", folder / "out", *trainer)
    until(lambda: (directory_of("run") / "daemon.json").exists(), 60, "a watched run")
    until(lambda: last_step("run") > 10, 30, "steps")
    return launch, launch.pid


@pytest.mark.parametrize("name", ["TERM", pytest.param("USR1", marks=pytest.mark.slow)])
def test_a_notice_saves_and_ends_the_run_within_the_grace_period(started: Started, tmp_path: Path, name: str) -> None:
    launch, pid = _launched(started, tmp_path, {name: "checkpoint-and-halt"})
    os.kill(pid, getattr(signal, f"SIG{name}"))
    _, said = launch.communicate(timeout=30)  # type: ignore[attr-defined] - Kubernetes' grace period
    assert launch.returncode == 83, said  # type: ignore[attr-defined]
    assert f"SIG{name} came: request 1, checkpoint-and-halt" in said
    assert len(list((tmp_path / "out").glob("checkpoint-*"))) == 1


@pytest.mark.slow
def test_a_run_that_a_notice_halted_has_an_exit_code_of_its_own_where_one_is_set(
    started: Started, tmp_path: Path
) -> None:
    notice = {"USR1": "checkpoint-and-halt"}
    launch, pid = _launched(started, tmp_path, notice, notice_exit_code=84)
    os.kill(pid, signal.SIGUSR1)
    _, said = launch.communicate(timeout=30)  # type: ignore[attr-defined]
    assert launch.returncode == 84, said  # type: ignore[attr-defined]
    (tmp_path / "again").mkdir()
    again, _ = _launched(started, tmp_path / "again", notice, "--bad-from", 60, notice_exit_code=84)
    _, said = again.communicate(timeout=30)  # type: ignore[attr-defined]
    assert again.returncode == 83, f"a rule halted it: {said}"  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_second_notice_is_passed_on(started: Started, tmp_path: Path) -> None:
    launch, pid = _launched(started, tmp_path, {"TERM": "checkpoint-and-halt"}, "--deaf")
    os.kill(pid, signal.SIGTERM)
    until((directory_of("run") / "requests.jsonl").exists, 30, "the request")
    assert launch.poll() is None  # type: ignore[attr-defined]
    os.kill(pid, signal.SIGTERM)
    launch.communicate(timeout=30)  # type: ignore[attr-defined]
    assert launch.returncode == 143  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_notice_that_nobody_can_be_asked_about_is_passed_on(started: Started, tmp_path: Path) -> None:
    config = tmp_path / "sentinel.yaml"
    config.write_text(json.dumps({"launch": {"on_notice": {"TERM": "checkpoint"}}}))
    here = tmp_path / "here"
    script = f"import pathlib, time; pathlib.Path({str(here)!r}).touch(); time.sleep(60)"
    launch = started.cli("launch", "--config", config, "--no-daemon", "--", sys.executable, "-c", script)
    until(here.exists, 30, "the command")
    os.kill(launch.pid, signal.SIGTERM)
    _, said = launch.communicate(timeout=30)
    assert launch.returncode == 143
    assert "could not be asked for" in said
