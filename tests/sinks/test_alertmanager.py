"""Alertmanager is told what fires, again in time, and what has ended; by a stand-in and by the real one."""

from __future__ import annotations

import datetime
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from dataclasses import replace

import pytest
from bad_sinks import eventually
from sentinel_batches import WALL_NS, finding
from stand_in import refusing_url, serving
from test_notify_groups import CHILD, ROOT, shows

from grpo_sentinel.clock import ManualClock, SystemClock
from grpo_sentinel.config import AlertmanagerConfig
from grpo_sentinel.records import Severity
from grpo_sentinel.sinks.alertmanager import AlertmanagerSink


@pytest.fixture
def server():
    with serving() as made:
        yield made


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def sink(server, clock):
    made = AlertmanagerSink(AlertmanagerConfig(url=server.url + "/", timeout_seconds=0.3), clock)
    yield made
    made.close()


def seconds(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() - WALL_NS / 1e9


def test_a_finding_is_an_alert_for_each_of_its_ranks_with_the_labels_of_the_rules(server, sink):
    sink.write(shows(replace(ROOT, ranks=(0, 3)), replace(CHILD, ranks=())))
    ((path, _, alerts),) = server.requests
    assert path == "/api/v2/alerts"
    common = {"alertname": "GrpoSentinelFinding", "run_id": "run-1", "node": "node-a", "severity": "critical"}
    reward = common | {"rule": "nan_reward", "layer": "reward"}
    expected = [reward | {"rank": "0"}, reward | {"rank": "3"}, common | {"rule": "nan_loss", "layer": "policy"}]
    assert sorted(map(str, (dict(sorted(alert["labels"].items())) for alert in alerts))) == sorted(
        str(dict(sorted(labels.items()))) for labels in expected
    )
    assert (seconds(alerts[0]["startsAt"]), seconds(alerts[0]["endsAt"])) == (0, 240)


def test_labels_of_the_configuration_stand_on_every_alert_and_cannot_replace_our_own(server, clock):
    sink = AlertmanagerSink(AlertmanagerConfig(url=server.url, labels={"cluster": "a", "rule": "other"}), clock)
    sink.write(shows(ROOT))
    ((_, _, (alert,)),) = server.requests
    assert alert["labels"]["cluster"] == "a"
    assert alert["labels"]["rule"] == "nan_reward"
    sink.close()


def test_it_is_posted_again_before_it_would_end_and_not_in_between(server, sink, clock):
    for _ in range(130):
        sink.write(shows(ROOT))
        sink.tick()
        clock.advance(1)
    ends = [seconds(alerts[0]["endsAt"]) for alerts in server.bodies]
    assert ends == [240, 300, 360]
    assert {alert["startsAt"] for alerts in server.bodies for alert in alerts} == {"2023-11-14T22:13:20.000Z"}


def test_what_no_longer_fires_is_ended_once(server, sink, clock):
    sink.write(shows(ROOT, CHILD))
    clock.advance(5)
    for at in (5, 6, 7):
        sink.write(shows(CHILD, at=at))
    assert len(server.requests) == 2
    (ended,) = server.bodies[1]
    assert (ended["labels"]["rule"], seconds(ended["endsAt"])) == ("nan_reward", 5)
    assert sink.health()["alerts"] == 1


def test_what_fires_again_is_posted_again(server, sink):
    sink.write(shows(ROOT))
    sink.write(shows())
    sink.write(shows(ROOT, at=9))
    assert [seconds(alerts[0]["endsAt"]) for alerts in server.bodies] == [240, 0, 240]


def test_runs_end_only_their_own(server, sink):
    sink.write(shows(ROOT))
    sink.write(shows(run_id="other"))
    assert len(server.requests) == 1


def test_mild_findings_are_left_out(server, sink):
    sink.write(shows(replace(ROOT, severity=Severity.NOTE)))
    assert server.requests == []


@pytest.mark.parametrize("mode", [500, "hang"])
def test_a_server_that_was_not_well_learns_how_things_stand(server, sink, clock, mode):
    server.mode = mode
    began = time.monotonic()
    for _ in range(20):
        sink.write(shows(ROOT))
    assert time.monotonic() - began < 5
    assert sink.health()["failures_total"] == 1
    assert sink.problem()
    server.mode = 200
    server.requests.clear()
    clock.advance(2)
    sink.write(shows(CHILD, at=2))
    assert sorted((alert["labels"]["rule"], seconds(alert["endsAt"])) for alert in server.bodies[0]) == [
        ("nan_loss", 242), ("nan_reward", 2),
    ]  # fmt: skip
    assert sink.problem() == ""


def test_a_server_that_is_gone_costs_little_and_closing_costs_nothing(clock):
    sink = AlertmanagerSink(AlertmanagerConfig(url=refusing_url()), clock)
    for _ in range(1000):
        sink.write(shows(ROOT))
        clock.advance(1)
    assert 15 <= sink.health()["failures_total"] <= 30
    began = time.monotonic()
    sink.close()
    assert time.monotonic() - began < 1


def test_alerts_that_the_server_refuses_are_counted_and_go_no_further(server, sink):
    server.mode = 400
    for _ in range(5):
        sink.write(shows(ROOT))
    assert (len(server.requests), sink.health()["lost_total[reason=rejected]"]) == (1, 1)


def test_a_fault_on_very_many_ranks_is_one_alert(server, sink):
    sink.write(shows(replace(ROOT, ranks=tuple(range(1000)))))
    assert len(server.bodies[0]) == 1


# ---- the real one

alertmanager = pytest.mark.skipif(
    shutil.which("prometheus-alertmanager") is None or shutil.which("amtool") is None,
    reason="needs Alertmanager: apt-get install prometheus-alertmanager",
)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture
def real(server, tmp_path):
    """Alertmanager that hands everything on to the stand-in at once."""
    config = tmp_path / "alertmanager.yml"
    config.write_text(
        "route: {receiver: hook, group_by: ['...'], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}\n"
        f"receivers: [{{name: hook, webhook_configs: [{{url: '{server.url}/hook', send_resolved: true}}]}}]\n"
    )
    url = f"http://127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        ["prometheus-alertmanager", f"--config.file={config}", f"--storage.path={tmp_path / 'data'}",
         f"--web.listen-address={url.partition('//')[2]}", "--cluster.listen-address="],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def ready():
        try:
            return urllib.request.urlopen(url + "/-/ready", timeout=1).status == 200
        except OSError:
            return False

    try:
        eventually(ready, "Alertmanager is ready", 60)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def queried(url):
    done = subprocess.run(
        ["amtool", f"--alertmanager.url={url}", "alert", "query", "-o", "json"], capture_output=True, timeout=30
    )
    return json.loads(done.stdout)


@pytest.mark.slow
@alertmanager
def test_the_real_alertmanager_takes_a_finding_within_a_second_and_lets_it_end(server, real):
    clock = SystemClock()
    sink = AlertmanagerSink(AlertmanagerConfig(url=real), clock)
    now = (clock.wall_ns() - WALL_NS) / 1e9
    odd = finding("odd", finding_id="odd", message="\ud800 \x00 {{ .x }}", subject='"\\', wall_ns=clock.wall_ns())
    began = time.monotonic()
    sink.write(shows(replace(ROOT, wall_ns=clock.wall_ns()), odd, at=now))
    eventually(lambda: len(server.requests) == 2, "both alerts reached the receiver")
    took = time.monotonic() - began
    assert sink.problem() == ""
    assert took < 1
    found = {alert["labels"]["rule"]: alert for alert in queried(real)}
    assert set(found) == {"nan_reward", "odd"}
    assert found["nan_reward"]["labels"] == {
        "alertname": "GrpoSentinelFinding", "run_id": "run-1", "node": "node-a", "rule": "nan_reward",
        "layer": "reward", "severity": "critical", "rank": "1",
    }  # fmt: skip
    sink.write(shows(odd, at=(clock.wall_ns() - WALL_NS) / 1e9))
    eventually(lambda: any(body["status"] == "resolved" for body in server.bodies), "the end reached the receiver")
    assert [alert["labels"]["rule"] for alert in queried(real)] == ["odd"]
    print(f"finding to receiver: {took * 1e3:.0f} ms")


@pytest.mark.slow
@alertmanager
def test_the_same_alert_from_a_prometheus_rule_is_one_alert(real):
    clock = SystemClock()
    sink = AlertmanagerSink(AlertmanagerConfig(url=real), clock)
    sink.write(shows(replace(ROOT, wall_ns=clock.wall_ns()), at=(clock.wall_ns() - WALL_NS) / 1e9))
    labels = {
        "alertname": "GrpoSentinelFinding", "run_id": "run-1", "node": "node-a", "rule": "nan_reward",
        "layer": "reward", "severity": "critical", "rank": "1",
    }  # fmt: skip
    request = urllib.request.Request(
        real + "/api/v2/alerts", json.dumps([{"labels": labels}]).encode(), {"Content-Type": "application/json"}
    )
    assert urllib.request.urlopen(request, timeout=10).status == 200
    assert len(queried(real)) == 1
