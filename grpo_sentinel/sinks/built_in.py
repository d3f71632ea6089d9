"""Factories of the sinks that ship."""

from __future__ import annotations

from grpo_sentinel.history import HistoryStore, history_path
from grpo_sentinel.sinks.base import Sink, SinkContext
from grpo_sentinel.sinks.prometheus import MetricsRenderer


def make_history(context: SinkContext) -> Sink:
    """Open the SQLite history of this node; raises `HistoryError` when it cannot be used."""
    path = history_path(context.state_dir, context.node)
    return HistoryStore(path, context.config.history, context.clock)


def make_prometheus(context: SinkContext) -> Sink:
    """Make the renderer behind /metrics."""
    return MetricsRenderer(context.config.prometheus, context.clock)
