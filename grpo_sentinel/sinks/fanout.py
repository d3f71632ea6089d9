"""Hand every batch to every sink without ever waiting for one.

    publish ──▶ queue (bounded, oldest dropped, counted) ──▶ worker thread ──▶ sink      one such line per sink

One sink's trouble is its own: a slow one lags, a failing one is retried and then made anew by its factory, a hanging
one is reported and left alone. Workers are daemon threads, so none of them can keep the process from exiting.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from grpo_sentinel.clock import Clock, SystemClock
from grpo_sentinel.config import QueueConfig
from grpo_sentinel.sinks.base import Sink
from grpo_sentinel.sinks.worker import SinkHealth, Worker
from grpo_sentinel.views import SinkBatch

log = logging.getLogger(__name__)

GRACE_SECONDS = 0.25  # for a worker that notices the deadline itself


class FanOut:
    """Start one worker per sink; `sinks` maps a name to a factory that is called in the worker's own thread."""

    def __init__(
        self, sinks: Mapping[str, Callable[[], Sink]], queue: QueueConfig | None = None, clock: Clock | None = None
    ) -> None:
        self._workers = {
            name: Worker(name, factory, queue or QueueConfig(), clock or SystemClock())
            for name, factory in sinks.items()
        }
        self._closed = False

    def publish(self, batch: SinkBatch) -> None:
        """Queue a batch for every sink; never blocks, never raises. After `close` it does nothing."""
        if self._closed:
            return
        for worker in self._workers.values():
            worker.offer(batch)

    def report(self) -> dict[str, SinkHealth]:
        """State, counts and last error of every sink."""
        return {name: worker.report() for name, worker in self._workers.items()}

    def health(self) -> dict[str, float]:
        """The same as flat numbers for export: `sink_dropped_total[sink=history,reason=queue_full]` and so on."""
        out: dict[str, float] = {}
        for name, health in self.report().items():
            out |= health.flat(name)
        return out

    def close(self, timeout_seconds: float = 5.0) -> dict[str, SinkHealth]:
        """Let every sink write out what is queued, all within `timeout_seconds`; gives the final report.

        A sink that is not done by then is left behind: its thread cannot keep the process alive.
        """
        self._closed = True
        deadline = time.monotonic() + timeout_seconds
        for worker in self._workers.values():
            worker.finish(deadline)
        for name, worker in self._workers.items():
            if not worker.join(max(0.0, deadline - time.monotonic()) + GRACE_SECONDS):
                log.warning("sink %s did not finish within %.1f s; left behind", name, timeout_seconds)
        return self.report()
