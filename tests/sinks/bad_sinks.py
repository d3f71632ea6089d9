"""Sinks that misbehave, each in one way, and the waits that tests need."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from grpo_sentinel.views import SinkBatch


def eventually(condition: Callable[[], bool], what: str, timeout: float = 20.0) -> None:
    """Wait until a condition holds; fails by name when it does not."""
    limit = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < limit, f"did not happen within {timeout:g} s: {what}"
        time.sleep(0.005)


class Good:
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.batches: list[SinkBatch] = []
        self.threads: set[str] = {threading.current_thread().name}
        self.closed = False

    def write(self, batch: SinkBatch) -> None:
        self.threads.add(threading.current_thread().name)
        self.batches.append(batch)

    def close(self) -> None:
        self.closed = True

    def health(self) -> dict[str, float]:
        return {"kept": float(len(self.batches))}


class Gated(Good):
    """Takes a batch only after `gate` opens: hanging while closed, slow when opened now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.entered = threading.Event(), threading.Event()

    def write(self, batch: SinkBatch) -> None:
        self.entered.set()
        self.gate.wait(60)
        super().write(batch)


class Failing(Good):
    """Raises for the first `failures` writes, `error` each time."""

    def __init__(self, failures: float = float("inf"), error: type[BaseException] = OSError) -> None:
        super().__init__()
        self.failures, self.error, self.tries = failures, error, 0

    def write(self, batch: SinkBatch) -> None:
        self.tries += 1
        if self.tries <= self.failures:
            raise self.error("no room")
        super().write(batch)


class BadAtTheEdges(Good):
    """Raises wherever else it is called."""

    def close(self) -> None:
        raise RuntimeError("close")

    def tick(self) -> None:
        raise RuntimeError("tick")

    def health(self) -> dict[str, float]:
        raise RuntimeError("health")
