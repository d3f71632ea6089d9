"""A rank that is stopped under a real torchrun, halted: stacks, SIGTERM to torchrun, its own SIGKILL after 30 s."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from run_support import HERE, Started, cli, directory_of, last_step, until

from grpo_sentinel.daemon.claim import read_note
from grpo_sentinel.halting.processes import mark_of
from grpo_sentinel.history import HistoryReader
from grpo_sentinel.protocol import RankReader, list_segments

pytestmark = pytest.mark.slow


def _config(folder: Path, **halting: float) -> Path:
    config = folder / "sentinel.yaml"
    body = {"http": {"port": 0}, "launch": {"linger_seconds": 1}, "collectors": {"nvml": {"enabled": False}}}
    config.write_text(json.dumps({**body, "state_dir": str(folder / "state"), "halting": halting}))
    return config


def _pids() -> list[int]:
    found = []
    for path in list_segments(directory_of("run")):
        reader = RankReader(path)
        found.append(reader.identity.pid)
        reader.close()
    return found


@pytest.mark.torch
@pytest.mark.parametrize("killed", [False, True], ids=["", "and the sidecar is killed in the middle"])
def test_a_stopped_rank_is_ended_by_torchrun_itself_once_its_deadline_is_over(
    started: Started, tmp_path: Path, killed: bool
) -> None:
    pytest.importorskip("torch")
    config = _config(tmp_path, acknowledge_seconds=3, terminate_seconds=6)
    loop = HERE.parent / "capture" / "two_ranks_loop.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    launch = started.cli("launch", "--config", config, "--run-id", "run", "--", *torchrun, loop, tmp_path / "out")
    until(lambda: directory_of("run").is_dir() and read_note(directory_of("run")) is not None, 90, "a watched run")
    until(lambda: len(_pids()) == 2 and last_step("run") > 20, 90, "steps of both ranks")
    pids = _pids()
    started.also(pids)
    os.kill(pids[1], signal.SIGSTOP)
    assert cli("halt", "--now", "run", "--config", config).returncode == 0
    if killed:
        until(lambda: (directory_of("run") / "escalation.json").exists(), 60, "stacks")
        note = read_note(directory_of("run"))
        assert note is not None
        os.kill(note.pid, signal.SIGKILL)
    _, said = launch.communicate(timeout=150)
    assert launch.returncode not in (0, 83), said
    assert all(mark_of(pid) is None for pid in pids), "torchrun kills what does not hear SIGTERM"
    with HistoryReader(tmp_path / "state" / "history.sqlite") as reader:
        detail = " ".join(request.detail for request in reader.requests("run"))
    assert "stacks in" in detail
    assert detail.count("SIGTERM sent to the launcher") >= 1
    assert json.loads((directory_of("run") / "escalation.json").read_text())["said"].count("SIGTERM") == 1
    stacks = "".join(path.read_text() for path in (tmp_path / "state").rglob("stacks-*.txt"))
    assert f"pid {pids[1]}" in stacks


def test_of_two_requests_that_race_there_is_one_halt(started: Started, tmp_path: Path) -> None:
    config = _config(tmp_path)
    trainer = started.trainer("run", "--output-dir", tmp_path / "out")
    started.cli("run", "--run-id", "run", "--config", config)
    until(lambda: read_note(directory_of("run")) is not None, 60, "a watched run")
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(cli, "halt", "run", "--wait", "30", "--json", "--config", config) for _ in range(3)]
        answers = [one.result(90) for one in asked]
    ids = {json.loads(answer.stdout)["request_id"] for answer in answers if answer.returncode == 0}
    assert ids == {1}, [answer.stderr for answer in answers]
    assert trainer.wait(30) == 0
    assert len(list((tmp_path / "out").glob("checkpoint-*"))) == 1
