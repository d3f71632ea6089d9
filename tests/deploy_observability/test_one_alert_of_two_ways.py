"""A finding that the sidecar pushes and that the shipped rule finds again is one alert in a real Alertmanager."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from real_servers import DEPLOY, alertmanager, ask, free_port, program, prometheus
from test_alert_halts_run import faster, until

pytestmark = pytest.mark.slow
TRAINER = Path(__file__).resolve().parents[1] / "halting" / "fake_trainer.py"


def alerts(manager: str) -> list[dict]:
    with urllib.request.urlopen(f"{manager}/api/v2/alerts", timeout=10) as answer:
        return json.loads(answer.read())


def sent(metrics: str) -> float:
    """Alerts that Prometheus has handed on."""
    with urllib.request.urlopen(f"{metrics}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("prometheus_notifications_sent_total"))


def test_the_push_comes_first_and_the_rule_adds_no_second_alert(tmp_path: Path) -> None:
    program("prometheus"), program("prometheus-alertmanager")
    sidecar, port = free_port(), free_port()
    (tmp_path / "rules.yml").write_text(faster((DEPLOY / "prometheus" / "rules.yml").read_text()))
    scrape = faster((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    scrape = scrape.replace("127.0.0.1:9477", f"127.0.0.1:{sidecar}").replace("127.0.0.1:9093", f"127.0.0.1:{port}")
    (tmp_path / "prometheus.yml").write_text(scrape)
    (tmp_path / "alertmanager.yml").write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    (tmp_path / "sentinel.yaml").write_text(json.dumps({
        "http": {"port": sidecar}, "halting": {"dry_run": True}, "collectors": {"nvml": {"enabled": False}},
        "sinks": {"alertmanager": {"enabled": True, "url": f"http://127.0.0.1:{port}", "severity": "note"}},
    }))  # fmt: skip
    started: list[subprocess.Popen[bytes]] = []
    with alertmanager(tmp_path / "alertmanager.yml", tmp_path / "am", port) as manager:
        try:
            run = [sys.executable, "-m", "grpo_sentinel.cli", "run", "--config", str(tmp_path / "sentinel.yaml")]
            started.append(subprocess.Popen(run, stderr=subprocess.DEVNULL))
            trainer = [sys.executable, str(TRAINER), "--interval", "0.05", "--bad-from", "20"]
            environment = {**os.environ, "GRPO_SENTINEL_RUN_ID": "both"}
            started.append(subprocess.Popen(trainer, env=environment, stdout=subprocess.DEVNULL))
            until(lambda: alerts(manager), 60, "the sidecar has pushed")
            assert all(one["generatorURL"] == f"http://127.0.0.1:{sidecar}" for one in alerts(manager)), "its page"
            with prometheus(tmp_path / "prometheus.yml", tmp_path / "tsdb") as metrics:
                rule = 'ALERTS{alertname="GrpoSentinelFinding", alertstate="firing"}'
                until(lambda: ask(metrics, "query", query=rule), 60, "the rule has found it too")
                firing = len(ask(metrics, "query", query=rule))
                until(lambda: sent(metrics) >= firing, 60, "Prometheus has handed on all of them")
                found = {
                    (one["metric"]["rule"], one["metric"].get("rank", "")) for one in ask(metrics, "query", query=rule)
                }
                held = [one["labels"] for one in alerts(manager) if one["labels"]["alertname"] == "GrpoSentinelFinding"]
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait(30)
    counted = Counter((labels["rule"], labels.get("rank", "")) for labels in held)
    assert found <= set(counted)
    assert set(counted.values()) == {1}, counted
    assert {tuple(sorted(labels)) for labels in held} <= {
        ("alertname", "layer", "node", "rank", "rule", "run_id", "severity"),
        ("alertname", "layer", "node", "rule", "run_id", "severity"),
    }
