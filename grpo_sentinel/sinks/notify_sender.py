"""Tell one channel about groups of findings: when due, with a back-off, and without ever raising for a dead channel."""

from __future__ import annotations

import time
from collections.abc import Callable

from grpo_sentinel.clock import Clock
from grpo_sentinel.sinks.notify_groups import Groups, Notification
from grpo_sentinel.sinks.webhook_http import DeliveryError
from grpo_sentinel.views import SinkBatch

FIRST_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 60.0
FLUSH_SECONDS = 3.0  # no message is begun later than this in one call: a slow channel must not look like a hanging one

Send = Callable[[Notification], None]
"""Delivers one message; raises `DeliveryError`."""


class Backoff:
    """When a failed call may be tried again: 1 s, 2 s, 4 s ... 60 s."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_ns, self._seconds = 0, FIRST_BACKOFF_SECONDS

    def ready(self) -> bool:
        """Say whether a try is allowed now."""
        return self._clock.monotonic_ns() >= self._next_ns

    def failed(self) -> None:
        """Wait twice as long from now on."""
        self._next_ns = self._clock.monotonic_ns() + round(self._seconds * 1e9)
        self._seconds = min(self._seconds * 2, MAX_BACKOFF_SECONDS)

    def succeeded(self) -> None:
        """Begin anew."""
        self._next_ns, self._seconds = 0, FIRST_BACKOFF_SECONDS


class Notifier:
    """A sink for one channel. Its groups are a state, so that nothing piles up while the channel is down."""

    def __init__(self, name: str, groups: Groups, send: Send, clock: Clock) -> None:
        self.name = name
        self._groups, self._send, self._clock = groups, send, clock
        self._backoff = Backoff(clock)
        self._problem = ""
        self._sent = self._failures = self._rejected = self._unsent = 0

    def write(self, batch: SinkBatch) -> None:
        """Take what changed and tell what is due."""
        self._groups.update(batch)
        self.tick()

    def tick(self) -> None:
        """Tell what is due, unless the channel failed a moment ago."""
        self._flush(last=False)

    def _flush(self, *, last: bool) -> None:
        began = time.monotonic()
        for notification in self._groups.due(self._clock.wall_ns(), last=last):
            if not self._backoff.ready() or time.monotonic() - began > FLUSH_SECONDS:
                return
            self._deliver(notification)

    def _deliver(self, notification: Notification) -> None:
        try:
            self._send(notification)
        except DeliveryError as error:
            self._problem = str(error)
            if not error.final:
                self._failures += 1
                self._backoff.failed()
                return
            self._rejected += 1
        else:
            self._sent += 1
            self._problem = ""
        self._backoff.succeeded()
        self._groups.sent(notification, self._clock.wall_ns())

    def problem(self) -> str:
        """Say why the newest message did not get through, "" when it did."""
        return self._problem

    def health(self) -> dict[str, float]:
        """Messages sent, failed tries, and messages lost by reason."""
        return {
            "messages_total": self._sent,
            "failures_total": self._failures,
            "groups": len(self._groups),
            "lost_total[reason=rejected]": self._rejected,
            "lost_total[reason=too_many]": self._groups.lost,
            "lost_total[reason=closing]": self._unsent,
        }

    def close(self) -> None:
        """Tell what waits, unless the channel is known to be down; what is not told then counts as lost."""
        if not self._problem:
            self._flush(last=True)
        self._unsent += len(self._groups.due(self._clock.wall_ns(), last=True))
