"""`grpo-sentinel rules`: list, show, test and calibrate."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import yaml

from benchmarks import healthy as healthy_source
from grpo_sentinel.cli import main
from grpo_sentinel.rules import RuleSet, load_rules
from grpo_sentinel.rules.calibration import LEVELS, Run, calibrate, loosened, override
from grpo_sentinel.rules.profiles import parse_profile

NERVOUS = """
rules:
  - name: nervous
    layer: gradient
    severity: warning
    detect: {kind: spike, signal: gradient.norm_preclip, ratio: 1.2, sigmas: 1.5, window: 50, min_points: 8}
    message: "spike {value}"
    why: a test
    remedies: [nothing]
"""


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    draw = random.Random(3)
    path = tmp_path / "healthy.jsonl"
    with path.open("w") as file:
        for step in range(1, 801):
            row = {"grad_norm": abs(draw.gauss(0.5, 0.1)), "reward": draw.gauss(0.5, 0.05), "reward_std": 0.3}
            file.write(json.dumps({"step": step, **row}) + "\n")
    return path


@pytest.fixture
def nervous(tmp_path: Path) -> Path:
    path = tmp_path / "nervous.yaml"
    path.write_text(NERVOUS)
    return path


def test_list_shows_every_rule_and_its_layer(capsys) -> None:
    assert main(["rules", "list"]) == 0
    text = capsys.readouterr().out
    rules = load_rules()
    assert all(rule.name in text for rule in rules)
    assert f"{len(rules)} rules" in text


def test_list_as_json_is_versioned_and_can_be_cut_to_a_layer(capsys) -> None:
    assert main(["rules", "list", "--layer", "reward", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "grpo-sentinel.rules/1"
    assert {rule["layer"] for rule in body["rules"]} == {"reward"}
    assert main(["rules", "list", "--layer", "weather"]) == 2


def test_a_profile_shows_what_it_switches_off(capsys) -> None:
    main(["rules", "list", "--profile", "beta_zero", "--json"])
    off = {
        rule["name"]: rule["off_because"]
        for rule in json.loads(capsys.readouterr().out)["rules"]
        if rule["off_because"]
    }
    assert off


def test_show_gives_signals_thresholds_and_remedies_and_knows_near_names(capsys) -> None:
    assert main(["rules", "show", "grad_spike"]) == 0
    body = yaml.safe_load(capsys.readouterr().out)
    assert body["signals"] == ["gradient.norm_preclip", "policy.advantage_zero_ratio", "reward.zero_std_ratio"]
    assert body["detect"]["ratio"] == 50
    assert body["remedies"]
    assert main(["rules", "show", "grad_spik"]) == 2
    assert "grad_spike" in capsys.readouterr().err


def test_test_runs_cases_and_says_which_failed(tmp_path: Path, nervous: Path, capsys) -> None:
    cases = tmp_path / "cases.yaml"
    cases.write_text(
        "cases:\n  - rule: nervous\n    fires: {series: {gradient.norm_preclip: '1~0.01x20 3'}, expect: {step: 21}}\n"
        "    silent: {series: {gradient.norm_preclip: '1x30'}}\n"
    )
    assert main(["rules", "test", str(cases), "--rules", str(nervous), "-v"]) == 0
    assert "2 passed, 0 failed" in capsys.readouterr().out
    cases.write_text("cases:\n  - rule: nervous\n    fires: {series: {gradient.norm_preclip: '1x30'}}\n")
    assert main(["rules", "test", str(cases), "--rules", str(nervous)]) == 1
    assert "FAILED  cases.yaml: nervous fires: expected a finding, got none" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cases:\n  - rule: unknown_rule\n    fires: {}\n", "there is no rule named 'unknown_rule'"),
        ("- 1\n", "expected a mapping"),
        ("cases:\n  - fires: {}\n", "needs a `rule`"),
        ("cases:\n  - rule: grad_spike\n    fires: {series: {gradient.norm_preclip: 'abc'}}\n", "cannot be played"),
    ],
)
def test_a_file_of_cases_that_is_wrong_is_refused_in_one_sentence(text: str, says: str, tmp_path: Path, capsys) -> None:
    cases = tmp_path / "cases.yaml"
    cases.write_text(text)
    assert main(["rules", "test", str(cases)]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_calibrate_keeps_the_budget_and_the_profile_it_writes_does_too(
    healthy: Path, nervous: Path, tmp_path: Path, capsys
) -> None:
    profile = tmp_path / "profile.yaml"
    assert main(["replay", str(healthy), "--rules", str(nervous)]) == 1
    assert main(["rules", "calibrate", str(healthy), "--rules", str(nervous), "--budget", "1", "-o", str(profile)]) == 0
    capsys.readouterr()
    assert parse_profile(profile.read_text(), "profile").parameters["nervous"]["ratio"] > 1.2
    main(["replay", str(healthy), "--rules", str(nervous), "--profile", str(profile), "--json"])
    counts = json.loads(capsys.readouterr().out)["runs"][0]["counts"]
    assert counts["warning"] <= 0.8  # one per 1,000 steps, of 800


def test_calibrate_says_what_it_costs_in_detection_delay(healthy: Path, nervous: Path, capsys) -> None:
    main(["rules", "calibrate", str(healthy), "--rules", str(nervous), "--budget", "1", "--json"])
    result = json.loads(capsys.readouterr().out)["result"]
    (change,) = result["changes"]
    assert change["alarms_before"] > 3 >= change["alarms_after"]
    assert set(change["delays"]) == {"5 sigma", "10 sigma", "30 sigma", "100 sigma"}
    assert change["delays"]["100 sigma"][1] == 1  # a large fault is still told at once
    small = change["delays"]["5 sigma"]
    assert small[1] is None or small[0] is None or small[1] >= small[0] or small[0] > 1


def test_a_rule_that_decides_by_a_bound_is_never_loosened(tmp_path: Path, capsys) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text(
        "".join(json.dumps({"step": s, "grad_norm": 0.5 if s % 9 else float("nan")}) + "\n" for s in range(1, 100))
    )
    assert main(["rules", "calibrate", str(path), "--budget", "0.2"]) == 1
    text = capsys.readouterr().out
    assert "it decides by a bound and is not loosened" in text


def test_a_silent_run_changes_nothing_and_says_how_sure_that_is(healthy: Path, capsys) -> None:
    assert main(["rules", "calibrate", str(healthy), "--budget", "0.2"]) == 0
    text = capsys.readouterr().out
    assert "0 alarms" in text
    assert "with 95 % certainty below 3.75" in text
    assert "15,000 healthy steps" in text


def test_every_rule_that_may_be_loosened_can_be_at_every_level() -> None:
    for rule in load_rules():
        if not rule.bound:
            for level in range(1, LEVELS + 1):
                override(rule, loosened(rule, level))


def test_runs_without_a_step_and_a_negative_budget_are_refused(tmp_path: Path, capsys) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("")
    assert main(["rules", "calibrate", str(path)]) == 2
    assert main(["rules", "calibrate", str(path), "--budget", "-1"]) == 2
    capsys.readouterr()


def test_tighten_narrows_silent_rules_within_bounds_and_they_stay_silent() -> None:
    frames = list(healthy_source.run("gaussian", 1000))
    names = ("grad_spike", "reward_cliff", "loss_nonfinite", "entropy_jump")
    chosen = RuleSet(rules=tuple(rule for rule in load_rules() if rule.name in names), profile="none")
    run = Run(name="r", items=lambda: iter(frames))
    found = calibrate(chosen, [run], 0.2, tighten=True)
    changed = {change.rule: change for change in found.changes}
    assert "grad_spike" in changed
    assert "loss_nonfinite" not in changed  # decides by a bound
    for change in changed.values():
        for key, value in change.parameters.items():
            assert 0.59 <= value / change.before[key] < 1
    assert found.alarms_after == 0
    assert calibrate(chosen, [run], 0.2).changes == ()
    assert calibrate(chosen, [Run(name="r", items=lambda: iter(frames[:500]))], 0.2, tighten=True).changes == ()
