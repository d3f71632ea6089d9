"""Messages to people through apprise, one channel a URL, each with its own groups, back-off and counts.

    notify.note      every finding        ─┐
    notify.warning   warnings and worse   ─┼─▶ URLs from environment variables or files ─▶ slack://, mailto://, ...
    notify.critical  critical only        ─┘

apprise itself lives in a process of its own, see `notify_process`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from itertools import zip_longest

from grpo_sentinel.clock import Clock
from grpo_sentinel.config import NotifyConfig
from grpo_sentinel.errors import ConfigError
from grpo_sentinel.records import Severity
from grpo_sentinel.sinks import notify_text
from grpo_sentinel.sinks.base import Page, SinkContext, no_page
from grpo_sentinel.sinks.notify_groups import Groups, Notification
from grpo_sentinel.sinks.notify_process import AppriseProcess
from grpo_sentinel.sinks.notify_sender import Notifier
from grpo_sentinel.sinks.webhook_http import DeliveryError, Secret
from grpo_sentinel.views import SinkBatch


def make(context: SinkContext) -> NotifySink:
    """Make the sink; raises `ConfigError` when no URL is given, one is not taken, or apprise is not installed."""
    return open_notify(context.config.notify, context.clock, context.page)


def open_notify(config: NotifyConfig, clock: Clock, page: Page = no_page) -> NotifySink:
    """Make one notifier for every URL of every route."""
    urls = [
        (Severity[name.upper()], url)
        for name in ("note", "warning", "critical")
        for url in Secret(getattr(config, name).urls_env, getattr(config, name).urls_file).read().split()
    ]
    if not urls:
        raise ConfigError("sinks.notify has no URL: set GRPO_SENTINEL_NOTIFY_URLS or give urls_file of a route")
    if importlib.util.find_spec("apprise") is None:
        raise ConfigError("sinks.notify needs apprise: pip install apprise")
    process = AppriseProcess([url for _, url in urls], config.timeout_seconds)
    names = [f"{url.partition('://')[0][:20]} (channel {number})" for number, (_, url) in enumerate(urls, 1)]
    for name, taken in zip_longest(names, process.taken()):
        if not taken:
            process.close()
            raise ConfigError(f"apprise cannot take the URL of {name}; see its documentation of that service")
    channels = []
    for number, (severity, _) in enumerate(urls):
        groups = Groups(
            wait_seconds=config.group_wait_seconds,
            interval_seconds=config.group_interval_seconds,
            at_least=severity,
            quiet=quiet(config.quiet_hours),
        )
        send = partial(_send, process, number, names[number], lambda: config.page_url or page())
        channels.append(Notifier(names[number], groups, send, clock))
    return NotifySink(channels, process)


def _send(process: AppriseProcess, number: int, name: str, page: Page, notification: Notification) -> None:
    kind = "success"
    if notification.firing:
        kind = "failure" if notification.severity is Severity.CRITICAL else "warning"
    text = notify_text.body(notification, page())
    problem = process.send(number, notify_text.title(notification), text, kind)
    if problem:
        raise DeliveryError(f"{name}: {problem}")


def quiet(hours: str | None) -> Callable[[int], bool]:
    """Make the function that says whether a time (ns since the epoch) is in `22:00-07:00`, UTC; None is never."""
    if hours is None:
        return lambda now_ns: False
    begin, end = (int(part[:2]) * 60 + int(part[3:]) for part in hours.split("-"))

    def is_quiet(now_ns: int) -> bool:
        minute = now_ns // 60_000_000_000 % 1440
        return begin <= minute < end if begin <= end else minute >= begin or minute < end

    return is_quiet


class NotifySink:
    """All channels of apprise as one sink; a dead channel keeps none of the others waiting but by its time-out."""

    def __init__(self, channels: list[Notifier], process: AppriseProcess) -> None:
        self.channels, self._process = channels, process

    def write(self, batch: SinkBatch) -> None:
        """Hand the batch to every channel."""
        for channel in self.channels:
            channel.write(batch)

    def tick(self) -> None:
        """Let every channel tell what is due."""
        for channel in self.channels:
            channel.tick()
        self._process.tick()

    def problem(self) -> str:
        """Name the channels that are down."""
        return "; ".join(filter(None, (channel.problem() for channel in self.channels)))

    def health(self) -> dict[str, float]:
        """Counts, summed over channels."""
        out: dict[str, float] = {}
        for channel in self.channels:
            for name, value in channel.health().items():
                out[name] = out.get(name, 0) + value
        return out

    def close(self) -> None:
        """Close every channel."""
        for channel in self.channels:
            channel.close()
        self._process.close()
