"""POST groups of findings to one URL, in the shape of Alertmanager's webhook, version 4."""

from __future__ import annotations

from grpo_sentinel.clock import Clock
from grpo_sentinel.config import WebhookConfig
from grpo_sentinel.errors import ConfigError
from grpo_sentinel.records import Severity
from grpo_sentinel.sinks.base import Page, SinkContext, no_page
from grpo_sentinel.sinks.notify_groups import Groups, Notification
from grpo_sentinel.sinks.notify_sender import Notifier
from grpo_sentinel.sinks.notify_text import webhook_message
from grpo_sentinel.sinks.webhook_http import Secret, post_json


def make(context: SinkContext) -> Notifier:
    """Make the sink; raises `ConfigError` when no URL is given."""
    return make_webhook(context.config.webhook, context.clock, context.page)


def make_webhook(config: WebhookConfig, clock: Clock, page: Page = no_page) -> Notifier:
    """Make the sink of one webhook."""
    place = Secret(config.url_env, config.url_file)
    url = place.read()
    if not url:
        raise ConfigError(f"sinks.webhook has no URL: {place.place} is empty; put the URL there")
    token = Secret(config.token_env, config.token_file)

    def send(notification: Notification) -> None:
        message = webhook_message(notification, config.page_url or page())
        post_json(url, message, timeout_seconds=config.timeout_seconds, token=token)

    groups = Groups(
        wait_seconds=config.group_wait_seconds,
        interval_seconds=config.group_interval_seconds,
        at_least=Severity[config.severity.upper()],
    )
    return Notifier("webhook", groups, send, clock)
