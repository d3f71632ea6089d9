"""Where batches of the daemon go: a fan-out that isolates sinks from each other, and the sinks that ship."""

from grpo_sentinel.sinks.base import BUILT_IN, Sink, SinkContext, load_factory
from grpo_sentinel.sinks.fanout import FanOut
from grpo_sentinel.sinks.prometheus import MetricsRenderer
from grpo_sentinel.sinks.worker import SinkHealth, SinkState

__all__ = [
    "BUILT_IN",
    "FanOut",
    "MetricsRenderer",
    "Sink",
    "SinkContext",
    "SinkHealth",
    "SinkState",
    "load_factory",
]
