"""Runs that had ended before the sidecar came: shown and recorded, announced only when nobody has done so yet."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

from run_support import Started, cli, directory_of, step, until

from grpo_sentinel.daemon.claim import read_note
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.history import HistoryReader
from grpo_sentinel.records import Severity

RUN = "leftover"
# A sidecar that came so many seconds later than it did: its wall clock is ahead.
LATE = """
import sys
from grpo_sentinel.clock import SystemClock
real = SystemClock.wall_ns
SystemClock.wall_ns = lambda self: real(self) + int(float(sys.argv[1]) * 1e9)
from grpo_sentinel.cli import main
sys.exit(main(sys.argv[2:]))
"""


def settings(tmp_path: Path, state: str = "state") -> Path:
    path = tmp_path / f"{state}.yaml"
    body = {
        "http": {"port": 0}, "sinks": {"history": {"flush_seconds": 0.1}}, "collectors": {"nvml": {"enabled": False}},
        "state_dir": str(tmp_path / state),
    }  # fmt: skip
    path.write_text(json.dumps(body))
    return path


def sidecar(started: Started, tmp_path: Path, log: str, late_s: float = 0.0) -> subprocess.Popen[str]:
    with (tmp_path / log).open("a") as file:
        return started.python("-c", LATE, late_s, "run", "--config", settings(tmp_path), stderr=file)


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def findings(tmp_path: Path, run: str = RUN) -> list[str]:
    try:
        with HistoryReader(tmp_path / "state" / "history.sqlite") as reader:
            return [one.rule for one in reader.transitions(run) if one.severity >= Severity.WARNING]
    except SentinelError:
        return []


def incidents(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "state").rglob("incidents/*/manifest.json"))


def dead(started: Started, tmp_path: Path, run: str = RUN) -> None:
    """Leave a run behind whose gradients were not finite and that was killed."""
    trainer = started.trainer(run, "--stdin", "--bad-from", 3)
    for _ in range(6):
        step(trainer)
    trainer.kill()
    trainer.wait(10)


def stored(tmp_path: Path, run: str = RUN) -> list[int]:
    try:
        with HistoryReader(tmp_path / "state" / "history.sqlite") as reader:
            return [one.step for one in reader.records(run, rank=0) if "policy.loss" in one.values]
    except SentinelError:
        return []


def test_a_run_that_died_unwatched_long_ago_is_recorded_and_not_judged(started: Started, tmp_path: Path) -> None:
    dead(started, tmp_path)
    assert re.search(r"; ended \d+\.\d s ago\)", cli("status").stdout)
    process = sidecar(started, tmp_path, "log", late_s=95 * 60)
    until(lambda: stored(tmp_path) == [1, 2, 3, 4, 5, 6], what="its records are kept")
    end(process)
    said = (tmp_path / "log").read_text()
    assert "ended 95 min ago, before any sidecar looked" in said
    assert "critical" not in said
    assert (findings(tmp_path), incidents(tmp_path)) == ([], [])
    config = str(settings(tmp_path))
    shown = " ".join(cli("status", RUN, "--config", config).stdout.split())
    assert f"findings: unknown: it ended before any sidecar looked; `grpo-sentinel run --once --run-id {RUN}`" in shown
    assert not re.search(r"\bok\b", shown), "what was recorded without being judged is not known to be well"
    written = cli("report", RUN, "--config", config, "--format", "markdown", "--output", "-").stdout
    assert "whether anything was wrong is unknown" in written
    assert "nothing above a note" not in written
    second = sidecar(started, tmp_path, "second.log", late_s=96 * 60)
    until(lambda: "ended 96 min ago, before any sidecar looked" in (tmp_path / "second.log").read_text())
    end(second)


def test_a_run_that_died_unwatched_just_now_is_judged_and_told_once(started: Started, tmp_path: Path) -> None:
    dead(started, tmp_path)
    first = sidecar(started, tmp_path, "log")
    until(lambda: "rank_dead" in findings(tmp_path), what="the death is told")
    end(first)
    told, kept = findings(tmp_path), len(incidents(tmp_path))
    assert kept
    second = sidecar(started, tmp_path, "second.log")
    until(lambda: "watched to its end: shown as past" in (tmp_path / "second.log").read_text())
    end(second)
    assert "critical" not in (tmp_path / "second.log").read_text()
    assert (findings(tmp_path), len(incidents(tmp_path))) == (told, kept)


def test_a_past_run_that_is_started_again_under_its_name_is_judged(started: Started, tmp_path: Path) -> None:
    dead(started, tmp_path)
    first = sidecar(started, tmp_path, "log")
    until(lambda: "rank_dead" in findings(tmp_path))
    end(first)
    before = findings(tmp_path).count("grad_nonfinite")
    path = settings(tmp_path)
    with (tmp_path / "log").open("a") as log:
        started.python("-m", "grpo_sentinel.cli", "run", "--config", path, "--run-id", RUN, stderr=log)
    until(lambda: "shown as past and not judged" in (tmp_path / "log").read_text())
    trainer = started.trainer(RUN, "--stdin", "--bad-from", 3)
    for _ in range(6):
        step(trainer)
    until(lambda: findings(tmp_path).count("grad_nonfinite") > before, what="the new ranks are judged")
    assert read_note(directory_of(RUN)) is not None


def test_run_once_judges_the_run_that_it_is_asked_about(started: Started, tmp_path: Path) -> None:
    dead(started, tmp_path)
    path = str(settings(tmp_path))
    late = [str(95 * 60), "run", "--once", "--config", path]
    assert started.python("-c", LATE, *late).wait(30) == 0
    assert findings(tmp_path) == []
    assert started.python("-c", LATE, *late, "--run-id", RUN).wait(30) == 0
    assert {"rank_dead", "grad_nonfinite"} <= set(findings(tmp_path)), "from its first record on"
    assert "unknown" not in cli("status", RUN, "--config", path).stdout


def test_run_once_over_past_runs_leaves_the_run_started_last_the_newest(started: Started, tmp_path: Path) -> None:
    for run in ("one", "two"):
        dead(started, tmp_path, run)
    path = str(settings(tmp_path))
    for _ in range(2):
        assert started.python("-c", LATE, "600", "run", "--once", "--config", path).wait(30) == 0
    done = cli("report", "--config", path, "-o", "-")
    assert done.returncode == 0, done.stderr
    assert "Run two" in done.stdout, done.stdout[:400]
