"""A capture that a checkpoint overtakes: told by log, history, status and incident, and asked for again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from run_support import Started, cli, directory_of, step, until

from grpo_sentinel.daemon.claim import read_note
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.history import HistoryReader
from grpo_sentinel.records import HaltState
from grpo_sentinel.views import HaltStatus

RUN = "overtaken"
GAVE_WAY = "gave way to request 2 (checkpoint)"


def requests(tmp_path: Path) -> list[HaltStatus]:
    try:
        with HistoryReader(tmp_path / "state" / "grpo-sentinel" / "history.sqlite") as reader:
            return reader.requests(RUN)
    except SentinelError:
        return []


def sidecar(started: Started, tmp_path: Path) -> subprocess.Popen[str]:
    path = tmp_path / "sentinel.yaml"
    quick = {"history": {"flush_seconds": 0.1}}
    path.write_text(json.dumps({"http": {"port": 0}, "sinks": quick, "collectors": {"nvml": {"enabled": False}}}))
    with (tmp_path / "daemon.log").open("a") as log:
        return started.python("-m", "grpo_sentinel.cli", "run", "--config", path, stderr=log)


def test_a_capture_overtaken_by_a_checkpoint_is_told_everywhere_and_asked_for_again(
    started: Started, tmp_path: Path
) -> None:
    sidecar(started, tmp_path)
    trainer = started.trainer(RUN, "--stdin", "--output-dir", tmp_path / "out")
    until(lambda: read_note(directory_of(RUN)))
    step(trainer)
    assert cli("capture", RUN).returncode == 0
    until(lambda: requests(tmp_path), what="the capture is recorded")
    assert cli("checkpoint", RUN).returncode == 0
    until(lambda: f"request 1 (capture) {GAVE_WAY}" in cli("status", RUN).stdout, what="status says so")
    step(trainer)
    step(trainer)
    until(lambda: requests(tmp_path)[-1].request_id == 3, what="the capture is asked for again")
    ends = {one.request_id: one for one in requests(tmp_path)}
    assert ends[1].state is HaltState.FAILED
    assert ends[1].detail.startswith(GAVE_WAY)
    assert (ends[2].state, Path(ends[2].detail).name) == (HaltState.DONE, "checkpoint-2")
    assert ends[3].action is ends[1].action
    log = (tmp_path / "daemon.log").read_text()
    assert f"request 1 (capture, by user) failed: {GAVE_WAY}" in log
    assert log.index("request 1 (capture, by user) failed") < log.index("request 2 (checkpoint, by user)")
    assert log.count("request 1 (capture, by user) failed") == 1

    def why() -> str:
        found = [json.loads(one.read_text()) for one in (tmp_path / "state").rglob("incidents/*/manifest.json")]
        return next((str(one.get("missing", {}).get("tensors")) for one in found), "")

    until(lambda: why() == f"request 1 (capture) {GAVE_WAY}", what="the incident says why it holds no tensors")
