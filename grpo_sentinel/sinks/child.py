"""The process that a tracker's client lives in: `python -m grpo_sentinel.sinks.child wandb|mlflow|otlp`.

    stdin   {"settings": {...}}                                          first line
            {"n": 1, "type": "metrics" | "finding" | "request" | "incident", "run_id": ..., ...}   numbered lines;
            end of file = finish
    stdout  {"ready": true}  {"done": 17}  {"lost": 3, "reason": "rejected"}  {"problem": "..."}  {"problem": ""}

Lines are taken in batches and reported done together. While the tracker is down nothing is read, so that the pipe and
the parent's spool fill, which is where losses are counted. A client that hangs at the end is ended by SIGALRM: this
process never outlives its parent for long, not even one that was killed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from grpo_sentinel.scrub import learn_environment, scrub

MAX_LINES = 500  # taken at once
IDLE_SECONDS = 0.2
FIRST_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 30.0

Line = dict[str, Any]
Report = Callable[[Mapping[str, Any]], None]


class TrackerDown(Exception):
    """The tracker did not take lines now; the same lines may be taken later."""


class Tracker(Protocol):
    """A client of a tracker."""

    def take(self, lines: Sequence[Line]) -> None:
        """Send lines; raises `TrackerDown` when they should come again."""
        ...

    def close(self) -> None:
        """Send what is left, within a bounded time."""
        ...


TRACKERS = {
    "wandb": "grpo_sentinel.sinks.wandb_tracker:WandbTracker",
    "mlflow": "grpo_sentinel.sinks.mlflow_tracker:MlflowTracker",
    "otlp": "grpo_sentinel.sinks.otlp_tracker:OtlpTracker",
}
"""Clients by name; each is made with (settings, report)."""


class _Lines:
    """Whole lines from a descriptor, with a time-out; what is torn at the end of the file is left out."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""
        self._waiting: list[bytes] = []
        self.ended = False

    def next(self, seconds: float, most: int) -> list[Line]:
        """Give up to `most` lines; waits at most `seconds` for the first."""
        while not self.ended and not self._waiting and select.select([self._descriptor], [], [], seconds)[0]:
            self._read()
        taken, self._waiting = self._waiting[:most], self._waiting[most:]
        return [json.loads(line) for line in taken]

    def _read(self) -> None:
        data = os.read(self._descriptor, 1 << 18)
        self.ended = not data
        *whole, self._buffer = (self._buffer + data).split(b"\n")
        self._waiting += whole

    def hung_up(self, seconds: float) -> bool:
        """Wait for the writer to leave, reading nothing; True when it has."""
        poll = select.poll()
        poll.register(self._descriptor, 0)  # POLLHUP and POLLERR are always reported
        return self.ended or bool(poll.poll(seconds * 1000))

    @property
    def over(self) -> bool:
        return self.ended and not self._waiting


def serve(lines: _Lines, tracker: Tracker, report: Report, exit_seconds: float) -> None:
    """Feed a tracker until the lines end."""
    backoff = FIRST_BACKOFF_SECONDS
    troubled = False
    while not lines.over:
        batch = lines.next(IDLE_SECONDS, MAX_LINES)
        while batch:
            if lines.ended:
                limit(exit_seconds)
            try:
                tracker.take(batch)
            except TrackerDown as error:
                troubled = True
                report({"problem": plain_text(error)})
                if lines.hung_up(backoff):
                    limit(exit_seconds)
                    if backoff >= MAX_BACKOFF_SECONDS:
                        return
                    backoff = MAX_BACKOFF_SECONDS  # one try more
                backoff = min(backoff * 2, MAX_BACKOFF_SECONDS)
                continue
            report({"done": batch[-1]["n"]} | ({"problem": ""} if troubled else {}))
            troubled, backoff = False, FIRST_BACKOFF_SECONDS
            batch = []


def limit(seconds: float) -> None:
    """Let the kernel end this process after `seconds`, whatever it hangs in; a second call changes nothing."""
    if signal.getitimer(signal.ITIMER_REAL)[0] == 0:
        signal.setitimer(signal.ITIMER_REAL, seconds)


def plain_text(error: object) -> str:
    """Give an error as one short line without secrets."""
    return scrub(" ".join(str(error).split()))[:300]


def not_sent(line: Line, error: object) -> dict[str, Any]:
    """Say that an incident was not taken; the next sidecar tries again."""
    problem = f"an incident was not sent, the next sidecar tries again: {plain_text(error)}"
    return {"lost": 1, "reason": "rejected", "incident": line["n"], "problem": problem}


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Undo the strings that strict JSON needs for NaN and infinities."""
    return {name: float(value) for name, value in values.items()}


def main(arguments: Sequence[str]) -> int:
    """Run one tracker's client over stdin; 0 at the end, 3 when the client cannot be loaded."""
    learn_environment(os.environ)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, meant for the trainer: the parent ends this one
    out = os.dup(1)
    os.dup2(2, 1)  # what a client prints is no answer to the parent

    def report(message: Mapping[str, Any]) -> None:
        try:
            os.write(out, json.dumps(message, allow_nan=False).encode() + b"\n")
        except OSError:
            limit(10)  # the parent has gone

    lines = _Lines(0)
    first = lines.next(30, 1)
    settings = first[0]["settings"] if first else {}
    exit_seconds = float(settings.get("exit_seconds", 4))
    try:
        tracker = _load(arguments[0])(settings, report)
    except ImportError as error:
        name = arguments[0]
        report({"problem": f"{name} cannot be loaded ({plain_text(error)}): in a checkout, pip install '.[{name}]'"})
        return 3
    report({"ready": True})
    serve(lines, tracker, report, exit_seconds)
    limit(exit_seconds)
    tracker.close()
    return 0


def _load(name: str) -> Callable[[Mapping[str, Any], Report], Tracker]:
    import importlib

    module, _, attribute = TRACKERS[name].partition(":")
    made: Callable[[Mapping[str, Any], Report], Tracker] = getattr(importlib.import_module(module), attribute)
    return made


if __name__ == "__main__":
    from grpo_sentinel.sinks import child  # the clients import it under this name: only one TrackerDown may exist

    code = child.main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a client's own exit hooks may wait for a dead server
