"""A real sidecar beside a real ring: the bundle is there before the crash, complete after it, and survives the sidecar."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "halting"))

from run_support import Started, step, until

from grpo_sentinel.incidents.bundle import Bundle
from grpo_sentinel.incidents.model import State
from grpo_sentinel.incidents.places import bundles

RUN = "ruined"


@pytest.fixture
def started() -> Iterator[Started]:
    with Started() as processes:
        yield processes


def daemon(started: Started, tmp_path: Path) -> subprocess.Popen[str]:
    body = {
        "http": {"port": 0}, "sinks": {"history": {"flush_seconds": 0.1}}, "collectors": {"nvml": {"enabled": False}},
        "halting": {"enabled": False},
    }  # fmt: skip
    path = tmp_path / "sentinel.yaml"
    path.write_text(json.dumps(body))
    with (tmp_path / "daemon.log").open("a") as log:
        return started.python("-m", "grpo_sentinel.cli", "run", "--config", path, stderr=log)


def written(tmp_path: Path) -> list[Bundle]:
    root = tmp_path / "state" / "grpo-sentinel" / "incidents"
    return [Bundle(path) for path, _ in bundles(root)]


def test_the_bundle_is_there_while_the_run_lives_and_whole_after_kill_9(started: Started, tmp_path: Path) -> None:
    daemon(started, tmp_path)
    trainer = started.trainer(RUN, "--stdin", "--bad-from", 6, "--output-dir", tmp_path / "out")
    for _ in range(8):
        step(trainer)
    (alive,) = until(lambda: written(tmp_path), what="a bundle while the trainer lives")
    assert trainer.poll() is None
    assert alive.about.state is State.OPEN
    step(trainer)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait(10)
    until(lambda: any(one.about.state is State.CLOSED for one in written(tmp_path)), 30.0, "the bundle is closed")
    bundle = next(one for one in written(tmp_path) if one.about.incident_id == alive.about.incident_id)
    assert bundle.damage() == []
    assert bundle.about.onset_step == 6
    assert bundle.about.ended == "died (rank 0)"
    assert {record.step for record in bundle.records()} == set(range(1, 10))
    assert {"config", "nonfinite", "skip"} <= {event.kind for event in bundle.events()}
    assert bundle.source().trainer["trainer"] == "fake"


def test_a_sidecar_killed_in_the_middle_leaves_a_bundle_that_the_next_completes(
    started: Started, tmp_path: Path
) -> None:
    first = daemon(started, tmp_path)
    trainer = started.trainer(RUN, "--stdin", "--bad-from", 6, "--output-dir", tmp_path / "out")
    for _ in range(8):
        step(trainer)
    (before,) = until(lambda: written(tmp_path), what="a bundle")
    first.send_signal(signal.SIGKILL)
    first.wait(10)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait(10)
    daemon(started, tmp_path)
    until(lambda: written(tmp_path)[0].about.state is State.CLOSED, 30.0, "the next sidecar closes it")
    same = [one for one in written(tmp_path) if one.about.incident_id == before.about.incident_id]
    assert len(same) == 1
    assert same[0].damage() == []
    assert "died (rank 0)" in same[0].about.ended
