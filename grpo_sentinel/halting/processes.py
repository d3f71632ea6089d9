"""Processes named so that a re-used pid is never taken for the one that was meant.

pid + start time (field 22 of /proc/<pid>/stat) + pid namespace + owner      all four fit, or no signal is sent
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from grpo_sentinel.protocol.identity import pid_namespace
from grpo_sentinel.records import RankIdentity

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMark:
    """One process, told apart from a later one with the same pid."""

    pid: int
    start_ticks: int
    pid_namespace: int  # inode of the namespace in which `pid` counts


def parse_stat(text: str) -> tuple[str, int, int]:
    """Take state, parent pid and start time in ticks out of a /proc/<pid>/stat line.

    The command stands in parentheses and may hold any character, so the last `)` counts. Raises `ValueError`.
    """
    fields = text[text.rindex(")") + 1 :].split()
    if len(fields) < 20:
        raise ValueError(f"{len(fields)} fields after the command, expected 20 or more")
    return fields[0], int(fields[1]), int(fields[19])


def mark_of(pid: int) -> ProcessMark | None:
    """Describe a process that runs now in this pid namespace; None when there is none, or only a zombie."""
    stat = _stat(pid)
    if stat is None or stat[0] in "ZX":
        return None
    return ProcessMark(pid=pid, start_ticks=stat[2], pid_namespace=pid_namespace())


def mark_of_rank(identity: RankIdentity) -> ProcessMark:
    """Describe the process that wrote a segment."""
    return ProcessMark(pid=identity.pid, start_ticks=identity.pid_start_ticks, pid_namespace=identity.pid_namespace)


def parent_of(mark: ProcessMark) -> ProcessMark | None:
    """Describe the parent of a process; None when either is gone or the parent is the first process."""
    if why_not(mark):
        return None
    stat = _stat(mark.pid)
    return mark_of(stat[1]) if stat is not None and stat[1] > 1 else None


def is_running(mark: ProcessMark) -> bool:
    """Tell whether exactly this process still runs; a zombie does not."""
    found = mark_of(mark.pid)
    return found is not None and found == mark


def why_not(mark: ProcessMark) -> str:
    """Say why no signal may go to `mark`; "" when it may: same start time, same namespace, same owner."""
    if mark.pid <= 1:
        return f"pid {mark.pid} is never signalled"
    if mark.pid_namespace != pid_namespace():
        return f"pid {mark.pid} counts in another pid namespace"
    found = mark_of(mark.pid)
    if found is None:
        return f"pid {mark.pid} is gone"
    if found.start_ticks != mark.start_ticks:
        return f"pid {mark.pid} now belongs to another process"
    try:
        owner = os.stat(_PROC / str(mark.pid)).st_uid
    except OSError:
        return f"pid {mark.pid} is gone"
    return "" if owner == os.geteuid() else f"pid {mark.pid} belongs to uid {owner}, not to uid {os.geteuid()}"


def send(mark: ProcessMark, number: signal.Signals | None) -> str:
    """Send a signal (None: only check) to exactly this process; gives "" when it was sent, else why not.

    Never signals a process that merely has the same pid: the pid is held by a file descriptor while it is checked.
    """
    descriptor: int | None = None
    with contextlib.suppress(OSError):  # gone, or a sandbox without pidfd: `why_not` tells which
        descriptor = os.pidfd_open(mark.pid)
    try:
        problem = why_not(mark)
        if problem or number is None:
            return problem
        if descriptor is not None:
            signal.pidfd_send_signal(descriptor, number)
        else:
            os.kill(mark.pid, number)
    except OSError as error:
        problem = f"pid {mark.pid}: {error.strerror}"
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return problem


def command_of(pid: int) -> list[str]:
    """Give the command line of a process; [] when it is gone or not readable."""
    with contextlib.suppress(OSError):
        data = (_PROC / str(pid) / "cmdline").read_bytes()
        return [part.decode("utf-8", "replace") for part in data.split(b"\0") if part]
    return []


def _stat(pid: int) -> tuple[str, int, int] | None:
    try:
        return parse_stat((_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return None
