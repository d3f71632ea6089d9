"""POST /api/alertmanager: what Alertmanager says about a run becomes a request to checkpoint or halt it on this node.

    Prometheus ──rule over all nodes──▶ Alertmanager ──webhook v4, act token──▶ this ──▶ step vote of the run

Only firing alerts count whose name and labels the configuration lists (halting.on_alerts, halting.on_alert_labels) and
whose `run_id` is a run watched here. Alertmanager repeats itself, so an alert acts once: by its labels and start, and
not at all when it began before the processes of the run did. The guard has checked Host, Origin and token before.

The answer says for each alert what came of it: 200, or 503 when the daemon could not take a request, so that
Alertmanager sends it again.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.records import Action, HaltState
from grpo_sentinel.views import HaltStatus, Snapshot
from grpo_sentinel.web.state import AlertActions, WebState

log = logging.getLogger(__name__)

PATH = "/api/alertmanager"
MAX_BODY_BYTES = 262_144
MAX_ALERTS = 200  # looked at in one message
MAX_REMEMBERED = 1000
MAX_REASON_CHARACTERS = 500
_UNDER_WAY = (HaltState.REQUESTED, HaltState.VOTED, HaltState.CHECKPOINTING)

_RFC3339 = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)$")  # with nanoseconds

Key = tuple[str, str]


class BadAlerts(Exception):
    """A body that is no message of Alertmanager's: HTTP status and one sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class AlertHook:
    """The endpoint; one for the life of the server, because it remembers what has acted."""

    def __init__(self, state: WebState) -> None:
        self._state = state
        self._lock = threading.Lock()  # two messages about one alert must not both act
        self._acted: OrderedDict[Key, None] = OrderedDict()

    async def __call__(self, request: Request) -> Response:
        """Take one message."""
        actions = self._state.alerts
        if actions is None or not actions.by_name:
            return _answer(404, {"error": "no alert is listed in halting.on_alerts, so none is taken"})
        try:
            alerts = _alerts_of(await _body(request))
        except BadAlerts as error:
            return _answer(error.status, {"error": str(error)})
        results = await run_in_threadpool(lambda: [self._take(alert, actions) for alert in alerts])
        failed = any(result["result"] == "failed" for result in results)
        return _answer(503 if failed else 200, {"alerts": results})

    def _take(self, alert: Mapping[str, Any], actions: AlertActions) -> dict[str, Any]:
        labels = {str(name): str(value) for name, value in _mapping(alert.get("labels")).items()}
        name, run_id = labels.get("alertname", ""), labels.get("run_id", "")
        with self._lock:
            result, text = self._decide(alert, labels, actions)
        if result != "ignored":
            log.warning("alert %s of Alertmanager for run %s: %s (%s)", name, run_id, result, text)
        return {"alertname": name[:200], "run_id": run_id[:200], "result": result, "detail": text}

    def _decide(self, alert: Mapping[str, Any], labels: dict[str, str], actions: AlertActions) -> tuple[str, str]:
        action = actions.by_name.get(labels.get("alertname", ""))
        run_id = labels.get("run_id", "")
        snapshot = self._state.snapshots().get(run_id)
        key = (json.dumps(sorted(labels.items())), str(alert.get("startsAt")))
        missing = [name for name, value in actions.labels.items() if labels.get(name) != value]
        ignored = None
        if alert.get("status") != "firing":
            ignored = "it does not fire"
        elif action is None:
            ignored = "its name is not in halting.on_alerts"
        elif missing:
            ignored = f"its label {missing[0]} is not what halting.on_alert_labels asks for"
        elif snapshot is None:
            ignored = "its run is not watched here"
        elif key in self._acted:
            ignored = "it has acted already"
        elif _older(alert.get("startsAt"), snapshot):
            ignored = "it began before the run's processes did"
        elif _asked(snapshot.halt, action):
            ignored = f"the run was asked for {_words(snapshot.halt.action)} already"
        if ignored is not None or action is None:
            return "ignored", ignored or ""
        if actions.only_say:
            self._remember(key)
            return "dry run", f"would have asked for {_words(action)} (halting is off or a dry run)"
        try:
            request_id = actions.act(run_id, action, _reason(alert, labels), f"alert {labels['alertname']}"[:100])
        except SentinelError as error:
            return "failed", str(error)
        self._remember(key)
        return "asked", f"request {request_id}: {_words(action)}"

    def _remember(self, key: Key) -> None:
        self._acted[key] = None
        while len(self._acted) > MAX_REMEMBERED:
            self._acted.popitem(last=False)


def route(state: WebState) -> Route:
    """Make the route for the application."""
    return Route(PATH, AlertHook(state).__call__, methods=["POST"])


async def _body(request: Request) -> Any:
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise BadAlerts(413, f"the body is longer than {MAX_BODY_BYTES} bytes; lower max_alerts in Alertmanager")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise BadAlerts(400, "the body is not JSON; this takes Alertmanager's webhook, version 4") from None


def _alerts_of(body: Any) -> list[Mapping[str, Any]]:
    alerts = _mapping(body).get("alerts")
    if not isinstance(alerts, list) or not all(isinstance(alert, dict) for alert in alerts):
        raise BadAlerts(400, "the body holds no list of alerts; this takes Alertmanager's webhook, version 4")
    return alerts[:MAX_ALERTS]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _older(starts_at: Any, snapshot: Snapshot) -> bool:
    """Tell whether an alert began before every process of the run: it is about an earlier launch of the same name."""
    match = _RFC3339.match(str(starts_at))
    if match is None:
        return False
    try:
        moment = datetime.fromisoformat(match[1] + match[2].replace("Z", "+00:00"))
    except ValueError:
        return False
    created = [status.identity.created_wall_ns for status in snapshot.ranks.values()]
    return bool(created) and moment.timestamp() + 1 < min(created) / 1e9  # the fraction of a second was cut off


def _asked(halt: HaltStatus, action: Action) -> bool:
    """Tell whether as much is under way, or the run has been halted."""
    if halt.state in _UNDER_WAY:
        return halt.action >= action
    return halt.state is HaltState.DONE and halt.action >= Action.CHECKPOINT_AND_HALT


def _reason(alert: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    summary = str(_mapping(alert.get("annotations")).get("summary", ""))
    return f"alert {labels['alertname']}: {summary or 'no summary'}"[:MAX_REASON_CHARACTERS]


def _words(action: Action) -> str:
    return action.name.lower().replace("_", "-")


def _answer(status: int, body: dict[str, Any]) -> Response:
    return JSONResponse(body, status)
