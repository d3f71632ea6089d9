"""The whole way round: real Prometheus, real Alertmanager, real run. A metric goes wrong, and the trainer halts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from real_servers import DEPLOY, alertmanager, ask, free_port, program, prometheus

from grpo_sentinel.halting.checkpoints import check_finite
from grpo_sentinel.history import HistoryReader
from grpo_sentinel.rules import load_rules

pytestmark = [pytest.mark.torch, pytest.mark.slow]
TOKEN = "0123456789abcdef0123456789abcdef"


def faster(text: str) -> str:
    """The shipped files with every wait made short, and nothing else changed."""
    return re.sub(
        r"\b(for|(?:scrape_|evaluation_)?interval): \d+[smh]",
        lambda m: f"{m[1]}: {'1s' if m[1] == 'for' else '200ms'}",
        text,
    )


def test_a_metric_goes_wrong_on_some_ranks_and_the_trainer_halts_with_a_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program("prometheus"), program("prometheus-alertmanager")
    sidecar, manager = free_port(), free_port()
    (tmp_path / "rules.yml").write_text(faster((DEPLOY / "prometheus" / "rules.yml").read_text()))
    scrape = faster((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    scrape = scrape.replace("127.0.0.1:9477", f"127.0.0.1:{sidecar}").replace("127.0.0.1:9093", f"127.0.0.1:{manager}")
    (tmp_path / "prometheus.yml").write_text(scrape)
    routes = (
        (DEPLOY / "alertmanager" / "alertmanager.yml").read_text().replace("127.0.0.1:9477", f"127.0.0.1:{sidecar}")
    )
    (tmp_path / "alertmanager.yml").write_text(
        routes.replace("/etc/alertmanager/grpo-sentinel.token", str(tmp_path / "token"))
    )
    (tmp_path / "token").write_text(TOKEN)
    own = [rule.name for rule in load_rules() if rule.layer in ("reward", "policy", "gradient", "optimizer")]
    (tmp_path / "sentinel.yaml").write_text(json.dumps({
        "http": {"port": sidecar, "act_token_file": str(tmp_path / "token")},
        "halting": {"on_alerts": {"GrpoSentinelRewardCollapsed": "checkpoint-and-halt"}},
        "rules": {"disabled": own},  # the request must come from the alert
        "launch": {"linger_seconds": 1}, "collectors": {"nvml": {"enabled": False}},
    }))  # fmt: skip
    with (
        prometheus(tmp_path / "prometheus.yml", tmp_path / "tsdb") as metrics,
        alertmanager(tmp_path / "alertmanager.yml", tmp_path / "am", manager),
    ):
        argv = [sys.executable, "-m", "grpo_sentinel.cli", "launch", "--config", tmp_path / "sentinel.yaml"]
        argv += ["--run-id", "watched", "--", sys.executable, "-m", "torch.distributed.run", "--standalone"]
        argv += [
            "--nproc_per_node",
            "2",
            Path(__file__).with_name("rewards_loop.py"),
            tmp_path / "out",
            tmp_path / "flag",
        ]
        run = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        try:
            ratio = 'run_id:grpo_sentinel_reward_collapsed_ranks:ratio{run_id="watched"}'
            until(
                lambda: [s["value"][1] for s in ask(metrics, "query", query=ratio)] == ["0"],
                90,
                "a healthy run is seen",
            )
            assert ask(metrics, "query", query='ALERTS{alertname="GrpoSentinelRewardCollapsed"}') == []
            began = time.monotonic()
            (tmp_path / "flag").touch()
            _, errors = run.communicate(timeout=120)
        finally:
            if run.poll() is None:
                run.terminate()
                run.wait(60)
    print(f"from the fault to the end of launch: {time.monotonic() - began:.1f} s")
    assert run.returncode == 83, errors
    (saved,) = (tmp_path / "out").glob("checkpoint-*")
    assert check_finite(saved).finite
    with HistoryReader(tmp_path / "state" / "grpo-sentinel" / "history.sqlite") as reader:
        asked = reader.requests("watched")
    assert {one.requested_by for one in asked} == {"alert GrpoSentinelRewardCollapsed"}
    assert {one.request_id for one in asked} == {1}
    assert "rewards have collapsed on 50% of the ranks of run watched" in asked[-1].reason


def until(look, seconds: float, what: str) -> None:
    limit = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < limit, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)
