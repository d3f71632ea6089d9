"""OpenTelemetry as a sink: encoding and HTTP happen in a child process, see `otlp_tracker`."""

from __future__ import annotations

import os

from grpo_sentinel.sinks.base import SinkContext
from grpo_sentinel.sinks.child_process import ChildSink

DEFAULT_ENDPOINT = "http://127.0.0.1:4318"


def make(context: SinkContext) -> ChildSink:
    """Make the sink; the child is started with the first batch."""
    config = context.config.otlp
    settings = config.model_dump(mode="json")
    settings["endpoint"] = config.endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or DEFAULT_ENDPOINT
    kept = {name: value for name, value in os.environ.items() if name != "GRPO_SENTINEL"}
    return ChildSink(
        "otlp",
        settings,
        context.clock,
        ranks=config.ranks,
        spool_bytes=config.spool_bytes,
        exit_seconds=config.exit_seconds,
        environment=kept,
    )
