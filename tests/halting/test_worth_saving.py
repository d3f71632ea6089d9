"""Nothing is saved of weights that are lost: a run is stopped without, and a person's own request is left alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from run_support import HERE, cli, finding

from grpo_sentinel.halting.worth_saving import LOST, worth_saving
from grpo_sentinel.records import Action, FindingState
from grpo_sentinel.rules import load_rules


def test_a_halt_saves_unless_weights_or_moments_are_lost() -> None:
    halts, saves, alerts = finding(), finding(action=Action.CHECKPOINT), finding("other", Action.ALERT)
    assert worth_saving([halts, saves], lambda: [alerts]) == [halts, saves]
    lost = finding("weights_nonfinite", Action.ALERT)
    changed = worth_saving([halts, saves, alerts], lambda: [lost])
    assert [one.action for one in changed] == [Action.HALT_NOW, Action.ALERT, Action.ALERT]
    assert changed[0].message == (
        "gradient_nonfinite is bad; "
        "no checkpoint is written (weights_nonfinite): `grpo-sentinel resume-point` names one from before"
    )
    assert changed[2] is alerts
    over = finding("weights_nonfinite", Action.ALERT, state=FindingState.RESOLVED)
    assert worth_saving([halts], lambda: [over]) == [halts]
    assert worth_saving([alerts], lambda: pytest.fail("not asked")) == [alerts]


def test_the_rules_that_tell_of_lost_weights_exist() -> None:
    assert {rule.name for rule in load_rules()} >= LOST


@pytest.mark.parametrize("lost", [False, True])
def test_a_real_run_is_halted_and_saves_only_weights_that_are_finite(tmp_path: Path, lost: bool) -> None:
    config = tmp_path / "sentinel.yaml"
    config.write_text(json.dumps({"http": {"port": 0}, "launch": {"linger_seconds": 0.5}}))
    trainer = (sys.executable, HERE / "fake_trainer.py", "--output-dir", tmp_path / "out", "--save-steps", 1000)
    faults = ("--bad-from", 50, *(("--lost-weights",) if lost else ()))
    done = cli("launch", "--config", config, "--run-id", "run", "--", *trainer, *faults, timeout=60)
    assert done.returncode == 83, done.stderr
    saved = list((tmp_path / "out").glob("checkpoint-*"))
    assert len(saved) == (0 if lost else 1), done.stderr
    assert ("no checkpoint is written (weights_nonfinite)" in done.stderr) == lost, done.stderr
    for promise in ("the weights are still good", "save them", "written by the halt"):
        assert promise not in done.stderr
    assert "resume-point" in next(rule for rule in load_rules() if rule.name == "nonfinite_updates").remedies[0]
