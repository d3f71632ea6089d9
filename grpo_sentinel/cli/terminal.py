"""Job control for a command that runs in a process group of its own, beneath a launcher that a shell sees as the job.

shell ── tcsetpgrp ─▶ launcher ── lend ─▶ command      Ctrl-C, the keyboard and Ctrl-Z are the command's
Ctrl-Z: command stops ─▶ launcher takes the terminal back and stops too ─▶ the shell prints its prompt
fg: SIGCONT ─▶ launcher lends the terminal again and wakes the command       bg: it wakes the command only
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import FrameType, TracebackType


class Terminal:
    """The terminal of standard input, lent to the group of `process`; does nothing where there is none to lend."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._fd = _controlling_terminal()
        self._before: dict[int, signal.Handlers | int | None] = {}

    def __enter__(self) -> Terminal:
        if self._fd is not None:
            # a background group that touches the terminal is stopped by SIGTTOU, unless it ignores it
            self._before[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # type: ignore[assignment]
            self._lend()
        return self

    def look(self) -> None:
        """Follow a command that was stopped: stop as well, so that the shell has its prompt; wake it with the job."""
        if self._fd is None or not _was_stopped(self._process.pid):
            return
        self._give(os.getpgrp())
        handler = signal.signal(signal.SIGCONT, _nothing)  # the command is woken below, after it has the terminal
        try:
            os.killpg(os.getpgrp(), signal.SIGTSTP)  # stops here, with whatever is piped to it, until `fg` or `bg`
        finally:
            signal.signal(signal.SIGCONT, handler)
        self._lend()
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGCONT)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._fd is None:
            return
        if _foreground_of(self._fd) == self._process.pid:
            self._give(os.getpgrp())
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _lend(self) -> None:
        """Hand it on, if the shell has given it to us: a job sent to the background has none to lend."""
        if self._fd is not None and _foreground_of(self._fd) == os.getpgrp():
            self._give(self._process.pid)

    def _give(self, group: int) -> None:
        with contextlib.suppress(OSError):
            os.tcsetpgrp(self._fd or 0, group)


def _controlling_terminal() -> int | None:
    """Give the descriptor of standard input when it is the terminal this job runs in front of."""
    try:
        fd = sys.stdin.fileno()
        return fd if os.tcgetpgrp(fd) == os.getpgrp() else None
    except (OSError, ValueError, AttributeError):
        return None


def _foreground_of(fd: int) -> int:
    try:
        return os.tcgetpgrp(fd)
    except OSError:
        return -1


def _was_stopped(pid: int) -> bool:
    """Tell once for each stop; how a child ends is left for whoever waits for it."""
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None
    except OSError:
        return False


def _nothing(_number: int, _frame: FrameType | None) -> None:
    pass
