"""A sink whose client runs in a child process: whatever the client costs, prints, waits for or dies of is kept apart.

    write ──▶ spool (bounded) ──non-blocking pipe──▶ child ──▶ tracker
                 ▲                                     │
                 └──────── done, problem, lost ────────┘

A child that dies is started again with a back-off and gets what it had not reported done. A line that is the first in
flight through `MAX_DEATHS` deaths is given up. At the end the child has `exit_seconds`, then it is killed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo_sentinel.clock import Clock
from grpo_sentinel.history.codec import plain
from grpo_sentinel.records import Mode
from grpo_sentinel.sinks.base import SinkContext
from grpo_sentinel.sinks.child_incidents import LOOK_SECONDS, IncidentWatch
from grpo_sentinel.sinks.child_spool import Spool
from grpo_sentinel.sinks.jsonl import encode
from grpo_sentinel.sinks.notify_sender import Backoff
from grpo_sentinel.views import SinkBatch

COMMAND = (sys.executable, "-m", "grpo_sentinel.sinks.child")  # and the tracker's name
MAX_DEATHS = 3
HANG_SECONDS = 120.0  # without a sign of a child that has something to do
MAX_STDERR = 2000
KILL_SECONDS = 2.0


class ChildSink:
    """Hand records and findings to a child; never waits for it but at the end."""

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any],
        clock: Clock,
        *,
        ranks: str = "all",
        spool_bytes: int = 16_000_000,
        exit_seconds: float = 4.0,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        incidents: IncidentWatch | None = None,
    ) -> None:
        self._name, self._clock, self._ranks, self._exit_seconds = name, clock, ranks, exit_seconds
        self._hello = encode({"settings": {**settings, "exit_seconds": exit_seconds}})
        self._command = list(command or (*COMMAND, name))
        self._environment = dict(os.environ if environment is None else environment)
        self._spool = Spool(spool_bytes)
        self._backoff = Backoff(clock)
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._unwritten = b""  # rest of a line that the pipe had no room for
        self._answers = b""
        self._stderr = b""
        self._problem = ""
        self._sign_ns = 0  # newest sign of life
        self._starts = self._deaths = self._deaths_in_a_row = 0
        self._done = 0
        self._incidents = incidents
        self._looked_ns = clock.monotonic_ns()

    # ---- as a sink

    def write(self, batch: SinkBatch) -> None:
        """Spool what a tracker can show and hand over what the pipe has room for."""
        for line in self._lines(batch):
            self._add(line)
        self.tick()

    def _add(self, line: dict[str, Any]) -> int:
        line["n"] = number = self._spool.next_number()
        self._spool.add(encode(line))
        return number

    def _lines(self, batch: SinkBatch) -> Iterator[dict[str, Any]]:
        first = min(batch.snapshot.ranks or (record.rank for record in batch.records), default=0)
        where = {"run_id": batch.run_id, "node": batch.node}
        for record in batch.records:
            if record.values and (self._ranks == "all" or record.rank == first):
                rank = record.rank if self._ranks == "all" else None
                yield {
                    "type": "metrics", **where, "rank": rank, "step": record.step, "wall_ns": record.wall_ns,
                    "eval": record.mode is Mode.EVALUATION, "values": plain(record.values),
                }  # fmt: skip
        for finding in batch.findings:
            yield {"type": "finding", **where, **plain(finding)}
        if batch.halt is not None and batch.halt.requested_by:
            yield {"type": "request", **where, **plain(batch.halt)}

    def _add_incidents(self, *, also_open: bool = False) -> None:
        """Spool the bundles that are due; looked for now and then, and once more at the end."""
        now_ns = self._clock.monotonic_ns()
        if self._incidents is None or (not also_open and now_ns - self._looked_ns < LOOK_SECONDS * 1e9):
            return
        self._looked_ns = now_ns
        for key, line in self._incidents.lines(also_open=also_open):
            self._incidents.sent(key, self._add(line))

    def tick(self) -> None:
        """Start the child when it is time, hear it, and hand over what it has room for."""
        self._add_incidents()
        if self._process is None and len(self._spool) and self._backoff.ready():
            self._start()
        process = self._process
        if process is None:
            return
        self._hear(process)
        self._speak(process)
        if process.poll() is not None:
            self._hear(process)
            self._died(process)
        elif self._busy() and self._clock.monotonic_ns() - self._sign_ns > HANG_SECONDS * 1e9:
            self._problem = f"the {self._name} process gave no sign for {HANG_SECONDS:g} s and was started anew"
            _end(process)
            self._died(process)

    def _busy(self) -> bool:
        return self._spool.flying > 0 or not self._ready

    def problem(self) -> str:
        """Say why lines wait, "" when they do not have to."""
        return self._problem

    def health(self) -> dict[str, float]:
        """Lines done and waiting, starts and deaths of the child, and lines lost by reason."""
        counts: dict[str, float] = {
            "lines_total": self._done,
            "spool_bytes": self._spool.size,
            "spool_lines": len(self._spool),
            "starts_total": self._starts,
            "deaths_total": self._deaths,
        }
        return counts | {f"lost_total[reason={reason}]": count for reason, count in self._spool.lost.items()}

    def close(self) -> None:
        """Hand over what waits and let the child finish, both within `exit_seconds`; then it is killed."""
        deadline = time.monotonic() + self._exit_seconds
        process = self._process
        if process is not None:
            self._add_incidents(also_open=True)
        if process is not None:
            while (self._spool.waiting or self._unwritten) and process.poll() is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._hear(process)
                self._speak(process)
                self._wait(process, min(left, 0.1))
            self._finish(process, deadline)
        self._spool.give_up()

    def _finish(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        assert process.stdin is not None
        _shut(process.stdin)
        while process.poll() is None and time.monotonic() < deadline:
            self._hear(process)
            self._wait(process, 0.05)
        self._hear(process)
        _end(process)
        self._hear(process)
        self._forget(process)

    # ---- the child

    def _start(self) -> None:
        self._ready, self._answers, self._stderr = False, b"", b""
        self._unwritten = self._hello
        self._sign_ns = self._clock.monotonic_ns()
        self._starts += 1
        try:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=self._environment, start_new_session=True, bufsize=0,
            )  # fmt: skip
        except OSError as error:
            self._problem = f"the {self._name} process cannot be started: {error}"
            self._backoff.failed()
            return
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        self._process = process

    def _speak(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        try:
            while self._unwritten or (self._ready and self._spool.waiting):
                if not self._unwritten:
                    if not self._spool.flying:
                        self._sign_ns = self._clock.monotonic_ns()  # it had nothing to do until now
                    self._unwritten = self._spool.take()
                written = os.write(process.stdin.fileno(), self._unwritten)
                self._unwritten = self._unwritten[written:]
        except (BlockingIOError, BrokenPipeError):
            return

    def _hear(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._stderr = (self._stderr + _read(process.stderr.fileno()))[-MAX_STDERR:]
        *lines, self._answers = (self._answers + _read(process.stdout.fileno())).split(b"\n")
        for line in lines:
            self._heed(line)

    def _heed(self, line: bytes) -> None:
        try:
            answer = json.loads(line)
        except ValueError:
            return
        if not isinstance(answer, dict):
            return
        self._sign_ns = self._clock.monotonic_ns()
        if answer.get("ready"):
            self._ready, self._problem = True, ""
        if "problem" in answer:
            self._problem = str(answer["problem"])[:300]
        if "lost" in answer:
            reason = str(answer.get("reason"))
            if reason in self._spool.lost:
                self._spool.lost[reason] += int(answer["lost"])
        if "incident" in answer and self._incidents is not None:
            self._incidents.failed(int(answer["incident"]))
        if "done" in answer:
            before = self._spool.flying
            if self._spool.done(int(answer["done"])):
                self._done += before - self._spool.flying
                self._deaths_in_a_row = 0
                self._backoff.succeeded()
            if self._incidents is not None:
                self._incidents.confirmed(int(answer["done"]))

    def _died(self, process: subprocess.Popen[bytes]) -> None:
        _end(process)
        self._deaths += 1
        if self._spool.flying:
            self._deaths_in_a_row += 1
            if self._deaths_in_a_row >= MAX_DEATHS:
                self._spool.drop_first_flying()
                self._deaths_in_a_row = 0
        self._spool.back()
        if not self._problem:
            last = self._stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [""]
            self._problem = f"the {self._name} process ended with {process.returncode}: {last[0][:200]}"
        self._forget(process)
        self._backoff.failed()

    def _forget(self, process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                _shut(pipe)
        self._process, self._ready, self._unwritten = None, False, b""

    def _wait(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        """Wait until the child says something or takes something."""
        readers = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None and not pipe.closed]
        writers = [process.stdin] if process.stdin is not None and not process.stdin.closed and self._unwritten else []
        began = time.monotonic()
        select.select(readers, writers, [], seconds)
        if process.poll() is None and time.monotonic() - began < 0.001:
            time.sleep(0.005)  # a pipe that the child has closed is always readable


def incident_watch(context: SinkContext, tracker: str) -> IncidentWatch:
    """Make the watch over incident bundles for a tracker that takes them."""
    return IncidentWatch(context.state_dir, tracker, context.node, context.clock.wall_ns())


def _read(descriptor: int) -> bytes:
    """Read what is there, at most 256 KiB."""
    try:
        return os.read(descriptor, 1 << 18)
    except (BlockingIOError, OSError):
        return b""


def _shut(pipe: Any) -> None:
    try:
        pipe.close()
    except OSError:
        return


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the child and everything that it started, and reap it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)  # a session of its own; also what a dead child left behind
    except OSError:
        process.kill()
    try:
        process.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        return
