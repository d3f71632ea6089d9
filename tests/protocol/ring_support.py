"""Shared by the ring tests: a small geometry, child processes that talk in lines, a bounded wait."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpo_sentinel
from grpo_sentinel.protocol import Geometry

CHILDREN = Path(__file__).with_name("ring_children.py")
SMALL = Geometry(slots=8, slot_bytes=256, event_slots=4, event_slot_bytes=512, name_bytes=4096)


class Child:
    """A process running one function of ring_children.py; talks in lines."""

    def __init__(self, name: str, *arguments: str) -> None:
        environ = {**os.environ, "PYTHONPATH": str(Path(grpo_sentinel.__file__).parents[1])}
        self.process = subprocess.Popen(
            [sys.executable, str(CHILDREN), name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
        )
        self.pid = self.process.pid
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.process.stdout, selectors.EVENT_READ)

    def line(self, timeout_s: float = 30.0) -> str:
        """Read the child's next line; fails after `timeout_s`. A child prints one line and waits to be told on."""
        assert self._selector.select(timeout_s), f"child {self.pid} said nothing for {timeout_s} s"
        return self.process.stdout.readline().decode().strip()

    def tell(self, text: str = "") -> None:
        self.process.stdin.write(f"{text}\n".encode())
        self.process.stdin.flush()

    def wait(self, timeout_s: float = 30.0) -> int:
        return self.process.wait(timeout_s)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(10)
        self.process.stdin.close()
        self.process.stdout.close()
        self._selector.close()


def until(condition: Callable[[], bool], what: str, timeout_s: float = 10.0) -> float:
    """Wait for `condition`, look every few milliseconds; fails after `timeout_s`. Returns the seconds it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < timeout_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.005)
    return time.monotonic() - start
