"""Lines of the sidecar as OTLP messages: signals as gauges and cumulative sums, findings and requests as log records.

    resource   service.name "grpo-sentinel", service.version, host.name = node
    metric     "grpo_sentinel.policy.loss", unit by UCUM, attributes run_id, rank, mode and the signal's dimension
    log        body = message, severity_number 9 info, 13 warn, 17 error

NaN and infinities are doubles like any other in protobuf. Only `opentelemetry-proto` is needed: the SDK's exporters do
not tell a refusal, which must not be tried again, from a failure, which must.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from grpo_sentinel._version import __version__
from grpo_sentinel.catalog import SIGNALS, split_name
from grpo_sentinel.sinks.child import Line, numbers

PREFIX = "grpo_sentinel."
MAX_POINTS = 5000  # in one request: about 1 MB before compression
_UNITS = {
    "seconds": "s", "bytes": "By", "celsius": "Cel", "watts": "W", "joules": "J", "hertz": "Hz", "ratio": "1",
    "tokens": "{token}", "tokens/s": "{token}/s", "count": "{count}", "nats": "{nat}", "steps": "{step}", "flag": "1",
}  # fmt: skip
_SEVERITY = {
    "note": (SeverityNumber.SEVERITY_NUMBER_INFO, "INFO"),
    "warning": (SeverityNumber.SEVERITY_NUMBER_WARN, "WARN"),
    "critical": (SeverityNumber.SEVERITY_NUMBER_ERROR, "ERROR"),
}
_SKIP = ("n", "type", "message", "severity", "wall_ns")

Started = dict[tuple[str, ...], int]
"""First time of every counter, which a cumulative sum must carry."""


def metric_requests(lines: Sequence[Line], started: Started) -> Iterator[tuple[ExportMetricsServiceRequest, int]]:
    """Encode the metric lines, one request per node and at most `MAX_POINTS` points; gives each with its points."""
    by_node: dict[str, list[tuple[str, NumberDataPoint]]] = {}
    for line in lines:
        if line["type"] == "metrics":
            by_node.setdefault(line["node"], []).extend(_points(line, started))
    for node, points in by_node.items():
        for first in range(0, len(points), MAX_POINTS):
            part = points[first : first + MAX_POINTS]
            scope = ScopeMetrics(scope=_scope(), metrics=_metrics(part))
            held = ResourceMetrics(resource=_resource(node), scope_metrics=[scope])
            yield ExportMetricsServiceRequest(resource_metrics=[held]), len(part)


def log_request(lines: Sequence[Line]) -> ExportLogsServiceRequest | None:
    """Encode findings and requests; None when there are none."""
    by_node: dict[str, list[LogRecord]] = {}
    for line in lines:
        if line["type"] in ("finding", "request"):
            by_node.setdefault(line["node"], []).append(_record(line))
    if not by_node:
        return None
    return ExportLogsServiceRequest(
        resource_logs=[
            ResourceLogs(resource=_resource(node), scope_logs=[ScopeLogs(scope=_scope(), log_records=records)])
            for node, records in by_node.items()
        ]
    )


def _points(line: Line, started: Started) -> Iterator[tuple[str, NumberDataPoint]]:
    common = {"run_id": line["run_id"], "mode": "evaluation" if line["eval"] else "train"}
    if line["rank"] is not None:
        common["rank"] = line["rank"]
    wall_ns = line["wall_ns"]
    for name, value in numbers(line["values"]).items():
        base, value_of_dimension = split_name(name)
        signal = SIGNALS.get(base)
        extra: dict[str, Any] = {"signal": name} if signal is None else {}
        if signal is not None and value_of_dimension:
            extra = {signal.dimension or "label": value_of_dimension}
        point = NumberDataPoint(attributes=attributes({**common, **extra}), time_unix_nano=wall_ns, as_double=value)
        if signal is not None and signal.kind == "counter":
            key = (line["run_id"], line["node"], str(line["rank"]), name)
            point.start_time_unix_nano = started.setdefault(key, wall_ns)
        yield base if signal is not None else "user_signal", point


def _metrics(points: Sequence[tuple[str, NumberDataPoint]]) -> list[Metric]:
    by_name: dict[str, list[NumberDataPoint]] = {}
    for base, point in points:
        by_name.setdefault(base, []).append(point)
    return [_metric(base, held) for base, held in by_name.items()]


def _metric(base: str, points: list[NumberDataPoint]) -> Metric:
    signal = SIGNALS.get(base)
    if signal is None:
        return Metric(name=PREFIX + base, description="a signal of the user's own", gauge=Gauge(data_points=points))
    name, unit = PREFIX + base, _UNITS.get(signal.unit, "")
    if signal.kind == "counter":
        temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
        total = Sum(data_points=points, is_monotonic=True, aggregation_temporality=temporality)
        return Metric(name=name, description=signal.help, unit=unit, sum=total)
    return Metric(name=name, description=signal.help, unit=unit, gauge=Gauge(data_points=points))


def _record(line: Line) -> LogRecord:
    number, word = _SEVERITY.get(str(line.get("severity")), _SEVERITY["note"])
    if line.get("state") == "resolved":
        number, word = _SEVERITY["note"]
    if line["type"] == "request":
        wall_ns, body = line["updated_wall_ns"], f"{line['action']} by {line['requested_by']}: {line['state']}"
    else:
        wall_ns, body = line["wall_ns"], line["message"]
    told = {name: value for name, value in line.items() if name not in _SKIP and value not in (None, "", [])}
    return LogRecord(
        time_unix_nano=wall_ns,
        observed_time_unix_nano=wall_ns,
        severity_number=number,
        severity_text=word,
        body=AnyValue(string_value=_text(body)),
        attributes=attributes({"event.name": f"grpo_sentinel.{line['type']}", **told}),
    )


def attributes(values: Mapping[str, Any]) -> list[KeyValue]:
    """Encode attributes; what protobuf has no kind for becomes text."""
    return [KeyValue(key=key, value=_any(value)) for key, value in values.items()]


def _any(value: Any) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=[_any(item) for item in value]))
    return AnyValue(string_value=_text(value))


def _text(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode("utf-8")  # protobuf refuses lone surrogates


def _resource(node: str) -> Resource:
    return Resource(
        attributes=attributes({"service.name": "grpo-sentinel", "service.version": __version__, "host.name": node})
    )


def _scope() -> InstrumentationScope:
    return InstrumentationScope(name="grpo_sentinel", version=__version__)
