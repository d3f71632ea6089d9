"""`launch` where a permanent sidecar watches the same folder: one of the two has the run, and it is known which."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from run_support import HERE, Started, cli, directory_of, last_step, until

from grpo_sentinel.daemon.claim import read_note
from grpo_sentinel.daemon.permanent import permanent_of
from grpo_sentinel.daemon.whereabouts import read_whereabouts

FAKE = HERE / "fake_trainer.py"


def settings(tmp_path: Path, name: str, **more: object) -> Path:
    path = tmp_path / f"{name}.yaml"
    quiet = {"http": {"port": 0}, "launch": {"linger_seconds": 0.5}, "collectors": {"nvml": {"enabled": False}}}
    path.write_text(json.dumps({**quiet, "state_dir": str(tmp_path / name), **more}))
    return path


def permanent(started: Started, tmp_path: Path, config: Path) -> subprocess.Popen[str]:
    with (tmp_path / "permanent.log").open("a") as log:
        process = started.python("-m", "grpo_sentinel.cli", "run", "--config", config, stderr=log)
    until(lambda: (found := permanent_of(tmp_path / "rings")) is not None and found.pid == process.pid)
    return process


def test_a_plain_launch_leaves_its_run_to_the_permanent_sidecar_and_says_so_in_one_line(
    started: Started, tmp_path: Path
) -> None:
    process = permanent(started, tmp_path, settings(tmp_path, "node"))
    command = (sys.executable, FAKE, "--output-dir", tmp_path / "out", "--save-steps", 5, "--bad-from", 60)
    done = cli("launch", "--run-id", "run", "--", *command)
    assert done.returncode == 83, done.stderr
    lines = done.stderr.splitlines()
    assert sum("sidecar" in line for line in lines) == 1, done.stderr
    assert f"run run is left to the permanent sidecar that is here (pid {process.pid}, http://" in lines[0]
    assert "was halted with exit code 83; " in done.stderr, "its end is in the history by then"
    assert str(tmp_path / "node" / "history.sqlite") in done.stderr
    assert "watching run run" in (tmp_path / "permanent.log").read_text()
    there = read_whereabouts(directory_of("run"))
    assert there is not None
    assert there.state_dir == str(tmp_path / "node")


def test_other_settings_make_the_launch_watch_its_run_itself_and_the_permanent_sidecar_leave_it(
    started: Started, tmp_path: Path
) -> None:
    process = permanent(started, tmp_path, settings(tmp_path, "node"))
    own = settings(tmp_path, "own", halting={"dry_run": True})
    launch = started.cli("launch", "--config", own, "--run-id", "run", "--", sys.executable, FAKE, "--steps", 10**6)
    note = until(lambda: read_note(directory_of("run")))
    assert note.pid != process.pid
    seen = last_step("run")
    until(lambda: last_step("run") > seen)
    assert "run run" not in (tmp_path / "permanent.log").read_text()
    launch.send_signal(signal.SIGTERM)
    _, said = launch.communicate(timeout=30)
    assert f"a permanent sidecar is here (pid {process.pid}) with other settings than" in said
    assert str(tmp_path / "own" / "history.sqlite") in said


@pytest.mark.slow
def test_a_launch_whose_permanent_sidecar_ends_starts_one_of_its_own(started: Started, tmp_path: Path) -> None:
    process = permanent(started, tmp_path, settings(tmp_path, "node"))
    launch = started.cli("launch", "--run-id", "run", "--", sys.executable, FAKE, "--steps", 10**6)
    until(lambda: (note := read_note(directory_of("run"))) is not None and note.pid == process.pid)
    process.kill()
    process.wait(10)
    until(lambda: (note := read_note(directory_of("run"))) is not None and note.pid != process.pid, 40)
    launch.send_signal(signal.SIGTERM)
    _, said = launch.communicate(timeout=30)
    assert "the permanent sidecar has ended; this run gets one of its own" in said


def test_a_waiting_launch_is_not_said_to_have_no_sidecar_where_a_permanent_one_is(
    started: Started, tmp_path: Path
) -> None:
    permanent(started, tmp_path, settings(tmp_path, "node"))
    started.cli("launch", "--no-daemon", "--run-id", "early", "--", "sleep", "60")
    shown = until(lambda: said if "run early" in (said := cli("status").stdout.replace("\n", " ")) else "")
    assert "waits for its trainer's first record" in shown
    assert "no sidecar" not in shown
