"""What `launch` leaves behind: no long wait where nothing ran, no sidecar that nobody needs, no port held unnamed."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest
from run_support import HERE, Started, cli, directory_of, last_step, until

from grpo_sentinel.daemon.claim import read_note
from grpo_sentinel.daemon.port_holder import holder_of

FAKE = HERE / "fake_trainer.py"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sentinel.yaml"
    body = {"http": {"port": 0}, "launch": {"linger_seconds": 20}, "collectors": {"nvml": {"enabled": False}}}
    path.write_text(json.dumps(body))
    return path


def test_a_command_that_never_had_a_trainer_is_not_lingered_for(config: Path) -> None:
    began = time.monotonic()
    done = cli("launch", "--config", config, "--", "true")
    assert done.returncode == 0
    assert "no trainer attached" in done.stderr
    assert time.monotonic() - began < 15, "linger_seconds is 20"


def test_without_its_launcher_a_sidecar_stays_while_the_trainer_lives_and_ends_soon_after(
    started: Started, tmp_path: Path
) -> None:
    config = tmp_path / "short.yaml"
    config.write_text(json.dumps({"http": {"port": 0}, "launch": {"linger_seconds": 0.2}}))
    launch = started.cli("launch", "--config", config, "--run-id", "run", "--", sys.executable, FAKE, "--steps", 10**6)
    assert launch.stdout is not None
    launch.stdout.readline()
    note = until(lambda: read_note(directory_of("run")))
    trainer = next(one for one in psutil.Process(launch.pid).children() if one.pid != note.pid)
    started.also([trainer.pid, note.pid])
    launch.kill()
    launch.wait(10)
    gone_at, step = time.monotonic(), last_step("run")
    until(lambda: last_step("run") > step and time.monotonic() - gone_at > 4, what="the trainer goes on")
    assert read_note(directory_of("run")) == note, "it watches a trainer that lives"
    trainer.send_signal(signal.SIGKILL)
    until(lambda: read_note(directory_of("run")) is None, 20, "it ends with the trainer, not half a minute later")


def test_a_taken_port_is_said_with_who_holds_it(started: Started, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert holder_of(port).endswith(f"(pid {os.getpid()})")
    config = tmp_path / "fixed.yaml"
    config.write_text(json.dumps({"http": {"port": port}, "launch": {"linger_seconds": 0}}))
    first = started.cli("run", "--run-id", "early", "--config", config)
    until(lambda: holder_of(port))
    assert holder_of(port) == f"the sidecar of run early (pid {first.pid})"
    marker = tmp_path / "go"
    waits = f"while [ ! -e {marker} ]; do sleep 0.1; done"
    second = started.cli("launch", "--config", config, "--run-id", "late", "--", "sh", "-c", waits)
    assert second.stderr is not None
    line = next(line for line in second.stderr if "is taken" in line)
    assert f"held by the sidecar of run early (pid {first.pid})" in line
    assert "instead" in line
    marker.touch()
    assert second.wait(30) == 0
    assert holder_of(1) == ""


def test_an_option_that_launch_does_not_know_is_no_command(config: Path) -> None:
    done = cli("launch", "--confg", config, "--", "true")
    assert done.returncode == 2
    assert "No such option" in done.stderr
    assert "--config" in done.stderr
    bare = cli(
        "launch", "--no-daemon", "--config", config, sys.executable, "-c", "import sys; print(sys.argv[1:])", "--x"
    )
    assert (bare.returncode, bare.stdout.strip()) == (0, "['--x']"), "what follows COMMAND is its own, also without --"
