"""The sidecar as a child of `launch`: started again when it dies, a few times in a row, and asked to end at the end.

Where a permanent sidecar watches the folder none is started, unless that one ends while the command runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import click

from grpo_sentinel.daemon.claim import is_claimed

_RESTARTS = 3  # in a row: a sidecar that has run for a while since earns them anew, over runs of weeks
_STEADY_SECONDS = 60.0
_CLOSE_SECONDS = 15.0
_ABSENT_SECONDS = 10.0  # a permanent sidecar may be started again


class Sidecar:
    """The daemon as a child; its death never touches training."""

    def __init__(self, command: Sequence[str], elder: Path | None = None) -> None:
        """`elder`: the folder whose permanent sidecar has the run; none is started while that one is there."""
        self._command = list(command)
        self._elder = elder
        self._seen = time.monotonic()  # when the elder was there last
        self._process: subprocess.Popen[bytes] | None = None
        self._launcher_pid = 0
        self._restarts = 0
        self._started = 0.0
        self._due = 0.0

    def start(self, launcher_pid: int) -> None:
        """Start it beside the command with pid `launcher_pid`; a failure is said."""
        self._launcher_pid = launcher_pid
        if self._elder is not None:
            return
        self._started = time.monotonic()
        environment = {key: value for key, value in os.environ.items() if key != "GRPO_SENTINEL"}
        try:
            self._process = subprocess.Popen(
                [*self._command, "--launcher-pid", str(launcher_pid), "--supervisor-pid", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C ends the training first; the sidecar watches how it ends
                env=environment,
            )
        except OSError as error:
            say(f"the sidecar could not be started ({error.strerror}); training goes on unwatched")

    def look(self) -> None:
        """Start it again if it died, at most a few times in a row; start it where the permanent one has gone."""
        if self._elder is not None:
            self._look_for_the_elder(self._elder)
            return
        process = self._process
        if process is None or process.poll() is None:
            return
        now = time.monotonic()
        if self._due:
            if now >= self._due:
                self._due = 0.0
                self.start(self._launcher_pid)
            return
        if now - self._started >= _STEADY_SECONDS:
            self._restarts = 0
        if self._restarts >= _RESTARTS:
            say(f"the sidecar ended ({describe(process.returncode)}) {_RESTARTS + 1} times; training goes on unwatched")
            self._process = None
            return
        self._restarts += 1
        self._due = now + 0.5 * self._restarts
        say(f"the sidecar ended ({describe(process.returncode)}); it is started again, training goes on")

    def _look_for_the_elder(self, folder: Path) -> None:
        now = time.monotonic()
        if is_claimed(folder):
            self._seen = now
        elif now - self._seen > _ABSENT_SECONDS:
            say("the permanent sidecar has ended; this run gets one of its own")
            self._elder = None
            self.start(self._launcher_pid)

    @property
    def elder(self) -> bool:
        """Is the run left to a permanent sidecar?"""
        return self._elder is not None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process; 0 where there is none."""
        return 0 if self._process is None else self._process.pid

    def end(self) -> None:
        """Ask it to end, wait a bounded time, then kill it."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            say(f"the sidecar did not end within {_CLOSE_SECONDS:g} s and was killed")
            self._process.kill()
            self._process.wait()


def describe(code: int) -> str:
    """Put an exit code or a signal into words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def say(text: str) -> None:
    """One line to the terminal, never in the way of training."""
    with contextlib.suppress(OSError):
        click.echo(f"grpo-sentinel: {text}", err=True)
