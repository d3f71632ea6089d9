"""Findings as Alertmanager labels and annotations, as its webhook message (version 4), and as text for people.

labels      alertname, run_id, node, rule, layer, severity, rank      the same as an alert rule over
            max by (run_id, node, rule, layer, severity, rank) (grpo_sentinel_findings) > 0
annotations summary, description, remedy, step, onset_step, subject
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit

from grpo_sentinel.records import Finding, FindingState
from grpo_sentinel.sinks.notify_groups import Notification

ALERT_NAME = "GrpoSentinelFinding"
MAX_RANKS = 64  # alerts made of one finding; a fault on more ranks than that is one alert without rank
MAX_ALERTS = 50  # in one message
MAX_TEXT = 1000
NEVER = "0001-01-01T00:00:00Z"


def rfc3339(wall_ns: int) -> str:
    """Write a time as Alertmanager does, with milliseconds."""
    moment = datetime.fromtimestamp(min(max(wall_ns, 0) / 1e9, 2e11), timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def safe(text: str, limit: int = MAX_TEXT) -> str:
    """Make a text that JSON and every receiver takes; what is too long is cut."""
    clean = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def labels_of(finding: Finding, node: str) -> list[dict[str, str]]:
    """Give the labels of a finding, once for each of its ranks; empty labels are left out."""
    common = {
        "alertname": ALERT_NAME,
        "run_id": safe(finding.run_id, 200),
        "node": safe(node, 200),
        "rule": safe(finding.rule, 200),
        "layer": finding.layer,
        "severity": finding.severity.name.lower(),
    }
    common = {name: value for name, value in common.items() if value}
    if not finding.ranks or len(finding.ranks) > MAX_RANKS:
        return [common]
    return [{**common, "rank": str(rank)} for rank in finding.ranks]


def annotations_of(finding: Finding) -> dict[str, str]:
    """Say what, why, since when and what to do."""
    texts = {
        "summary": finding.message,
        "description": finding.why,
        "remedy": "; ".join(finding.remedies),
        "step": str(finding.step),
        "onset_step": str(finding.onset_step),
        "subject": finding.subject,
    }
    return {name: safe(text) for name, text in texts.items() if text}


def fingerprint(labels: Mapping[str, str]) -> str:
    """Name a set of labels by 16 hexadecimal digits."""
    return hashlib.sha256(repr(sorted(labels.items())).encode()).hexdigest()[:16]


def webhook_message(notification: Notification, page_url: str) -> dict[str, Any]:
    """Write a group in the shape of Alertmanager's webhook, version 4."""
    alerts = [
        _alert(finding, labels, page_url)
        for finding in notification.findings
        for labels in labels_of(finding, notification.node)
    ]
    group = {
        "run_id": safe(notification.run_id, 200),
        "node": safe(notification.node, 200),
        "root": notification.key[1],
    }
    return {
        "version": "4",
        "groupKey": safe(":".join((notification.node, *notification.key)), 500),
        "truncatedAlerts": max(0, len(alerts) - MAX_ALERTS),
        "status": "firing" if notification.firing else "resolved",
        "receiver": "grpo-sentinel",
        "groupLabels": {name: safe(value, 300) for name, value in group.items()},
        "commonLabels": _common(alert["labels"] for alert in alerts),
        "commonAnnotations": _common(alert["annotations"] for alert in alerts),
        "externalURL": page_url,
        "alerts": alerts[:MAX_ALERTS],
    }


def _alert(finding: Finding, labels: dict[str, str], page_url: str) -> dict[str, Any]:
    firing = finding.state is FindingState.FIRING
    return {
        "status": "firing" if firing else "resolved",
        "labels": labels,
        "annotations": annotations_of(finding),
        "startsAt": rfc3339(finding.wall_ns),
        "endsAt": NEVER if firing else rfc3339(finding.wall_ns),
        "generatorURL": page_url,
        "fingerprint": fingerprint(labels),
    }


def _common(maps: Iterable[Mapping[str, str]]) -> dict[str, str]:
    every = [set(one.items()) for one in maps]
    return dict(sorted(set.intersection(*every))) if every else {}


def title(notification: Notification) -> str:
    """One line: how grave, which run, what began it."""
    root = notification.findings[0]
    word = notification.severity.name.lower() if notification.firing else "resolved"
    return safe(f"[{word}] {notification.run_id}: {root.rule} ({root.layer}) at step {root.onset_step}", 200)


def body(notification: Notification, page_url: str) -> str:
    """A few lines: what happened where, what followed from it, what to do, where to look."""
    root, *rest = notification.findings
    lines = [f"{safe(root.message)}", f"{_where(root)}, node {notification.node}"]
    if root.why:
        lines.append(f"Why it matters: {safe(root.why)}")
    if root.remedies and notification.firing:
        lines += ["What to do:", *(f"- {safe(remedy, 300)}" for remedy in root.remedies)]
    if rest:
        lines.append("What followed:")
        lines += [f"- {one.rule} ({one.layer}), {_where(one)}: {safe(one.message, 200)}" for one in rest[:10]]
        lines += [f"- and {len(rest) - 10} more"] if len(rest) > 10 else []
    if page_url:
        lines.append(_link(page_url, notification.node))
    return safe("\n".join(lines), 4000)


def _link(page_url: str, node: str) -> str:
    """The address of the page; one on loopback is of use to others with a tunnel only, so that is said."""
    address = urlsplit(page_url)
    if address.hostname not in ("127.0.0.1", "::1", "localhost"):
        return page_url
    port = address.port or 80
    return f"{page_url} on {node}; from elsewhere: ssh -L {port}:127.0.0.1:{port} {node}"


def _where(finding: Finding) -> str:
    ranks = ", ".join(map(str, finding.ranks[:16])) + (" …" if len(finding.ranks) > 16 else "")
    state = "" if finding.state is FindingState.FIRING else ", resolved"
    rank = f"rank {ranks}" if ranks else "rank not known"
    return f"layer {finding.layer}, {rank}, since step {finding.onset_step}{state}"
