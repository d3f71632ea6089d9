"""apprise in a process of its own: it costs 25 to 50 MiB, and its two hundred plug-ins may print, hang or break.

    stdin   {"urls": [...], "patience": 20.0}                              first line; then one line for each message:
            {"channel": 0, "title": "...", "body": "...", "kind": "failure"}       end of file = leave
    stdout  {"taken": [true, false, ...]}      {"sent": true}  {"sent": false, "error": "TimeoutError"}

It is started when there is something to say and left to end when there has been nothing for `IDLE_SECONDS`. One that
takes longer than `patience` seconds over a line ends itself, and is ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

COMMAND = (sys.executable, "-m", "grpo_sentinel.sinks.notify_process")
START_SECONDS = 60.0  # a cold import on a busy machine
IDLE_SECONDS = 60.0


class AppriseProcess:
    """Messages for the channels of some URLs; one caller at a time. Every wait is bounded."""

    def __init__(self, urls: Sequence[str], timeout_seconds: float) -> None:
        bounds = f"cto={timeout_seconds:g}&rto={timeout_seconds:g}"
        self._urls = [f"{url}{'&' if '?' in url else '?'}{bounds}" for url in urls]
        self._patience = 4 * timeout_seconds + 5  # a plug-in may make several requests
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._used = time.monotonic()

    def taken(self) -> list[bool]:
        """Say of every URL whether apprise takes it. Raises `OSError` when the process does not start."""
        self.close()
        return [bool(one) for one in self._started()]

    def send(self, channel: int, title: str, body: str, kind: str) -> str:
        """Send one message; "" when it was taken, else why not."""
        try:
            if self._process is None or self._process.poll() is not None:
                self._started()
            line = {"channel": channel, "title": title, "body": body, "kind": kind}
            answer = self._asked(line, self._patience)
        except OSError as error:
            self.close()
            return error.strerror or str(error)
        return "" if answer.get("sent") else str(answer.get("error") or "the message was not taken")

    def tick(self) -> None:
        """End the process when there has been nothing to say for a while."""
        if self._process is not None and time.monotonic() - self._used > IDLE_SECONDS:
            self.close()

    def close(self) -> None:
        """End the process, at once."""
        process, self._process, self._rest = self._process, None, b""
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not written is not missed
                    pipe.close()
        process.wait()

    def _started(self) -> list[Any]:
        self.close()
        environment = {name: value for name, value in os.environ.items() if name != "GRPO_SENTINEL"}
        self._process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
            start_new_session=True, bufsize=0,
        )  # fmt: skip
        found = self._asked({"urls": self._urls, "patience": self._patience}, START_SECONDS).get("taken")
        return list(found) if isinstance(found, list) else []

    def _asked(self, line: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Write one line and give the answer; raises `OSError` when none comes in time."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise OSError("the process of apprise has gone")
        self._used = time.monotonic()
        process.stdin.write(json.dumps(line).encode() + b"\n")
        limit = time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = limit - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise OSError(f"no answer within {seconds:g} s")
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                raise OSError("the process of apprise has gone")
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\n")
        answer = json.loads(text)
        return answer if isinstance(answer, dict) else {}


def main() -> int:
    """Serve the lines of stdin."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, meant for the trainer
    out = os.dup(1)
    os.dup2(2, 1)  # what a plug-in prints is no answer

    def answer(body: dict[str, Any]) -> None:
        os.write(out, json.dumps(body).encode() + b"\n")

    import apprise

    first = json.loads(sys.stdin.readline())
    channels = [_channel(apprise, url) for url in first["urls"]]
    answer({"taken": [channel is not None for channel in channels]})
    for text in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, first["patience"])
        line = json.loads(text)
        channel = channels[line["channel"]]
        try:
            sent = channel.notify(title=line["title"], body=line["body"], notify_type=apprise.NotifyType(line["kind"]))
            answer({"sent": bool(sent)})
        except Exception as error:  # noqa: BLE001 - two hundred plug-ins, each with its own; the text may hold a secret
            answer({"sent": False, "error": type(error).__name__})
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


def _channel(apprise: Any, url: str) -> Any:
    try:
        return apprise.Apprise.instantiate(url)
    except Exception:  # noqa: BLE001 - likewise
        return None


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
