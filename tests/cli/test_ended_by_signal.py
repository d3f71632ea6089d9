"""A run that somebody ends is told as such; a death of its own stays critical, with a bundle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from run_support import HERE, Started, directory_of, until

from grpo_sentinel.history import HistoryReader
from grpo_sentinel.protocol import RankReader, list_segments
from grpo_sentinel.records import Finding, Severity

FAKE = HERE / "fake_trainer.py"


class Launched:
    """A fake trainer under `launch`, watched by a real sidecar."""

    def __init__(self, started: Started, tmp_path: Path, *arguments: object) -> None:
        config = tmp_path / "sentinel.yaml"
        body = {"http": {"port": 0}, "launch": {"linger_seconds": 1}, "collectors": {"nvml": {"enabled": False}}}
        config.write_text(json.dumps(body))
        self.tmp_path = tmp_path
        self.launch = started.cli("launch", "--config", config, "--run-id", "run", "--", *arguments)
        until(lambda: directory_of("run").is_dir() and self._reader() is not None, 60.0, what="the trainer to attach")
        until(lambda: (directory_of("run") / "daemon.json").exists(), what="the sidecar to take the run up")
        reader = self._reader()
        assert reader is not None
        self.pid = reader.identity.pid
        step = reader.heartbeat().step
        until(lambda: reader.heartbeat().step > step + 20, what="steps that the sidecar has seen")

    def _reader(self) -> RankReader | None:
        paths = list_segments(directory_of("run"))
        return RankReader(paths[0]) if paths else None

    def end(self) -> tuple[int, str]:
        try:
            _, said = self.launch.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.launch.kill()
            raise
        return self.launch.returncode, said

    def findings(self) -> dict[str, Finding]:
        with HistoryReader(self.tmp_path / "state" / "grpo-sentinel" / "history.sqlite") as reader:
            return {finding.rule: finding for finding in reader.findings("run")}

    def bundles(self) -> list[Path]:
        return list((self.tmp_path / "state" / "grpo-sentinel" / "incidents").glob("run-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_that_launch_passed_on_is_a_note_and_no_incident(
    started: Started, tmp_path: Path, number: signal.Signals
) -> None:
    run = Launched(started, tmp_path, sys.executable, FAKE)
    run.launch.send_signal(number)
    code, _ = run.end()
    assert code == 128 + number
    found = run.findings()
    assert "rank_dead" not in found
    note = found["run_ended_by_signal"]
    assert note.severity is Severity.NOTE
    assert f"ended by signal {int(number)} forwarded by the launcher at step {note.step}" in note.message
    assert run.bundles() == []


@pytest.mark.slow
def test_a_signal_that_somebody_sent_to_the_command_itself_is_a_note_too(started: Started, tmp_path: Path) -> None:
    run = Launched(started, tmp_path, sys.executable, FAKE)
    os.kill(run.pid, signal.SIGTERM)
    assert run.end()[0] == 143
    found = run.findings()
    assert "rank_dead" not in found
    assert "signal 15 sent to the command" in found["run_ended_by_signal"].message


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSEGV, marks=pytest.mark.slow)])
def test_a_death_of_its_own_stays_critical_and_has_a_bundle(
    started: Started, tmp_path: Path, number: signal.Signals
) -> None:
    run = Launched(started, tmp_path, sys.executable, FAKE)
    os.kill(run.pid, number)
    code, said = run.end()
    assert code == 128 + number
    found = run.findings()
    assert found["rank_dead"].severity is Severity.CRITICAL
    assert "run_ended_by_signal" not in found
    (bundle,) = run.bundles()
    assert str(bundle) in said, "the summary says where the bundle is"


def test_a_kill_after_a_signal_that_the_trainer_outlived_stays_critical(started: Started, tmp_path: Path) -> None:
    caught = tmp_path / "caught"
    run = Launched(started, tmp_path, sys.executable, FAKE, "--signals-to", caught)
    run.launch.send_signal(signal.SIGINT)
    until(lambda: caught.exists() and "SIGINT" in caught.read_text(), what="the trainer to outlive the signal")
    os.kill(run.pid, signal.SIGKILL)
    assert run.end()[0] == 137
    assert run.findings()["rank_dead"].severity is Severity.CRITICAL


@pytest.mark.slow
@pytest.mark.parametrize(("code", "dead"), [(0, False), (1, True)])
def test_a_process_that_leaves_without_a_word_is_dead_unless_its_exit_code_says_that_all_was_well(
    started: Started, tmp_path: Path, code: int, dead: bool
) -> None:
    script = tmp_path / "leaves.py"
    script.write_text(
        "import os, runpy, sys, threading, time\n"
        "def leave():\n"
        f"    while not os.path.exists({str(tmp_path / 'leave')!r}):\n"
        "        time.sleep(0.01)\n"
        f"    os._exit({code})\n"
        "threading.Thread(target=leave).start()\n"
        f"sys.argv = ['x']; runpy.run_path({str(FAKE)!r}, run_name='__main__')\n"
    )
    run = Launched(started, tmp_path, sys.executable, script)
    (tmp_path / "leave").touch()
    assert run.end()[0] == code
    assert ("rank_dead" in run.findings()) is dead


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_two_real_ranks_under_torchrun_that_somebody_ends_are_not_dead(
    started: Started, tmp_path: Path, number: signal.Signals
) -> None:
    pytest.importorskip("torch")
    loop = Path(__file__).parents[1] / "capture" / "two_ranks_loop.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    run = Launched(started, tmp_path, *torchrun, loop, tmp_path / "out")
    run.launch.send_signal(number)
    run.end()
    found = run.findings()
    assert "rank_dead" not in found, found
    assert "run_ended_by_signal" in found
    assert run.bundles() == []


@pytest.mark.slow
@pytest.mark.torch
def test_a_sigterm_to_torchrun_itself_which_launch_never_saw_is_no_death(started: Started, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    loop = Path(__file__).parents[1] / "capture" / "two_ranks_loop.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    run = Launched(started, tmp_path, *torchrun, loop, tmp_path / "out")
    (child,) = psutil.Process(run.pid).parents()[:1]
    assert "torch.distributed.run" in " ".join(child.cmdline())
    os.kill(child.pid, signal.SIGTERM)
    run.end()
    found = run.findings()
    assert "rank_dead" not in found, found
    assert "sent to the rank" in found["run_ended_by_signal"].message
    assert run.bundles() == []
