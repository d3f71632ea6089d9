"""One contract for all sinks: the far end slow, hanging, failing, refusing, gone; the disk full; the sidecar restarted.

Whatever it is, publishing costs nothing, closing is bounded, the good sink beside it gets everything, and each batch or
line or alert is either where it should be, or waits, or is counted as lost under a reason.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

import pytest
from bad_sinks import Good, eventually
from full_disk import full_after
from sentinel_batches import RUN, batch, finding, record
from stand_in import refusing_url, serving

from grpo_sentinel.clock import SystemClock
from grpo_sentinel.config import QueueConfig, SinksConfig
from grpo_sentinel.sinks import FanOut, SinkContext, SinkState, child_process, load_factory
from grpo_sentinel.sinks import worker as worker_module

BATCHES = 150
NETWORK = ("alertmanager", "webhook", "notify", "otlp")
CHILDREN = ("wandb", "mlflow")  # a child that misbehaves in the place of their clients, which have tests of their own
DISKS = ("history", "jsonl", "tensorboard")
SLOW = pytest.mark.slow  # the default tier has the two worst
FAULTS = ("hang", "gone", *(pytest.param(fault, marks=SLOW) for fault in ("slow", "failing", "refusing")))
CHILD_MODES = {"slow": "well", "hang": "hang", "failing": "down", "refusing": "down", "gone": "dies every fifth"}
NEEDS = {"notify": "apprise", "otlp": "opentelemetry.proto"}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(worker_module, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(worker_module, "MAX_BACKOFF_SECONDS", 0.2)


def config(url):
    quick = {"timeout_seconds": 0.5, "group_wait_seconds": 0, "group_interval_seconds": 0}
    tracker = {"exit_seconds": 1.5, "spool_bytes": 65_536}
    return SinksConfig.model_validate({
        "alertmanager": {"url": url, "timeout_seconds": 0.5, "repost_seconds": 1}, "webhook": quick, "notify": quick,
        "wandb": tracker, "mlflow": tracker, "otlp": {**tracker, "endpoint": url, "timeout_seconds": 0.5},
        "jsonl": {"max_bytes": 4096, "keep_files": 0},
    })  # fmt: skip


def factory(name, url, tmp_path, monkeypatch, mode="well"):
    if name in NEEDS and importlib.util.find_spec(NEEDS[name].partition(".")[0]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    monkeypatch.setenv("GRPO_SENTINEL_WEBHOOK_URL", url)
    monkeypatch.setenv("GRPO_SENTINEL_NOTIFY_URLS", url.replace("http://", "json://"))
    if name in CHILDREN:
        fake = Path(__file__).with_name("fake_tracker.py")
        monkeypatch.setattr(child_process, "COMMAND", (sys.executable, str(fake), str(tmp_path / "taken"), mode))
    context = SinkContext(run_id=RUN, node="node-a", state_dir=tmp_path, clock=SystemClock(), config=config(url))
    return lambda: load_factory(name)(context)


def flood(fan_out):
    """Publish batches with records and ever new findings; gives the slowest call."""
    slowest = 0.0
    for step in range(1, BATCHES + 1):
        made = batch(record(step, values={"policy.loss": float(step), "x" * 500: 1.0}), findings=(
            finding(f"rule_{step % 7}", finding_id=f"f{step}", step=step, onset_step=step),))  # fmt: skip
        began = time.thread_time()
        fan_out.publish(made)
        slowest = max(slowest, time.thread_time() - began)
    return slowest


def accounted(report):
    """Every batch was written or dropped under a reason."""
    assert report.written + sum(report.dropped.values()) == BATCHES, report


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", [*NETWORK, *CHILDREN])
def test_a_far_end_in_trouble_costs_the_others_nothing_and_the_exit_is_bounded(name, fault, tmp_path, monkeypatch):
    with serving() as server:
        server.mode = {"slow": "slow", "hang": "hang", "failing": 500, "refusing": 400, "gone": 200}[fault]
        url = refusing_url() if fault == "gone" else server.url
        make, good = factory(name, url, tmp_path, monkeypatch, CHILD_MODES[fault]), Good()
        fan_out = FanOut({"bad": make, "good": lambda: good}, QueueConfig(size=40, timeout_seconds=2, retries=0))
        assert flood(fan_out) < 0.05
        eventually(lambda: len(good.batches) >= 40, "the good sink goes on")
        began = time.monotonic()
        report = fan_out.close(3.0)
        assert time.monotonic() - began < 6
        accounted(report["bad"])
        accounted(report["good"])
        assert report["good"].state is SinkState.CLOSED
        server.release.set()


@pytest.mark.parametrize("name", [*CHILDREN, "otlp"])
def test_what_a_child_sink_could_not_hand_over_is_counted_by_reason(name, tmp_path, monkeypatch):
    sink = factory(name, refusing_url(), tmp_path, monkeypatch, "down")()
    for step in range(1, 301):
        sink.write(batch(record(step, values={f"policy.{'x' * 200}{i}": 1.0 for i in range(4)})))
    sink.close()
    health = sink.health()
    lost = {
        reason: health[f"lost_total[reason={reason}]"] for reason in ("spool_full", "closing", "rejected", "poison")
    }
    assert lost["spool_full"] > 0
    assert lost["closing"] > 0
    assert health["lines_total"] + sum(lost.values()) == 300


@pytest.mark.parametrize("name", ["alertmanager", "webhook", "notify"])
def test_alerts_that_were_refused_for_good_are_counted_by_reason(name, tmp_path, monkeypatch):
    with serving() as server:
        server.mode = 400
        sink = factory(name, server.url, tmp_path, monkeypatch)()
        firing = finding()
        shown = batch(findings=(firing,))
        sink.write(shown)
        for _ in range(3):
            sink.tick()
        health = sink.health()
        sink.close()
    lost = {key: value for key, value in health.items() if key.startswith("lost_total") and value}
    assert lost or health.get("failures_total", 0) > 0, health


@pytest.mark.parametrize("name", DISKS)
def test_a_disk_that_is_full_is_counted_and_writing_goes_on_when_there_is_room(name, tmp_path, monkeypatch):
    make = factory(name, refusing_url(), tmp_path, monkeypatch)
    fan_out = FanOut({"disk": make}, QueueConfig(size=1000, retries=0))
    fan_out.publish(batch(record(1)))
    eventually(lambda: fan_out.report()["disk"].written == 1, "the first was written")
    with full_after(1):
        flood(fan_out)

        def suffers():
            report = fan_out.report()["disk"]
            own = sum(
                value for key, value in report.own.items() if "errors" in key or "dropped" in key or "failing" in key
            )
            return report.errors + own > 0

        eventually(suffers, "the trouble was noticed", 30)
    before = fan_out.report()["disk"].written
    fan_out.publish(batch(record(1000)))
    eventually(lambda: fan_out.report()["disk"].written > before, "writing goes on", 30)
    report = fan_out.close(20)["disk"]
    assert report.written + sum(report.dropped.values()) == BATCHES + 2


@pytest.mark.parametrize("name", ["alertmanager", "webhook", "notify", pytest.param("otlp", marks=SLOW), *(
    pytest.param(name, marks=SLOW) for name in CHILDREN)])  # fmt: skip
def test_after_a_restart_the_next_one_works_on(name, tmp_path, monkeypatch):
    with serving() as server:
        make = factory(name, server.url, tmp_path, monkeypatch)
        for round_ in range(2):
            fan_out = FanOut({"sink": make}, QueueConfig())
            fan_out.publish(batch(record(round_ + 1), findings=(finding(finding_id=f"f{round_}"),)))
            report = fan_out.close(15)["sink"]
            assert (report.state, report.written) == (SinkState.CLOSED, 1)
        if name in CHILDREN:
            assert (tmp_path / "taken").read_text().count("closed") == 2
        elif name != "otlp":
            assert len(server.requests) >= 2
