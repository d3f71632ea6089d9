"""A rule that fires on the record of step n has its checkpoint by step n + 2, with the real agent and sidecar."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from run_support import HERE, cli

from grpo_sentinel.halting.checkpoints import check_finite
from grpo_sentinel.history import HistoryReader


@pytest.mark.torch
def test_what_fires_on_step_n_is_saved_and_halted_by_step_n_plus_2(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    config = tmp_path / "sentinel.yaml"
    body = {"http": {"port": 0}, "launch": {"linger_seconds": 1}, "collectors": {"nvml": {"enabled": False}}}
    config.write_text(json.dumps({**body, "state_dir": str(tmp_path / "state")}))
    words = ["launch", "--config", config, "--run-id", "soon", "--", sys.executable, HERE / "two_steps_loop.py"]
    done = cli(*words, tmp_path / "out", timeout=180, env={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 83, done.stderr
    (saved,) = (tmp_path / "out").glob("checkpoint-*")
    assert check_finite(saved).finite
    with HistoryReader(tmp_path / "state" / "history.sqlite") as reader:
        (finding,) = [one for one in reader.findings("soon") if one.rule == "nonfinite_updates"]
        requests = reader.requests("soon")
    assert finding.step == 6, "the third of the updates that were skipped"
    assert int(saved.name.rpartition("-")[2]) <= finding.step + 2
    assert requests[-1].detail == str(saved)
