"""An OTLP/HTTP receiver on a free port that decodes what it gets with OpenTelemetry's own messages."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics


class Receiver:
    """`mode` is "ok", a status, "partial" or "hang"; keeps the messages that it took and the headers of each."""

    def __init__(self) -> None:
        self.mode: str | int = "ok"
        self.metrics: list[metrics.ExportMetricsServiceRequest] = []
        self.logs: list[logs.ExportLogsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.sizes: list[int] = []
        self.release = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                data = self.rfile.read(int(self.headers["content-length"]))
                receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                if receiver.mode == "hang":
                    receiver.release.wait(120)
                    self.close_connection = True
                    return
                status = 200 if receiver.mode in ("ok", "partial") else receiver.mode
                out = receiver.take(self.path, data, self.headers.get("content-encoding")) if status == 200 else b"no"
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("content-type", "application/x-protobuf")
                    self.send_header("content-length", str(len(out)))
                    self.end_headers()
                    self.wfile.write(out)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def take(self, path: str, data: bytes, encoding: str | None) -> bytes:
        body = gzip.decompress(data) if encoding == "gzip" else data
        self.sizes.append(len(body))
        if path == "/v1/metrics":
            self.metrics.append(metrics.ExportMetricsServiceRequest.FromString(body))
            answer = metrics.ExportMetricsServiceResponse()
            if self.mode == "partial":
                answer.partial_success.rejected_data_points = 2
                answer.partial_success.error_message = "too old"
            return answer.SerializeToString()
        assert path == "/v1/logs", path
        self.logs.append(logs.ExportLogsServiceRequest.FromString(body))
        return logs.ExportLogsServiceResponse().SerializeToString()

    def points(self) -> list[tuple[str, dict, float, int]]:
        """Every point as (name, attributes, value, time)."""
        return [
            (metric.name, plain(point.attributes), point.as_double, point.time_unix_nano)
            for request in self.metrics
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in (metric.sum if metric.HasField("sum") else metric.gauge).data_points
        ]

    def records(self) -> list:
        """Every log record."""
        return [
            record
            for request in self.logs
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


def plain(attributes) -> dict:
    """Attributes as a dictionary."""
    return {pair.key: _value(pair.value) for pair in attributes}


def _value(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """Receive until the block ends."""
    made = Receiver()
    try:
        yield made
    finally:
        made.close()
