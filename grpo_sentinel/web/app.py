"""The HTTP face of the sidecar.

GET  /                    the page                         GET  /static/...        its files
GET  /metrics             Prometheus text or OpenMetrics   GET  /livez, /healthz   503 when the loop stands still
GET  /readyz              503 when any part is off
GET  /api/v1/status       one run in full                  GET  /api/v1/stream     summaries as they change
GET  /api/v1/findings     firing; all=1 every change,    GET  /api/v1/runs       runs of the history
                          all=latest newest states
GET  /api/v1/series       one signal of a rank or of         GET  /api/v1/signals    names that it can be asked for
                          several, ranks=0,1,5
GET  /api/v1/events       what is not a number             GET  /api/v1/history    requests, last state
GET  /api/v1/heat         ranks against their median       GET  /api/v1/incidents  incidents of a run
GET  /api/v1/incident     one incident in full             GET  /api/v1/walk       what each layer showed
GET  /api/v1/readings     a GPU or the host over time
POST /api/v1/requests     {"action", "reason", "run_id"} with the act token
POST /api/alertmanager    alerts that ask for a checkpoint or a halt, see `alertmanager_hook`
"""

from __future__ import annotations

import json
import logging
import mimetypes
import threading
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from grpo_sentinel.errors import HistoryError, SentinelError
from grpo_sentinel.history import HistoryReader
from grpo_sentinel.history.codec import plain
from grpo_sentinel.records import Action
from grpo_sentinel.web import alertmanager_hook
from grpo_sentinel.web.answers import Refused, Strict, integer, integers, mode_of, run_of
from grpo_sentinel.web.bodies import pick, status_body
from grpo_sentinel.web.explore import Explore
from grpo_sentinel.web.guard import Guard
from grpo_sentinel.web.past import Past
from grpo_sentinel.web.state import WebState
from grpo_sentinel.web.stream import Stream

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 16_384
MAX_REASON_CHARACTERS = 500
MAX_POINTS = 5000
MAX_LINES = 16
MAX_EVENTS = 500
MAX_FINDINGS = 500


def build_app(state: WebState) -> Starlette:
    """Make the ASGI application; setting `app.state.stopping` ends the streams."""
    past, stopping = Past(state), threading.Event()
    api, explore = Api(state), Explore(state, past)
    files = _static_files()

    async def static(request: Request) -> Response:  # from memory: no thread is needed
        name = request.path_params.get("name", "index.html")
        if name not in files:
            return Strict({"error": f"there is no file {name!r} here"}, 404)
        body, content_type = files[name]
        return Response(body, media_type=content_type)

    routes = [
        Route("/", static),
        Route("/static/{name}", static),
        Route("/metrics", api.metrics),
        Route("/livez", api.livez),
        Route("/healthz", api.livez),
        Route("/readyz", api.readyz),
        Route("/api/v1/status", api.status),
        Route("/api/v1/findings", api.findings),
        Route("/api/v1/series", api.series),
        Route("/api/v1/signals", explore.signals),
        Route("/api/v1/heat", explore.heat),
        Route("/api/v1/readings", explore.readings),
        Route("/api/v1/walk", explore.walk),
        Route("/api/v1/incidents", explore.incidents),
        Route("/api/v1/incident", explore.incident),
        Route("/api/v1/runs", api.runs),
        Route("/api/v1/events", api.events),
        Route("/api/v1/history", api.history),
        Route("/api/v1/stream", Stream(state, past, stopping.is_set)),
        Route("/api/v1/requests", api.request, methods=["POST"]),
        alertmanager_hook.route(state),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, state=state)],
        exception_handlers={SentinelError: _refused, 404: _not_found, 405: _not_found, Exception: _broken},
    )
    app.state.stopping = stopping
    return app


class Api:
    """The endpoints. Those that may wait for disk or loop are plain functions: the server runs them in threads."""

    def __init__(self, state: WebState) -> None:
        self._state = state

    async def metrics(self, request: Request) -> Response:
        if self._state.metrics is None:
            raise Refused(404, "/metrics is switched off (sinks.prometheus.enabled)")
        body, content_type = self._state.metrics(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    async def livez(self, _: Request) -> Response:
        """Say whether a restart would help: what else is off, as a full disk, is told, not judged."""
        return self._health(failed=bool(self._state.stuck()))

    async def readyz(self, _: Request) -> Response:
        return self._health(failed=bool(self._state.problems()))

    def _health(self, *, failed: bool) -> Response:
        problems = list(self._state.problems())
        body = {"live": not self._state.stuck(), "healthy": not problems, "problems": problems}
        return Strict(body, 503 if failed else 200)

    def status(self, request: Request) -> Response:
        run_id = request.query_params.get("run")
        body = status_body(self._state.snapshots(), run_id)
        if body is None:
            raise Refused(404, f"run {run_id!r} is not watched here; /api/v1/runs lists those of the history")
        return Strict(body)

    def findings(self, request: Request) -> Response:
        snapshot = pick(self._state.snapshots(), request.query_params.get("run"))
        every = request.query_params.get("all")
        if every not in (None, "", "0"):
            with self._open() as reader:
                if every == "latest":
                    return Strict({"findings": plain(reader.findings(self._run_id(request, reader))[-MAX_FINDINGS:])})
                return Strict({"findings": plain(reader.transitions(self._run_id(request, reader)))})
        if snapshot is None:
            raise Refused(404, f"run {request.query_params.get('run')!r} is not watched here; ask with all=1")
        return Strict({"findings": plain(snapshot.findings), "abstaining": plain(snapshot.abstaining)})

    def series(self, request: Request) -> Response:
        signal = request.query_params.get("signal", "")
        if not signal:
            raise Refused(400, "signal is missing; give one of /api/v1/signals")
        mode = mode_of(request)
        several = integers(request, "ranks", MAX_LINES, 0, 2**31)
        rank = integer(request, "rank", 0, 0, 2**31)
        window = {
            "max_points": integer(request, "max_points", 1000, 1, MAX_POINTS),
            "since_step": integer(request, "since", 0, 0, 2**62),
            "until_step": integer(request, "until", 2**62, 0, 2**62),
        }
        with self._open() as reader:
            run_id = self._run_id(request, reader)
            found = reader.lines(run_id, several or [rank], signal, mode=mode, **window)
        return Strict({"series": plain(found)} if several else plain(found[0]))

    def runs(self, _: Request) -> Response:
        with self._open() as reader:
            return Strict({"runs": plain(reader.runs(limit=200))})

    def events(self, request: Request) -> Response:
        """Give the newest events; what may hold text of samples only where a read token guards it."""
        kind = request.query_params.get("kind") or None
        with self._open() as reader:
            newest = reader.newest_events(self._run_id(request, reader), kind=kind, limit=MAX_EVENTS)
        if self._state.read_token is None:
            newest = [event for event in newest if event.kind != "sample"]
        return Strict({"events": plain(newest)})

    def history(self, request: Request) -> Response:
        with self._open() as reader:
            run_id = self._run_id(request, reader)
            if reader.run(run_id) is None:
                raise Refused(404, f"the history holds no run {run_id!r}; /api/v1/runs lists them")
            return Strict({"requests": plain(reader.requests(run_id)), "latest": plain(reader.latest(run_id))})

    async def request(self, request: Request) -> Response:
        """Take a request to checkpoint or halt; the guard has checked the token."""
        body = await _json_body(request)
        action, reason, run_id = _request_of(body)
        run_id = run_id or next(iter(self._state.snapshots()), "")
        if not run_id:
            raise Refused(409, "no run is watched here")
        request_id = await run_in_threadpool(self._state.act, run_id, action, reason)
        return Strict({"request_id": request_id, "run_id": run_id, "action": plain(action)}, 202)

    def _open(self) -> HistoryReader:
        if self._state.history is None:
            raise Refused(503, "the history is switched off (sinks.history.enabled)")
        return self._state.history()

    def _run_id(self, request: Request, reader: HistoryReader) -> str:
        return run_of(request, self._state.snapshots(), reader)


async def _json_body(request: Request) -> dict[str, Any]:
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise Refused(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise Refused(400, 'the body is not JSON; send {"action": "checkpoint", "reason": "..."}') from None
    if not isinstance(body, dict):
        raise Refused(400, 'the body is no object; send {"action": "checkpoint", "reason": "..."}')
    return body


def _request_of(body: dict[str, Any]) -> tuple[Action, str, str]:
    for name in ("action", "reason", "run_id"):
        if not isinstance(body.get(name, ""), str):
            raise Refused(400, f"{name}: expected text, got {body[name]!r}")
    unknown = set(body) - {"action", "reason", "run_id"}
    if unknown:
        raise Refused(400, f"unknown key {sorted(unknown)[0]!r}; known are action, reason, run_id")
    wanted = body.get("action", "")
    known = {action.name.lower().replace("_", "-"): action for action in Action}
    if wanted.replace("_", "-") not in known:
        raise Refused(400, f"action: expected one of {', '.join(known)}, got {wanted!r}")
    return known[wanted.replace("_", "-")], body.get("reason", "")[:MAX_REASON_CHARACTERS], body.get("run_id", "")


def _refused(_: Request, error: Exception) -> Response:
    status = 503 if isinstance(error, HistoryError) else 409
    return Strict({"error": str(error)}, error.status if isinstance(error, Refused) else status)


def _not_found(request: Request, _: Exception) -> Response:
    return Strict({"error": f"there is nothing at {request.method} {request.url.path}"}, 404)


def _broken(request: Request, error: Exception) -> Response:
    log.error("%s %s failed: %s: %s", request.method, request.url.path, type(error).__name__, error)
    return Strict({"error": "the sidecar could not answer this; its log says why"}, 500)


def _static_files() -> dict[str, tuple[bytes, str]]:
    """Read the page's files into memory: what is not among them cannot be asked for."""
    out = {}
    for entry in resources.files("grpo_sentinel.web").joinpath("static").iterdir():
        if entry.is_file():
            kind = mimetypes.guess_type(entry.name)[0] or "text/plain"
            out[entry.name] = (entry.read_bytes(), kind)
    return out
