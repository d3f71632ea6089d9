"""One contract for all sinks: the far end slow, hanging, failing, refusing, gone; a flood; the disk full; a restart.

Whatever it is, publishing costs nothing, closing is bounded, the good sink beside it gets everything, and each batch or
line or alert is either where it should be, or waits, or is counted as lost under a reason.
"""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from bad_sinks import Good, eventually
from full_disk import full_after
from sentinel_batches import RUN, batch, finding, record, status
from stand_in import refusing_url, serving

from grpo_sentinel.clock import SystemClock
from grpo_sentinel.config import PrometheusConfig, QueueConfig, SinksConfig
from grpo_sentinel.history import HistoryReader, history_path
from grpo_sentinel.sinks import BUILT_IN, FanOut, SinkContext, SinkState, child_process, load_factory
from grpo_sentinel.sinks import worker as worker_module
from grpo_sentinel.sinks.prometheus import MetricsRenderer
from grpo_sentinel.views import SinkBatch, Snapshot
from grpo_sentinel.web import WebServer, WebState, build_app

BATCHES = 150
NETWORK = ("alertmanager", "webhook", "notify", "otlp", "external")  # the last one from another package
CHILDREN = ("wandb", "mlflow")  # a child that misbehaves in the place of their clients, which have tests of their own
DISKS = ("history", "jsonl", "tensorboard")
SLOW = pytest.mark.slow  # the default tier has the two worst
FAULTS = ("hang", "gone", *(pytest.param(fault, marks=SLOW) for fault in ("slow", "failing", "refusing")))
CHILD_MODES = {"slow": "well", "hang": "hang", "failing": "down", "refusing": "down", "gone": "dies every fifth"}
FAR_END = {"slow", "hang", "failing", "refusing", "gone"}
FAULTS_ALL = {*FAR_END, "flood", "full disk", "restart"}
SINKS = {*BUILT_IN, "external"}
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
    if name == "external":
        (tmp_path / "posting-1.dist-info").mkdir(exist_ok=True)
        (tmp_path / "posting-1.dist-info" / "entry_points.txt").write_text(
            "[grpo_sentinel.sinks]\nexternal = posting_plugin:make\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
    context = SinkContext(
        run_id=RUN, node="node-a", state_dir=tmp_path, clock=SystemClock(), config=config(url), settings={"url": url}
    )  # fmt: skip
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


@pytest.mark.parametrize("name", DISKS)
def test_a_place_that_cannot_be_written_is_said_and_taken_up_when_it_can(name, tmp_path, monkeypatch):
    place = tmp_path / {"history": "history.sqlite", "jsonl": "jsonl", "tensorboard": "tensorboard"}[name]
    place.mkdir() if name == "history" else place.touch()  # what stands in the way: a folder, a file
    fan_out = FanOut({"disk": factory(name, refusing_url(), tmp_path, monkeypatch)}, QueueConfig(size=10, retries=0))
    flood(fan_out)
    eventually(lambda: fan_out.report()["disk"].error, "the trouble is said")
    place.rmdir() if name == "history" else place.unlink()
    before = fan_out.report()["disk"].written
    fan_out.publish(batch(record(1000)))
    eventually(lambda: fan_out.report()["disk"].written > before, "writing goes on", 30)
    report = fan_out.close(20)["disk"]
    assert report.written + sum(report.dropped.values()) == BATCHES + 1, report


@pytest.mark.parametrize("name", DISKS)
def test_what_one_sidecar_wrote_the_next_one_adds_to(name, tmp_path, monkeypatch):
    for step in (1, 2):
        fan_out = FanOut({"disk": factory(name, refusing_url(), tmp_path, monkeypatch)}, QueueConfig())
        now = time.time_ns()
        fan_out.publish(replace(batch(record(step, wall_ns=now)), wall_ns=now))
        report = fan_out.close(20)["disk"]
        assert (report.state, report.written) == (SinkState.CLOSED, 1)
    if name == "history":
        with HistoryReader(history_path(tmp_path, "node-a")) as reader:
            assert [one.step for one in reader.records(RUN, rank=0)] == [1, 2]
    elif name == "jsonl":
        lines = [json.loads(line) for line in (tmp_path / "jsonl" / f"{RUN}.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines if "step" in line] == [1, 2]
    else:
        assert len(list((tmp_path / "tensorboard").rglob("events.out.tfevents.*"))) == 2, (
            "TensorBoard reads them as one"
        )


def test_scrapers_that_hang_or_come_in_floods_delay_neither_the_loop_nor_another_scraper():
    renderer = MetricsRenderer(PrometheusConfig(), SystemClock())
    values = {f"reward.func_mean[f{number}]": 1.0 for number in range(1500)}
    ranks = {rank: status(rank, values=values, updated_wall_ns=time.time_ns()) for rank in range(8)}
    snapshot = Snapshot(run_id=RUN, node="node-a", wall_ns=time.time_ns(), ranks=ranks)
    shown = SinkBatch(run_id=RUN, node="node-a", wall_ns=snapshot.wall_ns, snapshot=snapshot)
    renderer.write(shown)
    state = WebState(snapshots=dict, problems=list, act=lambda *_: 0, act_token="t", metrics=renderer.render)
    server = WebServer(build_app(state), "127.0.0.1", 0)
    server.start()
    asked = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    stuck = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(20)]
    try:
        for one in stuck:
            one.sendall(asked)  # and nobody ever reads the half megabyte
        slowest = 0.0
        for _ in range(20):
            with urllib.request.urlopen(f"{server.url}/metrics", timeout=20) as answer:
                assert len(answer.read()) > 500_000
            began = time.thread_time()
            renderer.write(shown)
            slowest = max(slowest, time.thread_time() - began)
        assert slowest < 0.05
    finally:
        for one in stuck:
            one.close()
        assert server.stop(10)


ELSEWHERE = {
    ("prometheus", "slow", "hang", "flood"): "test_scrapers_that_hang_or_come_in_floods, above",
    (
        "prometheus",
        "failing",
        "refusing",
        "gone",
    ): "it is asked and never asks: a scraper that stays away costs nothing",
    ("prometheus", "full disk"): "it keeps nothing on disk",
    ("prometheus", "restart"): "its counters begin anew, as Prometheus expects of a process",
    (*DISKS, "slow", "hang"): "a write is the worker's: test_fanout has sinks that are slow, hang, and hang at the end",
    (
        *DISKS,
        "failing",
        "refusing",
        "gone",
    ): "test_a_place_that_cannot_be_written, above; history: test_history_store too",
    (
        "alertmanager",
        "webhook",
        "notify",
        "otlp",
        "mlflow",
        "full disk",
    ): "they keep nothing on disk; a spool is memory",
    ("wandb", "full disk"): "test_wandb: lines wait while the disk is full, and what does not fit is counted",
    ("external", "full disk", "flood"): "test_third_party_sink; a flood meets the same queue as any other sink",
}


def test_every_sink_meets_every_fault_or_it_is_said_why_not():
    """The table of this file: sinks that ship and one from elsewhere, times eight faults."""
    met = {(sink, fault) for sink in (*NETWORK, *CHILDREN) for fault in FAR_END}
    met |= {(sink, "flood") for sink in BUILT_IN}  # test_sink_contract
    met |= {(sink, "full disk") for sink in DISKS} | {(sink, "restart") for sink in (*NETWORK, *CHILDREN, *DISKS)}
    excused = {
        (sink, fault) for key in ELSEWHERE for sink in key for fault in key if sink in SINKS and fault in FAULTS_ALL
    }
    assert {(sink, fault) for sink in SINKS for fault in FAULTS_ALL} - met - excused == set()


@pytest.mark.parametrize("name", ["alertmanager", "webhook", "notify", "external", pytest.param("otlp", marks=SLOW), *(
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
