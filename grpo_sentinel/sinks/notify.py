"""Messages to people through apprise, one channel a URL, each with its own groups, back-off and counts.

    notify.note      every finding        ─┐
    notify.warning   warnings and worse   ─┼─▶ URLs from environment variables or files ─▶ slack://, mailto://, ...
    notify.critical  critical only        ─┘

apprise costs 1.5 s and 50 MiB to load, so it is imported when the sink is made, in the sink's own thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from grpo_sentinel.clock import Clock
from grpo_sentinel.config import NotifyConfig
from grpo_sentinel.errors import ConfigError
from grpo_sentinel.records import Severity
from grpo_sentinel.sinks import notify_text
from grpo_sentinel.sinks.base import SinkContext
from grpo_sentinel.sinks.notify_groups import Groups, Notification
from grpo_sentinel.sinks.notify_sender import Notifier, Send
from grpo_sentinel.sinks.webhook_http import DeliveryError, Secret
from grpo_sentinel.views import SinkBatch


def make(context: SinkContext) -> NotifySink:
    """Make the sink; raises `ConfigError` when no URL is given or apprise is not installed."""
    return NotifySink(channels(context.config.notify, context.clock))


def channels(config: NotifyConfig, clock: Clock) -> list[Notifier]:
    """Make one notifier for every URL of every route."""
    urls = [
        (Severity[name.upper()], url)
        for name in ("note", "warning", "critical")
        for url in Secret(getattr(config, name).urls_env, getattr(config, name).urls_file).read().split()
    ]
    if not urls:
        raise ConfigError("sinks.notify has no URL: set GRPO_SENTINEL_NOTIFY_URLS or give urls_file of a route")
    return [_channel(number, severity, url, config, clock) for number, (severity, url) in enumerate(urls, 1)]


def _channel(number: int, severity: Severity, url: str, config: NotifyConfig, clock: Clock) -> Notifier:
    name = f"{url.partition('://')[0][:20]} (channel {number})"
    groups = Groups(
        wait_seconds=config.group_wait_seconds,
        interval_seconds=config.group_interval_seconds,
        at_least=severity,
        quiet=quiet(config.quiet_hours),
    )
    return Notifier(name, groups, apprise_sender(name, url, config), clock)


def apprise_sender(name: str, url: str, config: NotifyConfig) -> Send:
    """Load apprise and make the function that sends through one URL; raises `ConfigError` for one it cannot take."""
    try:
        import apprise
    except ImportError as error:
        raise ConfigError("sinks.notify needs apprise: pip install apprise") from error
    logging.getLogger("apprise").setLevel(logging.CRITICAL)  # its warnings quote parts of URLs
    bounded = f"{url}{'&' if '?' in url else '?'}cto={config.timeout_seconds:g}&rto={config.timeout_seconds:g}"
    service: Any = apprise.Apprise.instantiate(bounded)
    if service is None:
        raise ConfigError(f"apprise cannot take the URL of {name}; see its documentation of that service")

    def send(notification: Notification) -> None:
        kind = apprise.NotifyType.SUCCESS
        if notification.firing:
            grave = notification.severity is Severity.CRITICAL
            kind = apprise.NotifyType.FAILURE if grave else apprise.NotifyType.WARNING
        text = notify_text.body(notification, config.page_url or "")
        try:
            taken = service.notify(title=notify_text.title(notification), body=text, notify_type=kind)
        except Exception as error:  # noqa: BLE001 - two hundred plug-ins, each with its own; the text may hold a secret
            raise DeliveryError(f"{name}: {type(error).__name__}") from None
        if not taken:
            raise DeliveryError(f"{name}: the message was not taken")

    return send


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

    def __init__(self, channels: list[Notifier]) -> None:
        self._channels = channels

    def write(self, batch: SinkBatch) -> None:
        """Hand the batch to every channel."""
        for channel in self._channels:
            channel.write(batch)

    def tick(self) -> None:
        """Let every channel tell what is due."""
        for channel in self._channels:
            channel.tick()

    def problem(self) -> str:
        """Name the channels that are down."""
        return "; ".join(filter(None, (channel.problem() for channel in self._channels)))

    def health(self) -> dict[str, float]:
        """Counts, summed over channels."""
        out: dict[str, float] = {}
        for channel in self._channels:
            for name, value in channel.health().items():
                out[name] = out.get(name, 0) + value
        return out

    def close(self) -> None:
        """Close every channel."""
        for channel in self._channels:
            channel.close()
