"""Slow work that must not hold up the loop: pinning checkpoints and taking stacks, one job at a time, in a thread.

The thread is a daemon: a file system that hangs cannot keep the process from ending.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

_MOST_JOBS = 64


class Background:
    """Runs jobs in order; `done` gives the results that have come in, to be taken by the loop."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.Queue[tuple[str, Callable[[], Callable[[], None] | None]] | None] = queue.Queue(_MOST_JOBS)
        self._results: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._name = name
        self._thread: threading.Thread | None = None
        self.errors = 0

    def submit(self, what: str, job: Callable[[], Callable[[], None] | None]) -> bool:
        """Queue `job`, which may return a continuation for the loop's thread; False when too much waits already."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        try:
            self._jobs.put_nowait((what, job))
        except queue.Full:
            self.errors += 1
            return False
        return True

    def settle(self) -> None:
        """Run, in the caller's thread, what finished jobs left to be done."""
        while not self._results.empty():
            self._results.get()()

    def close(self, wait_seconds: float) -> None:
        """Let the queued jobs end for at most `wait_seconds`."""
        if self._thread is None:
            return
        try:
            self._jobs.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(wait_seconds)

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            what, job = item
            try:
                result = job()
            except Exception as error:  # noqa: BLE001 - counted and said; the daemon goes on
                self.errors += 1
                log.warning("%s failed: %s", what, error)
                continue
            if result is not None:
                self._results.put(result)
