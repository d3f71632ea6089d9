"""OTLP: signals become metrics and findings log records, over real HTTP, to a collector that is well, broken or gone."""

from __future__ import annotations

import math
import time

import pytest
from bad_sinks import eventually
from sentinel_batches import RUN, WALL_NS, batch, finding, record
from stand_in import refusing_url

from grpo_sentinel.clock import SystemClock
from grpo_sentinel.config import SinksConfig
from grpo_sentinel.records import Action, FindingState, HaltState, Mode
from grpo_sentinel.sinks import SinkContext
from grpo_sentinel.sinks.otlp_sink import make
from grpo_sentinel.views import HaltStatus

pytest.importorskip("opentelemetry.proto", reason="needs the messages: pip install '.[otlp]'")
from otlp_receiver import plain, receiving


@pytest.fixture
def collector():
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def made(tmp_path, collector, monkeypatch):
    for name in ("ENDPOINT", "METRICS_ENDPOINT", "LOGS_ENDPOINT", "HEADERS", "CERTIFICATE"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
    sinks = []

    def make_one(**changes):
        given = {"endpoint": collector.url, "exit_seconds": 20, "timeout_seconds": 1, **changes}
        config = SinksConfig.model_validate({"otlp": given})
        context = SinkContext(run_id="", node="node-a", state_dir=tmp_path, clock=SystemClock(), config=config)
        sinks.append(make(context))
        return sinks[-1]

    yield make_one
    for sink in sinks:
        sink.close()


def until(sink, condition, what, timeout=60.0):
    def ticked():
        sink.tick()
        return condition()

    eventually(ticked, what, timeout)


def done(sink, lines):
    until(sink, lambda: sink.health()["lines_total"] == lines, f"{lines} lines were done")


def lost(sink):
    return {name: value for name, value in sink.health().items() if name.startswith("lost_total") and value}


VALUES = {
    "policy.loss": math.nan, "reward.max": math.inf, "reward.func_mean[accuracy]": 0.5, "memory.rss_bytes": 1e9,
    "optimizer.skipped_updates": 3.0, "my own": -1.0,
}  # fmt: skip


def test_signals_are_gauges_and_sums_with_units_and_findings_are_log_records(made, collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc, x-team=rl")
    sink = made()
    halt = HaltStatus(
        request_id=1, state=HaltState.DONE, action=Action.CHECKPOINT_AND_HALT, requested_by="user", step=3
    )
    sink.write(batch(record(1, values=VALUES), record(1, rank=1), record(1, mode=Mode.EVALUATION)))
    sink.write(batch(record(2, values={"optimizer.skipped_updates": 4.0})))
    sink.write(batch(findings=(finding(subject="\ud800"), finding("mild", state=FindingState.RESOLVED)), halt=halt))
    done(sink, 7)
    sink.close()
    points = {(name, tuple(sorted(who.items()))): (value, at) for name, who, value, at in collector.points()}
    rank0 = (("mode", "train"), ("rank", 0), ("run_id", RUN))
    assert math.isnan(points["grpo_sentinel.policy.loss", rank0][0])
    assert points["grpo_sentinel.reward.max", rank0] == (math.inf, WALL_NS + 10**9)
    assert points["grpo_sentinel.reward.func_mean", tuple(sorted([*rank0, ("func", "accuracy")]))][0] == 0.5
    assert points["grpo_sentinel.user_signal", tuple(sorted([*rank0, ("signal", "my own")]))][0] == -1
    assert ("grpo_sentinel.policy.loss", (("mode", "train"), ("rank", 1), ("run_id", RUN))) in points
    assert ("grpo_sentinel.policy.loss", (("mode", "evaluation"), ("rank", 0), ("run_id", RUN))) in points
    metrics = {
        m.name: m for r in collector.metrics for h in r.resource_metrics for s in h.scope_metrics for m in s.metrics
    }
    skipped = metrics["grpo_sentinel.optimizer.skipped_updates"].sum
    assert (skipped.is_monotonic, skipped.aggregation_temporality) == (True, 2)
    assert [p.start_time_unix_nano for p in skipped.data_points][-1] == WALL_NS + 10**9  # of the first one
    assert metrics["grpo_sentinel.memory.rss_bytes"].unit == "By"
    resource = plain(collector.metrics[0].resource_metrics[0].resource.attributes)
    assert (resource["service.name"], resource["host.name"]) == ("grpo-sentinel", "node-a")
    fired, resolved, asked = collector.records()
    assert (fired.severity_text, fired.severity_number, fired.body.string_value) == (
        "ERROR",
        17,
        "a gradient is not finite",
    )
    told = plain(fired.attributes)
    assert (told["event.name"], told["rule"], told["ranks"], told["onset_step"], told["run_id"]) == (
        "grpo_sentinel.finding", "nan_gradient", [1], 12, RUN,
    )  # fmt: skip
    assert resolved.severity_text == "INFO"
    assert asked.body.string_value == "checkpoint_and_halt by user: done"
    assert {h["authorization"] for h in collector.headers} == {"Bearer abc"}
    assert {h["content-encoding"] for h in collector.headers} == {"gzip"}
    assert lost(sink) == {}


def test_the_official_exporter_sends_the_same_message_for_the_same_points(made, collector, monkeypatch):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs opentelemetry-exporter-otlp-proto-http")
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Metric,
        MetricsData,
        NumberDataPoint,
        ResourceMetrics,
        ScopeMetrics,
        Sum,
    )
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    sink = made(compression="none")
    sink.write(batch(record(1, values={"reward.max": math.inf, "optimizer.skipped_updates": 3.0})))
    done(sink, 1)
    (own,) = collector.metrics
    who, at = {"run_id": RUN, "mode": "train", "rank": 0}, WALL_NS + 10**9
    held = own.resource_metrics[0]
    metrics = [
        Metric("grpo_sentinel.reward.max", held.scope_metrics[0].metrics[0].description, "",
               Gauge([NumberDataPoint(who, None, at, math.inf)])),
        Metric("grpo_sentinel.optimizer.skipped_updates", held.scope_metrics[0].metrics[1].description, "{count}",
               Sum([NumberDataPoint(who, at, at, 3.0)], AggregationTemporality.CUMULATIVE, True)),
    ]  # fmt: skip
    scope = InstrumentationScope("grpo_sentinel", held.scope_metrics[0].scope.version)
    resource = Resource(plain(held.resource.attributes))
    OTLPMetricExporter(endpoint=f"{collector.url}/v1/metrics").export(
        MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])
    )
    theirs = collector.metrics[-1]
    for message in (own, theirs):
        message.resource_metrics[0].resource.attributes.sort(key=lambda pair: pair.key)
        for metric in message.resource_metrics[0].scope_metrics[0].metrics:
            for point in (metric.sum if metric.HasField("sum") else metric.gauge).data_points:
                point.attributes.sort(key=lambda pair: pair.key)
    assert own == theirs


@pytest.mark.parametrize("mode", ["hang", *(pytest.param(mode, marks=pytest.mark.slow) for mode in (503, 429))])
def test_a_collector_that_comes_back_gets_everything(made, collector, mode):
    sink = made()
    sink.write(batch(record(1)))
    done(sink, 1)
    collector.mode = mode
    for step in range(2, 12):
        sink.write(batch(record(step)))
    sink.write(batch(findings=(finding(),)))
    until(sink, lambda: sink.problem(), "the trouble was said")
    assert "127.0.0.1" in sink.problem()
    collector.mode = "ok"
    collector.release.set()
    done(sink, 12)
    until(sink, lambda: sink.problem() == "", "it is well again")
    assert {at for *_, at in collector.points()} == {WALL_NS + step * 10**9 for step in range(1, 12)}
    assert len(collector.records()) == 1
    assert lost(sink) == {}


@pytest.mark.parametrize(("mode", "count"), [(400, 3), (500, 3), ("partial", 2)])
def test_what_the_collector_refuses_is_counted_and_the_next_goes_on(made, collector, mode, count):
    sink = made()
    collector.mode = mode
    sink.write(batch(record(1, values={"policy.loss": 1.0, "reward.mean": 1.0, "reward.std": 1.0})))
    done(sink, 1)
    assert lost(sink) == {"lost_total[reason=rejected]": count}
    assert sink.problem()
    collector.mode = "ok"
    sink.write(batch(record(2)))
    done(sink, 2)
    until(sink, lambda: sink.problem() == "", "it is well again")


def test_without_a_collector_the_exit_is_bounded_and_what_was_lost_is_counted(made):
    sink = made(endpoint=refusing_url(), exit_seconds=2)
    for step in range(1, 21):
        sink.write(batch(record(step)))
    until(sink, lambda: sink.problem(), "the trouble was said")
    began = time.monotonic()
    sink.close()
    assert time.monotonic() - began < 6
    assert lost(sink) == {"lost_total[reason=closing]": 20}


def test_many_points_go_in_bounded_requests(made, collector):
    sink = made()
    for step in range(1, 31):
        sink.write(batch(record(step, values={f"reward.func_mean[{i}]": 1.0 for i in range(400)})))
    done(sink, 30)
    assert len(collector.points()) == 12_000
    assert max(collector.sizes) < 2_000_000


def test_headers_are_read_as_the_specification_has_them():
    from grpo_sentinel.sinks.otlp_tracker import headers_of

    assert headers_of("a=1,b=x%2Cy , c=d=e,broken") == {"a": "1", "b": "x,y", "c": "d=e"}
    assert headers_of("") == {}


def test_credentials_in_the_endpoint_go_as_basic_auth(made, collector):
    sink = made(endpoint=collector.url.replace("http://", "http://ada:pass@"))
    sink.write(batch(record(1)))
    done(sink, 1)
    assert {headers["authorization"] for headers in collector.headers} == {"Basic YWRhOnBhc3M="}


def test_an_address_that_is_none_is_said_without_its_credentials(made):
    sink = made(endpoint="ftp://user:secret@host")
    sink.write(batch(record(1)))
    until(sink, lambda: sink.problem(), "the trouble was said")
    assert "sinks.otlp.endpoint" in sink.problem()
    assert "secret" not in sink.problem()
