"""A halt reaches loops that save and report by themselves before they have their verdict, on rank 0 alone or on all."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from run_support import HERE, Started, cli, until

from grpo_sentinel.history import HistoryReader
from grpo_sentinel.records import HaltState

pytestmark = pytest.mark.torch


def launched(started: Started, folder: Path, *words: object) -> tuple[object, Path]:
    pytest.importorskip("torch")
    config = folder / "sentinel.yaml"
    body = {"http": {"port": 0}, "launch": {"linger_seconds": 1}, "collectors": {"nvml": {"enabled": False}}}
    config.write_text(json.dumps({**body, "state_dir": str(folder / "state")}))
    loop = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", HERE / "own_saves_loop.py"]
    ours = ["launch", "--config", config, "--run-id", "own", "--", sys.executable, *loop, folder / "out", *words]
    (folder / "out").mkdir()
    with (folder / "said").open("w") as said:
        run = started.python("-m", "grpo_sentinel.cli", *ours, stderr=said)
    until(lambda: list((folder / "out").glob("checkpoint_*")), 60, "the loop saves")
    done = cli("halt", "own", "--config", config, "--wait", "60", timeout=90)
    assert done.returncode == 0, done.stderr
    return run, folder / "said"


def test_every_rank_halts_after_one_step_and_rank_0s_save_is_the_one_asked_for(started: Started, tmp_path: Path) -> None:
    run, said = launched(started, tmp_path)
    assert run.wait(60) == 83, said.read_text()
    first, second = ((tmp_path / "out" / f"rank{rank}").read_text() for rank in (0, 1))
    assert first == second
    with HistoryReader(tmp_path / "state" / "history.sqlite") as reader:
        request = reader.requests("own")[-1]
    assert (request.state, str(request.step)) == (HaltState.DONE, first)
    assert request.detail == str(tmp_path / "out" / f"checkpoint_{first}.pt")


def test_a_loop_that_goes_on_after_the_halt_is_told_and_not_called_halted(started: Started, tmp_path: Path) -> None:
    run, said = launched(started, tmp_path, "--deaf")
    assert run.wait(60) == 0, said.read_text()
    assert said.read_text().count("leave it where `verdict.halt` is true") == 1
    assert "was halted" not in said.read_text()
