"""Every action that a rule may ask for, asked for by a rule of a real run: what is done, and what is not."""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "halting"))

from run_support import cli

from grpo_sentinel.halting.checkpoints import check_finite
from grpo_sentinel.history import HistoryReader, history_path
from grpo_sentinel.incidents.bundle import Bundle
from grpo_sentinel.incidents.places import bundles
from grpo_sentinel.records import Action, HaltState, Severity
from grpo_sentinel.views import HaltStatus

pytestmark = [pytest.mark.torch, pytest.mark.slow]

RULE = """
layer: policy
rules:
  - name: loss_is_lost
    severity: {severity}
    action: {action}
    detect: {{kind: bound, signal: policy.loss_nonfinite, max: 0}}
    message: "the loss is not finite"
    why: A test.
    remedies: ["None."]
    reference: "S01"
"""


@dataclass(frozen=True)
class Done:
    """What came of a run whose rule asks for one action."""

    code: int
    said: str
    severity: Severity
    requests: list[HaltStatus]
    bundles: list[Bundle]
    saved: list[Path]

    def files(self, what: str) -> list[Path]:
        return [
            one.path / entry["name"] for one in self.bundles for entry in one.manifest["files"] if entry["what"] == what
        ]


def run(folder: Path, action: str, *, dry_run: bool = False) -> Done:
    rule, config = folder / "rule.yaml", folder / "sentinel.yaml"
    rule.write_text(RULE.format(action=action, severity="note" if action == "note" else "warning"))
    body = {
        "http": {"port": 0}, "launch": {"linger_seconds": 3}, "collectors": {"nvml": {"enabled": False}},
        "rules": {"files": [str(rule)], "override": {"nonfinite_updates": {"enabled": False}}},
        "incidents": {"severity": "critical", "stacks": False}, "agent": {"capture": "on_request"},
        "halting": {"dry_run": dry_run},
    }  # fmt: skip
    config.write_text(json.dumps(body))
    loop = (sys.executable, Path(__file__).with_name("acting_loop.py"), folder / "out")
    done = cli("launch", "--config", config, "--run-id", "run", "--", *loop, timeout=120)
    state = folder / "state" / "grpo-sentinel"
    with HistoryReader(history_path(state, socket.gethostname())) as reader:
        (finding,) = {one.finding_id: one for one in reader.findings("run") if one.rule == "loss_is_lost"}.values()
        requests = list({one.request_id: one for one in reader.requests("run")}.values())
    assert finding.onset_step == 30
    found = [Bundle(path) for path, _ in bundles(state / "incidents")]
    assert all(not bundle.damage() for bundle in found)
    return Done(done.returncode, done.stderr, finding.severity, requests, found, sorted((folder / "out").glob("*")))


@pytest.mark.parametrize("action", ["note", "alert"])
def test_a_note_and_an_alert_ask_for_nothing(tmp_path: Path, action: str) -> None:
    done = run(tmp_path, action)
    assert (done.code, done.requests, done.saved) == (0, [], [])
    assert done.severity is (Severity.NOTE if action == "note" else Severity.WARNING)
    assert ("the loss is not finite" in done.said) == (action == "alert")


@pytest.mark.parametrize(
    ("action", "what"),
    [("capture", "tensors"), ("stacks", "stacks"), ("memory-snapshot", "captured"), ("anomaly-trace", "captured")],
)
def test_evidence_is_taken_while_the_run_goes_on(tmp_path: Path, action: str, what: str) -> None:
    done = run(tmp_path, action)
    assert (done.code, done.saved) == (0, []), done.said
    (request,) = done.requests
    assert (request.action, request.state) == (Action[action.upper().replace("-", "_")], HaltState.DONE)
    assert done.files(what), done.bundles[0].manifest
    if action == "anomaly-trace":
        assert "aten.sqrt" in request.detail
        (trace,) = done.files(what)
        assert "acting_loop.py" in trace.read_text(), "the line of code too"
    if action == "memory-snapshot":
        (snapshot,) = done.files(what)
        assert {"parameter", "optimizer state"} & set(json.dumps(json.loads(snapshot.read_text())).split('"'))


def test_a_checkpoint_is_saved_and_the_run_goes_on(tmp_path: Path) -> None:
    done = run(tmp_path, "checkpoint")
    assert done.code == 0, done.said
    assert [one.state for one in done.requests] == [HaltState.DONE]
    (saved,) = done.saved
    assert 31 <= int(saved.name[11:]) <= 35
    assert check_finite(saved).finite


def test_checkpoint_and_halt_saves_and_stops(tmp_path: Path) -> None:
    done = run(tmp_path, "checkpoint-and-halt")
    assert done.code == 83, done.said
    (saved,) = done.saved
    assert check_finite(saved).finite


def test_halt_now_stops_without_saving(tmp_path: Path) -> None:
    done = run(tmp_path, "halt-now")
    assert (done.code, done.saved) == (83, []), done.said


def test_a_dry_run_says_what_it_would_have_done(tmp_path: Path) -> None:
    done = run(tmp_path, "checkpoint-and-halt", dry_run=True)
    assert (done.code, done.saved) == (0, []), done.said
    assert "dry run: would have halted at step 3" in done.said
