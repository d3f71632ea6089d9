"""Keep Alertmanager told what fires: POST /api/v2/alerts at every change, again before `endsAt`, and once when it ends.

    fires      startsAt, endsAt = now + 4 x repost_seconds     a sentinel that dies cannot leave an alert for ever
    repost     the same labels, a later endsAt
    resolved   endsAt = now

What fires is a state taken from the snapshot, so a server that was down is told how things stand, not what happened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from grpo_sentinel.clock import Clock
from grpo_sentinel.config import AlertmanagerConfig
from grpo_sentinel.records import Finding, FindingState, Severity
from grpo_sentinel.sinks.base import Page, SinkContext, no_page
from grpo_sentinel.sinks.notify_sender import Backoff
from grpo_sentinel.sinks.notify_text import annotations_of, labels_of, rfc3339
from grpo_sentinel.sinks.webhook_http import DeliveryError, Secret, post_json
from grpo_sentinel.views import SinkBatch

LIFETIMES = 4  # reposts that may fail before Alertmanager lets an alert end
MAX_ALERTS = 2000
POST_ALERTS = 500  # in one request

Key = tuple[tuple[str, str], ...]


def make(context: SinkContext) -> AlertmanagerSink:
    """Make the sink; nothing is asked of the server yet."""
    return AlertmanagerSink(context.config.alertmanager, context.clock, context.page)


@dataclass(frozen=True, slots=True)
class _Alert:
    run_id: str
    labels: dict[str, str]
    annotations: dict[str, str]
    starts_ns: int
    ends_ns: int | None = None  # set once it has resolved


class AlertmanagerSink:
    """Posts alerts; a dead server costs one bounded try now and then."""

    def __init__(self, config: AlertmanagerConfig, clock: Clock, page: Page = no_page) -> None:
        self._config, self._clock, self._page = config, clock, page
        self._at_least = Severity[config.severity.upper()]
        self._url = config.url.rstrip("/") + "/api/v2/alerts"
        self._token = Secret(config.token_env, config.token_file)
        self._alerts: dict[Key, _Alert] = {}
        self._unsent: set[Key] = set()
        self._posted_ns: int | None = None
        self._backoff = Backoff(clock)
        self._problem = ""
        self._posts = self._failures = self._rejected = self._too_many = 0

    def write(self, batch: SinkBatch) -> None:
        """Take what fires in a run and post what changed."""
        self._reconcile(
            batch, {key: alert for finding in self._firing(batch) for key, alert in _alerts(finding, batch)}
        )
        self.tick()

    def _firing(self, batch: SinkBatch) -> list[Finding]:
        """What fires, the gravest last: of two with the same labels the graver one speaks."""
        found = {finding.finding_id: finding for finding in batch.snapshot.findings}
        found |= {finding.finding_id: finding for finding in batch.findings}
        firing = (one for one in found.values() if one.state is FindingState.FIRING and one.severity >= self._at_least)
        return sorted(firing, key=lambda finding: (finding.severity, -finding.onset_step))

    def _reconcile(self, batch: SinkBatch, wanted: dict[Key, _Alert]) -> None:
        for key, alert in self._alerts.items():
            if alert.run_id == batch.run_id and key not in wanted and alert.ends_ns is None:
                self._alerts[key] = replace(alert, ends_ns=batch.wall_ns)
                self._unsent.add(key)
        for key, alert in wanted.items():
            known = self._alerts.get(key)
            if known is not None and known.ends_ns is None:
                self._alerts[key] = replace(alert, starts_ns=known.starts_ns)
            elif known is None and len(self._alerts) >= MAX_ALERTS:
                self._too_many += 1
            else:
                self._alerts[key] = alert
                self._unsent.add(key)

    def tick(self) -> None:
        """Post what changed, and everything that fires when it is time again."""
        if not self._backoff.ready():
            return
        now_ns = self._clock.monotonic_ns()
        if self._posted_ns is not None and now_ns - self._posted_ns >= self._config.repost_seconds * 1e9:
            self._unsent |= self._alerts.keys()
            self._posted_ns = now_ns
        while self._unsent and self._post(sorted(self._unsent)[:POST_ALERTS]):
            pass
        if self._posted_ns is None and self._alerts:
            self._posted_ns = now_ns

    def _post(self, keys: list[Key]) -> bool:
        body = [self._payload(self._alerts[key]) for key in keys]
        try:
            post_json(self._url, body, timeout_seconds=self._config.timeout_seconds, token=self._token)
        except DeliveryError as error:
            self._problem = str(error)
            self._failures += 1
            if not error.final:
                self._backoff.failed()
                return False
            self._rejected += len(keys)
        else:
            self._posts += 1
            self._problem = ""
        self._backoff.succeeded()
        self._unsent.difference_update(keys)
        for key in keys:
            if self._alerts[key].ends_ns is not None:
                del self._alerts[key]
        return True

    def _payload(self, alert: _Alert) -> dict[str, Any]:
        lifetime_ns = round(LIFETIMES * self._config.repost_seconds * 1e9)
        ends_ns = self._clock.wall_ns() + lifetime_ns if alert.ends_ns is None else alert.ends_ns
        body: dict[str, Any] = {
            "labels": {**self._config.labels, **alert.labels},
            "annotations": alert.annotations,
            "startsAt": rfc3339(min(alert.starts_ns, ends_ns)),
            "endsAt": rfc3339(ends_ns),
        }
        page = self._config.page_url or self._page()
        return body | ({"generatorURL": page} if page else {})

    def problem(self) -> str:
        """Say why the newest post failed, "" when it did not."""
        return self._problem

    def health(self) -> dict[str, float]:
        """Posts, failures, alerts held, and alerts lost by reason."""
        return {
            "posts_total": self._posts,
            "failures_total": self._failures,
            "alerts": len(self._alerts),
            "unsent_alerts": len(self._unsent),
            "lost_total[reason=rejected]": self._rejected,
            "lost_total[reason=too_many]": self._too_many,
        }

    def close(self) -> None:
        """Post what changed, unless the server is known to be down; what fires ends by itself at its `endsAt`."""
        if not self._problem:
            self.tick()


def _alerts(finding: Finding, batch: SinkBatch) -> list[tuple[Key, _Alert]]:
    annotations = annotations_of(finding)
    return [
        (tuple(sorted(labels.items())), _Alert(batch.run_id, labels, annotations, finding.wall_ns))
        for labels in labels_of(finding, batch.node)
    ]
