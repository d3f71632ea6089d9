"""`grpo-sentinel notify test`: send one message through every channel that is switched on, and say which took it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from grpo_sentinel.errors import ConfigError

if TYPE_CHECKING:
    from grpo_sentinel.config import SinksConfig
    from grpo_sentinel.records import Finding
    from grpo_sentinel.views import SinkBatch

RUN_ID = "grpo-sentinel-test"


@click.group()
def notify() -> None:
    """Alerts and messages: Alertmanager, webhook, and what apprise reaches."""


@notify.command(short_help="Send a test message through every channel.")
@click.option("--config", "config_path", metavar="FILE", help="Settings of the sidecar: their `sinks` apply.")
@click.option(
    "--severity",
    type=click.Choice(("note", "warning", "critical")),
    default="critical",
    show_default=True,
    help="How grave the finding in the message is; a channel may want more.",
)
def test(config_path: str | None, severity: str) -> int:
    """Send a test message through every channel that is switched on; exit code 1 when one did not take it."""
    from grpo_sentinel.cli.runs import settings

    sinks = settings(config_path).sinks
    channels = list(_channels(sinks))
    if not channels:
        raise ConfigError("no channel is switched on: set sinks.alertmanager, .webhook or .notify .enabled to true")
    failed = 0
    for name, attempt in channels:
        problem = attempt(severity)
        failed += bool(problem)
        click.echo(f"{name}: {problem or 'sent'}")
    return 1 if failed else 0


def _channels(sinks: SinksConfig) -> Iterator[tuple[str, Callable[[str], str]]]:
    """Name every channel with a function that sends and gives what went wrong."""
    from grpo_sentinel.clock import SystemClock
    from grpo_sentinel.sinks.alertmanager import AlertmanagerSink
    from grpo_sentinel.sinks.notify import open_notify
    from grpo_sentinel.sinks.webhook import make_webhook

    clock = SystemClock()
    if sinks.alertmanager.enabled:
        alertmanager = AlertmanagerSink(sinks.alertmanager, clock)
        yield "alertmanager", lambda severity: _try(alertmanager, severity, "posts_total")
    if sinks.webhook.enabled:
        webhook = make_webhook(sinks.webhook.model_copy(update={"group_wait_seconds": 0}), clock)
        yield "webhook", lambda severity: _try(webhook, severity, "messages_total")
    if sinks.notify.enabled:
        awake = sinks.notify.model_copy(update={"group_wait_seconds": 0, "quiet_hours": None})
        notify = open_notify(awake, clock)
        for channel in notify.channels:
            yield channel.name, lambda severity, one=channel: _try(one, severity, "messages_total")  # type: ignore[misc]


def _try(sink: object, severity: str, count: str) -> str:
    """Write one finding to a sink; "" when it was taken."""
    sink.write(_batch(severity))  # type: ignore[attr-defined]
    problem = str(sink.problem())  # type: ignore[attr-defined]
    if problem:
        return problem
    return "" if sink.health()[count] else f"not sent: it wants more than {severity}"  # type: ignore[attr-defined]


def _batch(severity: str) -> SinkBatch:
    import socket
    import time

    from grpo_sentinel.views import SinkBatch, Snapshot

    node, now = socket.gethostname(), time.time_ns()
    findings = (_finding(severity, now),)
    snapshot = Snapshot(run_id=RUN_ID, node=node, wall_ns=now, findings=findings)
    return SinkBatch(run_id=RUN_ID, node=node, wall_ns=now, findings=findings, snapshot=snapshot)


def _finding(severity: str, now_ns: int) -> Finding:
    from grpo_sentinel.records import Action, Finding, FindingState, Severity

    return Finding(
        finding_id="test", rule="test_message", layer="sentinel", severity=Severity[severity.upper()],
        state=FindingState.FIRING, action=Action.NOTE, run_id=RUN_ID, step=0, onset_step=0, ranks=(), wall_ns=now_ns,
        message="This is a test of grpo-sentinel: nothing is wrong.", remedies=("Nothing needs to be done.",),
    )  # fmt: skip
