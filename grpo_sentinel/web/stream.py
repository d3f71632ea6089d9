"""Live updates by server-sent events: the newest summary, never a backlog, for a bounded number of readers.

A reader that is too slow misses summaries, not the end: it always gets the newest. One that takes nothing for
`SEND_SECONDS` is let go.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from grpo_sentinel.views import Snapshot
from grpo_sentinel.web.bodies import summary_body
from grpo_sentinel.web.past import Past
from grpo_sentinel.web.state import WebState

PERIOD_SECONDS = 0.5
KEEP_ALIVE_SECONDS = 15.0
SEND_SECONDS = 10.0
MAX_READERS = 16
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]


class Stream:
    """ASGI endpoint of /api/v1/stream."""

    def __init__(self, state: WebState, past: Past, stopping: Callable[[], bool]) -> None:
        self._state = state
        self._past = past
        self._stopping = stopping
        self._encoded: dict[str, tuple[float, str]] = {}  # run id -> when, text: made once for all readers
        self.readers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a summary whenever it has changed, until the reader or the server goes."""
        if self.readers >= MAX_READERS:
            text = f"{MAX_READERS} readers follow this run already; close one of their pages"
            await JSONResponse({"error": text}, 503)(scope, receive, send)
            return
        run_id = Request(scope).query_params.get("run", "")
        self.readers += 1
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            await self._follow(run_id, gone, send)
        except (asyncio.TimeoutError, OSError):
            return  # takes nothing any more
        finally:
            self.readers -= 1
            gone.cancel()

    async def _follow(self, run_id: str, gone: asyncio.Future[None], send: Send) -> None:
        last, sent = "", time.monotonic()
        while not gone.done() and not self._stopping():
            text = await run_in_threadpool(self._summary, run_id)  # a past run is read from disk
            now = time.monotonic()
            if text != last or now - sent >= KEEP_ALIVE_SECONDS:
                block = f"event: summary\ndata: {text}\n\n" if text != last else ": still here\n\n"
                message = {"type": "http.response.body", "body": block.encode(), "more_body": True}
                await asyncio.wait_for(send(message), SEND_SECONDS)
                last, sent = text, now
            await asyncio.wait({gone}, timeout=PERIOD_SECONDS)
        await asyncio.wait_for(send({"type": "http.response.body", "body": b"", "more_body": False}), SEND_SECONDS)

    def _summary(self, run_id: str) -> str:
        now = time.monotonic()
        made, text = self._encoded.get(run_id, (0.0, ""))
        if not text or now - made >= PERIOD_SECONDS:
            snapshot, past = self._past.find(run_id)
            shown = snapshot or Snapshot(run_id=run_id)
            walk = self._state.walk(shown.run_id) if self._state.walk is not None else None
            body = summary_body(shown, self._state.snapshots(), self._state.problems(), past=past, walk=walk)
            text = json.dumps(body, allow_nan=False, separators=(",", ":"))
            if len(self._encoded) >= MAX_READERS:
                self._encoded.clear()
            self._encoded[run_id] = (now, text)
        return text


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
