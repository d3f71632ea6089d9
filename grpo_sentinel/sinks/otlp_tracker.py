"""The OpenTelemetry client inside the child process: OTLP over HTTP, protobuf, one bounded try a request.

    POST <endpoint>/v1/metrics     POST <endpoint>/v1/logs

    2xx                        taken; what the collector rejects of it (partial success) counts as lost
    429, 502, 503, 504, none   the same lines come again (the OTLP specification's list of retryable answers)
    anything else              refused: counted as lost, never repeated

Metrics go before logs, so that a batch that comes again repeats points of the same time, which are the same points,
and no log record. Headers, certificates and per-signal addresses come from the standard OTEL_EXPORTER_OTLP_* variables.
"""

from __future__ import annotations

import gzip
import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from grpo_sentinel._version import __version__
from grpo_sentinel.sinks.child import Line, Report, TrackerDown, plain_text
from grpo_sentinel.sinks.otlp_messages import Started, log_request, metric_requests
from grpo_sentinel.sinks.webhook_http import no_redirects, show, without_credentials

RETRYABLE = (429, 502, 503, 504)
MAX_ANSWER_BYTES = 65_536


class OtlpTracker:
    """Encodes and posts; what the collector does not take now comes again."""

    def __init__(self, settings: Mapping[str, Any], report: Report) -> None:
        self._settings, self._report = settings, report
        self._started: Started = {}
        self._refused = False
        self._headers = headers_of(os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", ""))
        base = settings["endpoint"].rstrip("/")
        self._metrics_url = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") or f"{base}/v1/metrics"
        self._logs_url = os.environ.get("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT") or f"{base}/v1/logs"
        self._open = no_redirects(_tls(os.environ.get("OTEL_EXPORTER_OTLP_CERTIFICATE")))

    def take(self, lines: Sequence[Line]) -> None:
        """Send lines; raises `TrackerDown` when the collector cannot take them now."""
        refused, self._refused = self._refused, False
        for request, points in metric_requests(lines, self._started):
            answer = self._post(self._metrics_url, request.SerializeToString(), points)
            self._heed(answer, ExportMetricsServiceResponse, "data_points")
        logs = log_request(lines)
        if logs is not None:
            count = sum(len(scope.log_records) for held in logs.resource_logs for scope in held.scope_logs)
            answer = self._post(self._logs_url, logs.SerializeToString(), count)
            self._heed(answer, ExportLogsServiceResponse, "log_records")
        if refused and not self._refused:
            self._report({"problem": ""})

    def _post(self, url: str, data: bytes, count: int) -> bytes:
        headers = {"Content-Type": "application/x-protobuf", "User-Agent": f"grpo-sentinel/{__version__}"}
        if self._settings["compression"] == "gzip":
            data = gzip.compress(data, 5)
            headers["Content-Encoding"] = "gzip"
        try:
            if urlsplit(url).scheme not in ("http", "https"):
                raise TrackerDown(f"{show(url)} is no http or https address; correct sinks.otlp.endpoint")
            address, credentials = without_credentials(url)
            request = urllib.request.Request(  # noqa: S310
                address, data, {**headers, **credentials, **self._headers}, method="POST"
            )
            with self._open(request, timeout=self._settings["timeout_seconds"]) as answer:
                body: bytes = answer.read(MAX_ANSWER_BYTES)
                return body
        except urllib.error.HTTPError as error:
            with error:
                text = f"{show(url)} answered {error.code} {plain_text(error.reason)}"
                if error.code in RETRYABLE:
                    raise TrackerDown(text) from None
                self._lost(count, text)
                return b""
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise TrackerDown(f"{show(url)}: {plain_text(getattr(error, 'reason', None) or error)}") from None

    def _heed(self, answer: bytes, kind: Any, what: str) -> None:
        """Count what a collector that took a request has left out of it."""
        try:
            partial = kind.FromString(answer).partial_success
        except DecodeError:
            return  # an answer in words: it was taken all the same
        rejected = int(getattr(partial, f"rejected_{what}"))
        if rejected:
            self._lost(rejected, f"the collector left out {rejected} {what}: {plain_text(partial.error_message)}")

    def _lost(self, count: int, why: str) -> None:
        self._refused = True
        self._report({"lost": count, "reason": "rejected", "problem": why})

    def close(self) -> None:
        """Nothing is held back."""


def headers_of(text: str) -> dict[str, str]:
    """Read `name=value,name=value`, values with percent escapes, as the OpenTelemetry specification has it."""
    pairs = (part.partition("=") for part in text.split(",") if "=" in part)
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}


def _tls(certificate: str | None) -> ssl.SSLContext | None:
    return ssl.create_default_context(cafile=certificate) if certificate else None
