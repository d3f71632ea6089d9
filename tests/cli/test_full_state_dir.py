"""A full disk under the state directory: the run is judged and halted all the same, and the last line is true."""

from __future__ import annotations

import errno
import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_support import HERE, cli

from grpo_sentinel.cli import summary
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.places import state_dir
from grpo_sentinel.errors import HistoryError
from grpo_sentinel.history import HistoryReader, HistoryStore, history_path
from grpo_sentinel.history.database import trouble_with


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 500 kB of our own."""
    place = tmp_path / "small"
    place.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", place], capture_output=True, timeout=30, check=False
    )
    if mount.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", "-l", place], check=True, timeout=30)


def test_a_halted_run_says_its_exit_code_and_that_the_disk_is_full(small_disk: Path, tmp_path: Path) -> None:
    config = tmp_path / "sentinel.yaml"
    body = {"state_dir": str(small_disk), "http": {"port": 0}, "launch": {"linger_seconds": 0.5}}
    config.write_text(json.dumps({**body, "collectors": {"nvml": {"enabled": False}}}))
    trainer = (sys.executable, HERE / "fake_trainer.py", "--output-dir", tmp_path / "out", "--bad-from", 150)
    done = cli("launch", "--config", config, "--run-id", "run", "--", *trainer, timeout=60)
    assert done.returncode == 83, done.stderr
    assert "run run was halted with exit code 83" in done.stderr, done.stderr
    assert f"the disk of {small_disk} is full" in done.stderr, done.stderr
    assert "ended with exit code 0" not in done.stderr


@pytest.mark.parametrize("free", [0, 16384, 49152])
def test_no_last_line_names_a_history_that_could_not_be_made_and_none_calls_the_run_fine(
    small_disk: Path, tmp_path: Path, free: int
) -> None:
    space = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(b"x" * (space.f_bavail * space.f_frsize - free))
    config = tmp_path / "sentinel.yaml"
    body = {"state_dir": str(small_disk), "http": {"port": 0}, "collectors": {"nvml": {"enabled": False}}}
    config.write_text(json.dumps(body))
    trainer = (sys.executable, HERE / "fake_trainer.py", "--steps", 150)
    done = cli("launch", "--config", config, "--run-id", "run", "--", *trainer, timeout=60)
    assert done.returncode == 0, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "ended with exit code 0; no summary: " in last, done.stderr
    assert f"the disk of {small_disk} is full" in last
    assert "run the sidecar once" not in last
    assert "nothing above a note" not in done.stderr
    assert "  history: " not in done.stderr


def test_a_history_without_the_run_is_no_clean_bill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    config = Config(state_dir=str(tmp_path / "state"))
    HistoryStore(history_path(state_dir(config), socket.gethostname())).close()
    monkeypatch.setattr(summary, "run_directory", lambda *_: tmp_path / "run")
    summary.write_summary(config, tmp_path, "run", 0, 0, halted=False, say=said.append)
    assert len(said) == 1
    assert "no summary: the history" in said[0]
    assert "holds nothing of it" in said[0]


def test_every_way_to_find_a_disk_full_is_named_so(small_disk: Path, tmp_path: Path) -> None:
    path = small_disk / "history.sqlite"
    HistoryStore(path).close()
    space = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(b"x" * (space.f_bavail * space.f_frsize))
    assert trouble_with(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))).endswith(f"{small_disk} is full")
    assert trouble_with(path, sqlite3.OperationalError("disk I/O error")).endswith(f"{small_disk} is full")
    assert trouble_with(tmp_path / "x", sqlite3.OperationalError("disk I/O error")) == "disk I/O error"
    assert trouble_with(path, sqlite3.OperationalError("database is locked")) == "database is locked"
    with pytest.raises(HistoryError, match="is full; free space there"), HistoryReader(path):
        pass
