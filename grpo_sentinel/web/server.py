"""Run the application in a thread of the sidecar: a port that is free, bounded connections, a bounded stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from grpo_sentinel.errors import SentinelError

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64  # open files are shared with rings and history: a flood of connections must not eat them
IDLE_SECONDS = 10.0
START_SECONDS = 10.0


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 that refuses connections above a number and closes those that send no whole request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self.loop.call_later(IDLE_SECONDS, self._close_unasked)

    def _close_unasked(self) -> None:
        asked = getattr(self, "cycle", None) is not None
        if not asked and not self.transport.is_closing():
            self.transport.close()


class WebServer:
    """Serve page, API and /metrics. `note` says in one line when another port than the wanted one is used."""

    def __init__(self, app: Starlette, host: str = "127.0.0.1", port: int = 9477) -> None:
        """Bind the socket. Raises `SentinelError` when the address cannot be had at all."""
        self.note = ""
        self._stopping: threading.Event = app.state.stopping
        self._socket = self._bind(host, port)
        self.port = int(self._socket.getsockname()[1])
        self.url = f"http://{_in_url(host)}:{self.port}"
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=round(IDLE_SECONDS),
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    def start(self) -> None:
        """Start serving; returns when requests are taken. Raises `SentinelError` when that fails."""
        self._thread.start()
        waited = threading.Event()
        for _ in range(round(START_SECONDS / 0.01)):
            if self._server.started or not self._thread.is_alive():
                break
            waited.wait(0.01)
        if not self._server.started:
            self.stop(1.0)
            raise SentinelError(f"page and API did not start on {self.url} within {START_SECONDS:g} s; see the log")

    def stop(self, timeout_seconds: float = 5.0) -> bool:
        """End streams and connections; False when the thread did not end in time (it cannot keep the process)."""
        self._stopping.set()
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            self._server.force_exit = True
            self._thread.join(0.5)
        with contextlib.suppress(OSError):
            self._socket.close()
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the page may die, the sidecar goes on
            log.error("page and API ended: %s: %s", type(error).__name__, error)

    def _bind(self, host: str, port: int) -> socket.socket:
        try:
            return _listen(host, port)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES) or port == 0:
                raise SentinelError(
                    f"cannot listen on {host}:{port}: {error.strerror or error}; give another http.host or http.port"
                ) from error
            reason = "is taken" if error.errno == errno.EADDRINUSE else "is not permitted"
        other = _listen(host, 0)
        self.note = f"port {port} {reason}; page, API and /metrics are on port {other.getsockname()[1]} instead"
        return other


def _listen(host: str, port: int) -> socket.socket:
    info: Any = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    bound = socket.socket(info[0], info[1], info[2])
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(info[4])
        bound.listen(128)
        bound.set_inheritable(False)
    except OSError:
        bound.close()
        raise
    return bound


def _in_url(host: str) -> str:
    if host in ("0.0.0.0", ""):  # noqa: S104 - named, not bound
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host
