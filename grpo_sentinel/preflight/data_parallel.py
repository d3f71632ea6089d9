"""`check data --jobs N`: blocks of rows judged by processes of their own, merged in the order of rows.

This process reads, whatever the format, and hands each block to a process over a socket of its own; what comes back is
one line of JSON: counts, first examples, histograms and one hash a row. Duplicates are sought here, over all blocks in
order, so that the report is the one that a single process gives. A process is forked when there is a block and nobody
free to take it, so little data costs little.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.data_sources import data_bytes

_WORTH_BYTES = 32 << 20  # below that starting processes costs more than it saves
_WORTH_BYTES_TOKENIZED = 2 << 20
_MOST_JOBS = 8
_AHEAD = 2  # tasks that a process may have: the one it works on, and the next
_READ = 1 << 20
_DIED = "a process of --jobs died, perhaps for want of memory (dmesg says so); try --jobs 1"


class Task(Protocol):
    """What a process works on."""

    def packed(self) -> tuple[Any, bytes]:
        """Give it as something that JSON holds, and bytes."""
        ...


T = TypeVar("T", bound=Task)


def jobs_for(sources: Sequence[str], wanted: int, *, tokenized: bool = False) -> int:
    """How many processes to use: what was asked for; with 0, the cores where the data is worth it."""
    if not hasattr(os, "fork"):
        return 1
    worth = _WORTH_BYTES_TOKENIZED if tokenized else _WORTH_BYTES
    return wanted or (min(len(os.sched_getaffinity(0)), _MOST_JOBS) if data_bytes(sources) >= worth else 1)


@dataclass(slots=True)
class _Worker:
    pid: int
    end: socket.socket  # this process's end of its socket
    tasks: int = 0  # handed to it and not answered
    unsent: bytearray = field(default_factory=bytearray)
    unread: bytearray = field(default_factory=bytearray)  # of a line that is not complete


class Workers(Generic[T]):
    """Processes forked from this one (so that hashes of text agree); `work` makes of a task what JSON can hold."""

    def __init__(self, jobs: int, work: Callable[[Any, bytes], Any]) -> None:
        self._jobs, self._work = jobs, work
        self._workers: list[_Worker] = []
        self._waiting = selectors.DefaultSelector()

    def __enter__(self) -> Workers[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.close()
        for worker in self._workers:
            worker.end.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)  # those that are done are gone or wait for a task
            with contextlib.suppress(ChildProcessError):
                os.waitpid(worker.pid, 0)

    def results(self, tasks: Iterator[T]) -> Iterator[tuple[T, Any]]:
        """Results in the order of the tasks; a few are read ahead. Raises `SentinelError` when a process dies."""
        given: dict[int, T] = {}  # and not yielded
        ready: dict[int, Any] = {}
        first = last = 0
        more = True
        while more or given:
            while more and len(given) < self._jobs * _AHEAD:
                task = next(tasks, None)
                more = task is not None
                if task is not None:
                    self._hand_out(last, task)
                    given[last] = task
                    last += 1
            while first in ready:
                yield given.pop(first), ready.pop(first)
                first += 1
                if more:
                    break  # the next task before the next result, so that nobody waits
            else:
                if given:
                    self._pass_on(ready)

    def _hand_out(self, number: int, task: T) -> None:
        """Give a task to whoever has least to do."""
        worker = min(self._workers, key=lambda one: one.tasks, default=None)
        if worker is None or (worker.tasks and len(self._workers) < self._jobs):
            worker = self._forked()
        header, content = task.packed()
        worker.unsent += json.dumps([number, len(content), header]).encode("ascii") + b"\n" + content
        worker.tasks += 1
        self._send(worker)

    def _pass_on(self, ready: dict[int, Any]) -> None:
        """Wait until something can be sent or read, and do so."""
        for key, events in self._waiting.select():
            if events & selectors.EVENT_WRITE:
                self._send(key.data)
            if events & selectors.EVENT_READ:
                ready.update(self._read(key.data))

    def _send(self, worker: _Worker) -> None:
        try:
            while worker.unsent:
                del worker.unsent[: worker.end.send(memoryview(worker.unsent)[:_READ])]
        except BlockingIOError:
            pass
        except OSError as error:
            raise SentinelError(_DIED) from error
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        self._waiting.modify(worker.end, both if worker.unsent else selectors.EVENT_READ, worker)

    def _read(self, worker: _Worker) -> Iterator[tuple[int, Any]]:
        """Read what a process has sent: number and result of every task that is done."""
        try:
            chunk = worker.end.recv(_READ)
        except OSError as error:
            raise SentinelError(_DIED) from error
        if not chunk:
            raise SentinelError(_DIED)
        worker.unread += chunk
        if b"\n" not in chunk:
            return
        *lines, worker.unread = worker.unread.split(b"\n")
        for line in lines:
            number, refused, result = json.loads(line)
            if refused:
                raise SentinelError(refused)
            worker.tasks -= 1
            yield number, result

    def _forked(self) -> _Worker:
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if not pid:
            for end in (ours, *(worker.end for worker in self._workers)):
                end.close()  # so that the parent's end is noticed, by an empty read or a broken pipe
            os._exit(self._run(theirs))
        theirs.close()
        ours.setblocking(False)
        worker = _Worker(pid, ours)
        self._workers.append(worker)
        self._waiting.register(ours, selectors.EVENT_READ, worker)
        return worker

    def _run(self, end: socket.socket) -> int:
        """Work on tasks until this process is killed; gives the exit code. Runs in the process of a worker."""
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core for each process
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, who ends this process
        try:
            with end, end.makefile("rb") as tasks:
                while line := tasks.readline():
                    number, size, header = json.loads(line)
                    content = tasks.read(size)
                    if len(content) < size:
                        return 1
                    error, result = "", None
                    try:
                        result = self._work(header, content)
                    except SentinelError as told:
                        error = str(told)
                    end.sendall(json.dumps([number, error, result]).encode("ascii") + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return 1  # nobody reads any more
        except BaseException:  # noqa: BLE001 - a forked process must not go on with its parent's work
            traceback.print_exc()
            return 1
        return 0


__all__ = ["Task", "Workers", "jobs_for"]
