"""`check data --jobs N`: parts of the files judged by processes of their own, merged in the order of rows.

Each process judges its rows and sends counts, first examples, histograms and one hash a row, as a line of JSON through
a pipe of its own. Duplicates are sought here, over all parts in order, so that the report is the one that a single
process gives. Which part is next is told through one pipe that all of them read.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.data_sources import Part, split

_PART_BYTES = 8 << 20
_SMALLEST_PART = 256 << 10
_WORTH_BYTES = 32 << 20  # below that starting processes costs more than it saves
_WORTH_BYTES_TOKENIZED = 2 << 20
_MOST_JOBS = 8
_TICKET = 8  # bytes: the number of a part
_DIED = "a process of --jobs died, perhaps for want of memory (dmesg says so); try --jobs 1"


def jobs_for(sources: tuple[str, ...], wanted: int, *, tokenized: bool = False) -> int:
    """How many processes to use: what was asked for; with 0, the cores where the data is worth it."""
    if wanted:
        return wanted
    size = _size(sources)
    cores = len(os.sched_getaffinity(0))
    worth = _WORTH_BYTES_TOKENIZED if tokenized else _WORTH_BYTES
    return min(cores, _MOST_JOBS) if size >= worth and hasattr(os, "fork") else 1


def parts_of(sources: tuple[str, ...], jobs: int) -> list[Part]:
    """All parts of all files, in order: some for each process, so that none waits long for the others."""
    part_bytes = min(_PART_BYTES, max(_SMALLEST_PART, _size(sources) // (4 * jobs)))
    return [part for source in sources for part in split(source, part_bytes)]


def _size(sources: tuple[str, ...]) -> int:
    return sum(Path(source).stat().st_size for source in sources if Path(source).is_file())


@dataclass(slots=True)
class _Worker:
    pid: int
    pipe: int  # where its lines come from
    rest: bytearray = field(default_factory=bytearray)  # of a line that is not complete


class Workers:
    """Processes forked from this one (so that hashes of text agree); `work` makes of a part what JSON can hold."""

    def __init__(self, jobs: int, parts: list[Part], work: Callable[[Part], Any]) -> None:
        self._jobs, self._parts, self._work = jobs, parts, work
        self._given = 0
        self._workers: list[_Worker] = []
        self._tickets_in, self._tickets = os.pipe()

    def __enter__(self) -> Workers:
        sys.stdout.flush()
        sys.stderr.flush()
        for _ in range(min(self._jobs, len(self._parts))):
            out, into = os.pipe()
            pid = os.fork()
            if not pid:
                os._exit(self._run(out, into))
            os.close(into)
            self._workers.append(_Worker(pid, out))
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._tickets_in, self._tickets):
            os.close(end)
        for worker in self._workers:
            os.close(worker.pipe)
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)  # those that are done are gone or wait for tickets
            with contextlib.suppress(ChildProcessError):
                os.waitpid(worker.pid, 0)

    def results(self) -> Iterator[tuple[Part, Any]]:
        """Results in the order of the parts; a few are worked on ahead. Raises `SentinelError` when a process dies."""
        ready: dict[int, Any] = {}
        with selectors.DefaultSelector() as waiting:
            for worker in self._workers:
                waiting.register(worker.pipe, selectors.EVENT_READ, worker)
            for _ in range(self._jobs + 2):
                self._give()
            for number, part in enumerate(self._parts):
                while number not in ready:
                    for key, _ in waiting.select():
                        ready.update(self._read(key.data))
                yield part, ready.pop(number)
                self._give()

    def _give(self) -> None:
        """Hand out the number of one more part, if there is one."""
        if self._given < len(self._parts):
            os.write(self._tickets, self._given.to_bytes(_TICKET, "big"))
            self._given += 1

    def _read(self, worker: _Worker) -> Iterator[tuple[int, Any]]:
        """Read what a process has sent: number and result of every part that is complete."""
        chunk = os.read(worker.pipe, 1 << 20)
        if not chunk:
            raise SentinelError(_DIED)
        worker.rest += chunk
        if b"\n" not in chunk:
            return
        *lines, rest = worker.rest.split(b"\n")
        worker.rest = rest
        for line in lines:
            number, error, result = json.loads(line)
            if error:
                raise SentinelError(error)
            yield number, result

    def _run(self, out: int, into: int) -> int:
        """Work on parts until this process is killed; gives the exit code. Runs in the process of a worker."""
        for end in (self._tickets, out, *(worker.pipe for worker in self._workers)):
            os.close(end)  # so that the parent's end is noticed, by an empty read or a broken pipe
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core for each process
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, who ends this process
        try:
            with os.fdopen(into, "w", encoding="ascii") as pipe:
                while ticket := os.read(self._tickets_in, _TICKET):
                    number = int.from_bytes(ticket, "big")
                    error, result = "", None
                    try:
                        result = self._work(self._parts[number])
                    except SentinelError as told:
                        error = str(told)
                    pipe.write(json.dumps([number, error, result]) + "\n")
                    pipe.flush()
        except BrokenPipeError:
            return 1  # nobody reads any more
        except BaseException:  # noqa: BLE001 - a forked process must not go on with its parent's work
            traceback.print_exc()
            return 1
        return 0


__all__ = ["Workers", "jobs_for", "parts_of"]
