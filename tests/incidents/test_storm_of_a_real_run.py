"""A real run in which every step breaks several rules, hundreds of times: one incident, one halt, bounded disk and CPU."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "halting"))

from run_support import Started, directory_of, last_step, until

from grpo_sentinel.daemon.claim import read_note
from grpo_sentinel.history import HistoryReader, history_path
from grpo_sentinel.incidents.bundle import Bundle
from grpo_sentinel.incidents.model import State
from grpo_sentinel.incidents.places import bundles
from grpo_sentinel.records import Action, HaltState

pytestmark = [pytest.mark.torch, pytest.mark.slow]

STEPS = 600
MAX_BYTES = 8_000_000
_TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def started() -> Iterator[Started]:
    with Started() as processes:
        yield processes


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def test_six_hundred_steps_that_break_many_rules_are_one_incident_one_halt_and_little_work(
    started: Started, tmp_path: Path
) -> None:
    config = tmp_path / "sentinel.yaml"
    body = {
        "http": {"port": 0}, "launch": {"linger_seconds": 4}, "collectors": {"nvml": {"enabled": False}},
        "incidents": {"max_bytes": MAX_BYTES}, "agent": {"capture_bytes": 1_000_000},
    }  # fmt: skip
    config.write_text(json.dumps(body))
    loop = [sys.executable, Path(__file__).with_name("storm_loop.py"), tmp_path / "out", STEPS]
    launch = started.cli("launch", "--config", config, "--run-id", "storm", "--", *loop)
    until(lambda: directory_of("storm").is_dir() and last_step("storm") >= 40, 60, "the storm has begun")
    note = read_note(directory_of("storm"))
    assert note is not None
    began, used = time.monotonic(), cpu_seconds(note.pid)
    state, largest = tmp_path / "state" / "grpo-sentinel", 0
    while last_step("storm") < STEPS - 20:
        largest = max(largest, size(state / "incidents") + size(state / "spool"))
        assert time.monotonic() - began < 240, "the loop does not come to its end"
        time.sleep(0.5)  # nothing is waited for: the disk is looked at now and then
    share = (cpu_seconds(note.pid) - used) / (time.monotonic() - began)
    out, said = launch.communicate(timeout=60)
    print(f"sidecar: {100 * share:.1f} % of a core; incidents and spool: at most {largest / 1e6:.1f} MB")

    assert json.loads(out.splitlines()[-1])["halts"] == 1, said
    assert len(list((tmp_path / "out").glob("checkpoint-*"))) == 2, "the healthy one and that of the halt"
    with HistoryReader(history_path(state, socket.gethostname())) as reader:
        requests = {one.request_id: one for one in reader.requests("storm") if one.request_id}
        rules = {one.rule for one in reader.findings("storm")}
    stopping = [one for one in requests.values() if one.action >= Action.CHECKPOINT]
    assert [(one.action, one.state) for one in stopping] == [(Action.CHECKPOINT_AND_HALT, HaltState.DONE)]
    assert len(requests) <= 1 + 5, "halting.max_evidence"
    assert len(rules) >= 6, rules
    made = [Bundle(path) for path, _ in bundles(state / "incidents")]
    opened = [one for one in made if one.about.run_id == "storm"]
    assert len(opened) == 1, [one.about.title for one in opened]
    assert (opened[0].damage(), opened[0].about.state) == ([], State.CLOSED)
    assert opened[0].about.onset_step == 21
    assert largest <= MAX_BYTES
    assert share < 0.25, "of a core"
