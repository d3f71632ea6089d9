"""Speaks to the daemon of a run over its loopback API, with the standard library alone."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from grpo_sentinel.daemon.claim import DaemonNote
from grpo_sentinel.errors import DaemonUnavailable, SentinelError

_LONGEST = 64 << 20


def call(note: DaemonNote, path: str, body: dict[str, Any] | None = None, timeout_s: float = 5.0) -> Any:
    """GET `path`, or POST `body` with the act token; gives the JSON answer.

    Raises `DaemonUnavailable` when nobody answers, `SentinelError` with the daemon's own words when it refuses.
    """
    if not note.url:
        raise DaemonUnavailable("the daemon of this run serves no HTTP (http.enabled is false); switch it on to ask it")
    request = urllib.request.Request(  # noqa: S310 - the scheme is the daemon's own note, http on loopback
        note.url.rstrip("/") + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {note.act_token}"},
    )
    try:
        # no proxy: a job's http_proxy must not see a loopback request
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout_s) as answer:
            return json.loads(answer.read(_LONGEST))
    except urllib.error.HTTPError as error:
        raise SentinelError(f"the daemon refused: {_reason(error)}") from error
    except (OSError, ValueError) as error:
        raise DaemonUnavailable(f"the daemon (pid {note.pid}) does not answer on {note.url}: {error}") from error


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        body = json.loads(error.read(65536))
        return str(body.get("error") or body.get("detail") or body)
    except (OSError, ValueError, AttributeError):
        return f"{error.code} {error.reason}"
