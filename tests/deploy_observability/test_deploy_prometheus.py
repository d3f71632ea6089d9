"""The shipped Prometheus and Alertmanager files: names that are exported, labels that agree, and the real tools' word."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml
from metric_names import OF_PROMETHEUS, exported, used
from real_servers import DEPLOY, program
from recording import openmetrics

from grpo_sentinel.config import load_config
from grpo_sentinel.records import Action, Finding, FindingState, Severity
from grpo_sentinel.sinks.notify_text import ALERT_NAME, labels_of

PROMETHEUS, ALERTMANAGER = DEPLOY / "prometheus", DEPLOY / "alertmanager"
GROUPS = yaml.safe_load((PROMETHEUS / "rules.yml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
CASES = (PROMETHEUS / "rules.test.yml").read_text()


def test_every_metric_of_a_rule_is_one_that_is_exported_or_recorded():
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    known = exported() | recorded | OF_PROMETHEUS
    for rule in RULES:
        names = used(rule["expr"])
        assert names
        assert names <= known, f"{rule.get('alert') or rule['record']}: {names - known}"


def test_every_alert_has_a_case_and_says_what_and_what_to_do():
    for name, rule in ALERTS.items():
        assert f"alertname: {name}" in CASES, f"{name} has no case in rules.test.yml"
        assert set(rule["annotations"]) == {"summary", "description"}, name
        assert rule.get("labels", {}).get("severity") in (
            ("note", "warning", "critical") if name != ALERT_NAME else (None,)
        )


def test_the_alert_of_findings_has_the_labels_of_the_direct_push_and_no_other():
    finding = Finding(
        finding_id="f", rule="r", layer="reward", severity=Severity.CRITICAL, state=FindingState.FIRING, run_id="run",
        action=Action.ALERT, step=2, onset_step=1, ranks=(0,), message="m", wall_ns=1,
    )  # fmt: skip
    (pushed,) = labels_of(finding, "node")
    rule = ALERTS[ALERT_NAME]
    by = re.match(r"max by \(([\w, ]+)\)", rule["expr"])[1].split(", ")
    assert set(pushed) == {"alertname", *by}
    assert "labels" not in rule
    assert "for" not in rule  # the push waits for nothing either


def test_alerts_that_may_halt_a_run_name_it_and_reach_the_sidecar_of_the_example():
    config = load_config(ALERTMANAGER / "sentinel.yaml")
    routes = (ALERTMANAGER / "alertmanager.yml").read_text()
    for name in config.halting.on_alerts:
        assert re.search(r"(by|on) \(run_id|run_id:", ALERTS[name]["expr"]), f"{name} carries no run_id"
        assert name in routes
    assert f"http://127.0.0.1:{config.http.port}/api/alertmanager" in routes


def test_the_recorded_run_is_openmetrics_that_holds_no_series_twice():
    text, first, last = openmetrics(1_700_000_000)
    assert last - first > 60
    assert text.endswith("# EOF\n")
    stamps = [line.rsplit(" ", 2)[0::2] for line in text.splitlines() if not line.startswith("#")]
    assert len({(series, at) for series, at in stamps}) == len(stamps)


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv",
    [
        ["promtool", "check", "rules", "--lint=all", "--lint-fatal", PROMETHEUS / "rules.yml"],
        ["promtool", "check", "config", "--lint=all", PROMETHEUS / "prometheus.yml"],
        ["promtool", "test", "rules", PROMETHEUS / "rules.test.yml"],
        ["amtool", "check-config", ALERTMANAGER / "alertmanager.yml"],
    ],
    ids=["rules", "config", "cases", "routes"],
)
def test_the_real_tools_find_nothing_to_complain_about(argv):
    done = subprocess.run([program(argv[0]), *argv[1:]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("> 600\n", "> 6000\n"),
        ("> bool 0.95", "> bool 2"),
        ("max by (run_id, node, rule, layer, severity, rank)", "max by (run_id, node, rule, layer, severity)"),
        ("[30m], 3600)) > 1", "[30m], 3600)) > 9"),
        ('grpo_sentinel_rank_state{state="alive"}', 'grpo_sentinel_rank_state{state="dead"}'),
    ],
)
def test_a_rule_that_is_wrong_fails_its_case(tmp_path, right, wrong):
    text = (PROMETHEUS / "rules.yml").read_text()
    assert right in text
    (tmp_path / "rules.yml").write_text(text.replace(right, wrong))
    (tmp_path / "rules.test.yml").write_text(CASES)
    argv = [program("promtool"), "test", "rules", tmp_path / "rules.test.yml"]
    assert subprocess.run(argv, capture_output=True, timeout=60).returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        ({"alertname": "GrpoSentinelRewardCollapsed", "run_id": "r", "severity": "critical"}, "sidecar,urgent"),
        ({"alertname": "GrpoSentinelRankOutOfStep", "run_id": "r", "severity": "critical"}, "sidecar,urgent"),
        ({"alertname": "GrpoSentinelFinding", "severity": "critical", "rule": "reward_nonfinite"}, "urgent"),
        ({"alertname": "GrpoSentinelFinding", "severity": "warning"}, "people"),
        ({"alertname": "GrpoSentinelLosesData", "severity": "note"}, "nobody"),
    ],
)
def test_alerts_are_routed_to_whom_they_concern(labels, receivers):
    pairs = [f"{name}={value}" for name, value in labels.items()]
    argv = [program("amtool"), "config", "routes", "test", f"--config.file={ALERTMANAGER / 'alertmanager.yml'}", *pairs]
    done = subprocess.run([*argv, f"--verify.receivers={receivers}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promql_in_the_documents_is_promql_and_the_join_is_the_one_of_the_cases():
    for name in ("prometheus", "sinks"):
        text = (DEPLOY.parent / "docs" / f"{name}.md").read_text()
        blocks = re.findall(r"^```promql\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        assert blocks
        for block in blocks:
            assert used(block)
            if "DCGM" in block:
                assert " ".join(block.split()) in " ".join(CASES.split())
