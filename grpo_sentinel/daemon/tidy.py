"""Gives back the room of runs that ended: the rings of every restart would fill a container's /dev/shm in a day.

Only a run that was read to its end into a history may go: after a week, or sooner, oldest first, where its file system
has little room left. Where the next run would find none at all, one that nobody has read goes too, as the last.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from grpo_sentinel.clock import Clock, SystemClock
from grpo_sentinel.daemon.claim import Claim
from grpo_sentinel.daemon.past import Stage, stage_of
from grpo_sentinel.daemon.places import belongs_to, run_directories
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.protocol import Geometry, list_segments, user_dir

log = logging.getLogger(__name__)

KEEP_SECONDS = 7 * 24 * 3600.0
KEEP_SECONDS_WHEN_TIGHT = 600.0
RUN_BYTES = 8 * Geometry().total_bytes  # a run of 8 ranks
ROOM_BYTES = 2 * RUN_BYTES


def tidy(directories: Iterable[Path], wall_s: float, free_bytes: Callable[[Path], int] | None = None) -> list[Path]:
    """Remove what may go of `directories`, which are read to their end; gives what was removed. Never raises."""
    room = free_bytes or _free_bytes
    removed = []
    for directory in sorted(directories, key=ended_s):
        age_s = wall_s - ended_s(directory)
        tight = room(directory) < ROOM_BYTES
        due = age_s > KEEP_SECONDS or (tight and age_s > KEEP_SECONDS_WHEN_TIGHT)
        if due and remove_rings(directory):
            removed.append(directory)
    return removed


def make_room(roots: Sequence[Path], history: Path, *, spared: str = "", for_a_run: bool = True) -> list[Path]:
    """Remove what is due under `roots`, and, for a run about to begin that would find no room, more.

    Then the oldest ended runs go first, those that are stored before those in no history. Never one that lives, is
    watched, belongs to another user, or is run `spared` or a restart of it. Gives what was removed. Never raises.
    """
    clock = SystemClock()
    removed: list[Path] = []
    for root in roots:
        with contextlib.suppress(OSError, SentinelError):
            removed += _make_room_in(root, history, spared, for_a_run, clock)
    return removed


def _make_room_in(root: Path, history: Path, spared: str, for_a_run: bool, clock: Clock) -> list[Path]:
    if user_dir(root).lstat().st_uid != os.geteuid():
        return []
    now_s = clock.wall_ns() / 1e9
    short = for_a_run and _is_short(root)
    found = [one for one in run_directories([root]) if not (spared and belongs_to(one, spared))]
    old = [one for one in found if short or now_s - ended_s(one) > KEEP_SECONDS_WHEN_TIGHT]  # others are not looked at
    stages = {one: stage_of(one, clock, history) for one in old}
    stored = [one for one in old if stages[one] is Stage.STORED]
    removed = tidy(stored, now_s)
    unread = [one for one in old if stages[one] is Stage.UNREAD]
    for directory in (*sorted(stored, key=ended_s), *sorted(unread, key=ended_s)) if short else ():
        if directory not in removed and _is_short(root) and remove_rings(directory):
            removed.append(directory)
    return removed


def _is_short(root: Path) -> bool:
    """Tell whether the next run may find no room: less than a run takes, or a quarter of a small file system."""
    space = shutil.disk_usage(root)
    return space.free < max(Geometry().total_bytes, min(RUN_BYTES, space.total // 4))


def ended_s(directory: Path) -> float:
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


def remove_rings(directory: Path) -> bool:
    """Remove one run's directory, unless a daemon has taken it up. Tells whether it is gone. Never raises."""
    try:
        claim = Claim.take(directory)
    except OSError:
        return False
    if claim is None:
        return False
    shutil.rmtree(directory, ignore_errors=True)
    claim.release()
    log.info("the rings of run %s are removed", directory.name)
    return not directory.exists()
