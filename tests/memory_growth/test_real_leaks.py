"""Memory that really grows in a real cgroup: which kind it is, how long it lasts, saved and halted before the kernel kills."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from real_cgroup import Cgroup, usable

from grpo_sentinel.halting.checkpoints import scan_directory
from grpo_sentinel.history import HistoryReader, history_path
from grpo_sentinel.records import Finding

pytestmark = [
    pytest.mark.torch, pytest.mark.slow, pytest.mark.skipif(bool(usable()), reason=usable() or "cgroups can be made"),
]  # fmt: skip


def run(folder: Path, kind: str, limit: int, *loop: object) -> tuple[int, dict[str, Finding], list[Path], int]:
    """Train in a cgroup with the sidecar outside of it; gives exit code, findings, checkpoints, the kernel's kills."""
    config = folder / "sentinel.yaml"
    body = {"http": {"port": 0}, "launch": {"linger_seconds": 1}, "collectors": {"nvml": {"enabled": False}}}
    config.write_text(json.dumps(body))
    words = [sys.executable, "-m", "grpo_sentinel.cli", "launch", "--config", config, "--run-id", "run", "--"]
    with Cgroup(limit) as cgroup:
        command = [*cgroup.prefix(), sys.executable, Path(__file__).with_name("growing_loop.py"), kind, folder / "out"]
        done = subprocess.run(
            [*map(str, [*words, *command, *loop])], capture_output=True, text=True, timeout=150, check=False
        )
        kills = cgroup.kills()
    with HistoryReader(history_path(folder / "state" / "grpo-sentinel", socket.gethostname())) as reader:
        findings = {one.rule: one for one in reader.findings("run")}
    print(done.returncode, kills, sorted(findings), done.stderr[-1500:])
    saved = [one.path for one in scan_directory(folder / "out") if not one.problem]
    return done.returncode, findings, saved, kills


def test_tensors_that_are_never_let_go_are_told_and_the_run_is_saved_before_the_kernel_kills(tmp_path: Path) -> None:
    code, findings, saved, kills = run(tmp_path, "host", 900 << 20, 200, 0.05, 8)
    assert (code, kills, len(saved)) == (83, 0, 1)
    message = findings["host_memory_runs_out"].message
    grown, steps, minutes = re.search(
        r"grows by ([\d.]+) MiB a step, (\d+) steps or ([\d.]+) minutes to the limit", message
    ).groups()  # type: ignore[union-attr]
    assert 6 < float(grown) < 9
    assert 5 < int(steps) < 100
    assert float(minutes) < 1
    assert findings["host_memory_runs_out"].onset_step <= 14


def test_such_a_leak_is_killed_by_the_kernel_when_nobody_stops_it() -> None:
    with Cgroup(900 << 20) as cgroup:
        leak = [sys.executable, "-c", "kept = [b'x' * 8_000_000 + bytes([n]) for n in range(200)]"]
        done = subprocess.run([*cgroup.prefix(), *leak], capture_output=True, timeout=60, check=False)
        assert (done.returncode, cgroup.kills() >= 1) == (-9, True)


def test_files_in_shared_memory_are_a_kind_of_their_own(tmp_path: Path) -> None:
    code, findings, saved, kills = run(tmp_path, "shm", 1500 << 20, 60, 1.1, 24)
    assert (code, kills, len(saved)) == (83, 0, 1)
    assert "files in shared memory" in findings["cgroup_shm_runs_out"].message
    assert "host_memory_runs_out" not in findings, "no process has grown"


def test_page_cache_that_fills_the_container_is_no_leak(tmp_path: Path) -> None:
    code, findings, saved, kills = run(tmp_path, "cache", 700 << 20, 60, 0.5, 24)
    assert (code, kills, saved) == (0, 0, [])
    assert not {"host_memory_runs_out", "cgroup_shm_runs_out", "cgroup_memory_high"} & set(findings)
    assert "page cache" in findings["cgroup_is_page_cache"].message
