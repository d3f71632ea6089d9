"""MLflow as a sink: its client runs in a child process, see `mlflow_tracker`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from grpo_sentinel.config import MlflowConfig
from grpo_sentinel.sinks.base import SinkContext
from grpo_sentinel.sinks.child_process import ChildSink, incident_watch


def make(context: SinkContext) -> ChildSink:
    """Make the sink; the child is started with the first batch."""
    config = context.config.mlflow
    settings = config.model_dump(mode="json")
    settings["parent_run_id"] = config.parent_run_id or os.environ.get("MLFLOW_RUN_ID")
    return ChildSink(
        "mlflow",
        settings,
        context.clock,
        ranks=config.ranks,
        spool_bytes=config.spool_bytes,
        exit_seconds=config.exit_seconds,
        incidents=incident_watch(context, "mlflow") if config.incidents else None,
        environment=environment(os.environ, config),
    )


def environment(inherited: Mapping[str, str], config: MlflowConfig) -> dict[str, str]:
    """The child's environment: by default one call of the client may block for four minutes, so it is bounded here."""
    kept = {name: value for name, value in inherited.items() if name not in ("MLFLOW_RUN_ID", "GRPO_SENTINEL")}
    bounds = {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(config.retries),
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(max(1, round(config.timeout_seconds))),
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
        "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
        "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
        "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    address = {"MLFLOW_TRACKING_URI": config.tracking_uri} if config.tracking_uri else {}
    return kept | bounds | address
