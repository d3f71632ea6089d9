"""A real HTTP server on a free port that keeps what it is sent and answers as told: well, with an error, or never."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class StandIn:
    """`mode` is a status, "slow" or "hang"; `requests` are (path, headers, body)."""

    def __init__(self) -> None:
        self.mode: int | str = 200
        self.requests: list[tuple[str, dict[str, str], object]] = []
        self.headers: dict[str, str] = {}
        self.release = threading.Event()
        self.entered = threading.Event()
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                data = self.rfile.read(int(self.headers["content-length"]))
                body = json.loads(data) if "json" in self.headers.get("content-type", "") else data
                mode = stand_in.mode
                stand_in.entered.set()
                if mode == "slow":
                    stand_in.release.wait(0.2)
                    mode = 200
                if mode == "hang":
                    stand_in.release.wait(60)
                    return
                stand_in.requests.append((self.path, dict(self.headers), body))
                self.send_response(mode)
                for name, value in stand_in.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def bodies(self) -> list:
        return [body for _, _, body in self.requests]

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@contextlib.contextmanager
def serving() -> Iterator[StandIn]:
    """Serve until the block ends."""
    server = StandIn()
    try:
        yield server
    finally:
        server.close()


def refusing_url() -> str:
    """An address at which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"
