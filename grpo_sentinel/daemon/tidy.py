"""Gives back the room of runs that ended: the rings of every restart would fill a container's /dev/shm in a day.

Only a run that this daemon has read to its end into the history may go: after a week, or sooner, oldest first, where
its file system has little room left.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from grpo_sentinel.daemon.claim import Claim
from grpo_sentinel.protocol import Geometry, list_segments

log = logging.getLogger(__name__)

KEEP_SECONDS = 7 * 24 * 3600.0
KEEP_SECONDS_WHEN_TIGHT = 600.0
ROOM_BYTES = 16 * Geometry().total_bytes  # two runs of 8 ranks


def tidy(directories: Iterable[Path], wall_s: float, free_bytes: Callable[[Path], int] | None = None) -> list[Path]:
    """Remove what may go of `directories`, which are read to their end; gives what was removed. Never raises."""
    room = free_bytes or _free_bytes
    removed = []
    for directory in sorted(directories, key=_ended_s):
        age_s = wall_s - _ended_s(directory)
        tight = room(directory) < ROOM_BYTES
        due = age_s > KEEP_SECONDS or (tight and age_s > KEEP_SECONDS_WHEN_TIGHT)
        if due and _remove(directory):
            removed.append(directory)
    return removed


def _ended_s(directory: Path) -> float:
    """When the newest segment was written last, seconds since the epoch."""
    times = []
    for path in list_segments(directory):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times, default=0.0)


def _free_bytes(directory: Path) -> int:
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return ROOM_BYTES


def _remove(directory: Path) -> bool:
    """Remove one run's directory, unless another daemon has taken it up."""
    try:
        claim = Claim.take(directory)
    except OSError:
        return False
    if claim is None:
        return False
    shutil.rmtree(directory, ignore_errors=True)
    claim.release()
    log.info("the rings of run %s are removed; its history stays", directory.name)
    return not directory.exists()
