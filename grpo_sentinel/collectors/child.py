"""A child process that answers one line with one line, can be given up at any moment, and never blocks its owner."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import grpo_sentinel

_LONGEST_ANSWER = 1 << 24


class ChildGone(Exception):
    """The child has ended without an answer; the text says how."""


class Child:
    """Runs `python -m module`. All methods return at once; only `answer` waits, for as long as it is told."""

    def __init__(self, module: str) -> None:
        """Start the process. Raises `OSError` when the host cannot start one."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            cwd="/",
            start_new_session=True,  # a Ctrl-C in the terminal is for the daemon, which then ends its child
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        self._received = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self) -> None:
        """Send one line. Raises `ChildGone` when nobody can read it any more."""
        try:
            os.write(self._stdin, b"\n")
        except OSError as error:
            raise ChildGone(self._ending()) from error

    def answer(self, wait_seconds: float = 0.0) -> str | None:
        """Return the line that answers, None while there is none. Raises `ChildGone`."""
        while b"\n" not in self._received:
            ready, _, _ = select.select([self._stdout], [], [], wait_seconds)
            if not ready:
                return None
            piece = os.read(self._stdout, 1 << 16)
            if not piece or len(self._received) > _LONGEST_ANSWER:
                raise ChildGone(self._ending())
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return line.decode("utf-8", "replace")

    def _ending(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)  # the pipe closes a moment before the process is gone
        code = self._process.returncode
        return "without a status" if code is None else f"by signal {-code}" if code < 0 else f"with status {code}"

    def kill(self) -> None:
        """End the process as hard as the kernel allows; one that hangs in the kernel stays until the call returns."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(OSError):
            self._process.kill()

    def reaped(self) -> bool:
        """Whether the killed process is gone for good."""
        return self._process.poll() is not None

    def join(self, seconds: float) -> None:
        """Give the killed process a moment to go, so that it is not left behind as a zombie."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)


def _environment() -> dict[str, str]:
    """Ours, with this very package importable, and with the agent switched off: the child is no trainer."""
    environment = {name: value for name, value in os.environ.items() if name != "GRPO_SENTINEL"}
    root = str(Path(grpo_sentinel.__file__).resolve().parents[1])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH", "")]))
    return environment
