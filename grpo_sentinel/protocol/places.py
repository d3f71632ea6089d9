"""Where segments lie: the root directory, a run's directory, the names of its files."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from grpo_sentinel.errors import SegmentError
from grpo_sentinel.protocol.identity import sanitise_run_id
from grpo_sentinel.protocol.layout import Geometry

CONTROL_NAME = "control"
_RING = re.compile(r"rank-(\d{5,})\.ring")


def candidate_roots(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """List the directories that may hold runs, best first; only the given one when GRPO_SENTINEL_DIR is set."""
    given = environ.get("GRPO_SENTINEL_DIR", "")
    if given:
        return [Path(given)]
    others = (environ.get("XDG_RUNTIME_DIR", ""), environ.get("TMPDIR", "") or "/tmp")  # noqa: S108 - the last resort
    return [Path("/dev/shm"), *(Path(text) for text in others if text)]  # noqa: S108 - directories in it are 0700


def choose_root(environ: Mapping[str, str] = os.environ, *, room_bytes: int = Geometry().total_bytes) -> Path:
    """Pick the first directory that is writable, has `room_bytes` free and no directory of ours that others made.

    A directory given by GRPO_SENTINEL_DIR is created when missing, and nothing else is tried: trainer and sidecar
    must not end up in different places. Raises `SegmentError` with the reason for each directory.
    """
    reasons = []
    for root in candidate_roots(environ):
        reason = _unusable(root, room_bytes, create=bool(environ.get("GRPO_SENTINEL_DIR")))
        if reason is None:
            return root
        reasons.append(f"{root} {reason}")
    raise SegmentError(
        f"no directory can hold the ring segments: {'; '.join(reasons)}; "
        f"set GRPO_SENTINEL_DIR to a writable directory with {room_bytes >> 10} KiB free per rank."
    )


def _unusable(root: Path, room_bytes: int, *, create: bool) -> str | None:
    """Say why `root` cannot be used; None when it can."""
    try:
        if create:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not root.is_dir():
            return "is not a directory"
        space = os.statvfs(root)
    except OSError as error:
        return f"cannot be used ({error.strerror})"
    if space.f_flag & os.ST_RDONLY:
        return "is read-only"
    if not os.access(root, os.W_OK | os.X_OK):
        return "is not writable"
    free = space.f_bavail * space.f_frsize
    if space.f_blocks and free < room_bytes:  # a tmpfs without a limit reports 0 blocks
        return f"has only {free >> 10} KiB free"
    return squatted(root)


def squatted(root: Path) -> str | None:
    """Say who took the name of this user's directory under `root`, where everybody may make one; None for nobody."""
    path = user_dir(root)
    try:
        found = path.lstat()
    except OSError:  # nobody, or what cannot be seen
        return None
    if found.st_uid != os.geteuid():
        return f"holds {path.name}, which belongs to uid {found.st_uid}"
    return None if stat.S_ISDIR(found.st_mode) else f"holds {path.name}, which is no directory"


def user_dir(root: Path) -> Path:
    """Directory of this user's runs under `root`; not created."""
    return root / f"grpo-sentinel-{os.getuid()}"


def run_dir(root: Path, run_id: str) -> Path:
    """Give the directory of a run, created with mode 0700; `<root>/grpo-sentinel-<uid>/<run id>`.

    Raises `SegmentError` when it cannot be created or belongs to somebody else.
    """
    own_directory(user_dir(root))
    return own_directory(user_dir(root) / sanitise_run_id(run_id))


def own_directory(path: Path) -> Path:
    """Create `path` (0700) if missing and check that it is a directory of ours, not a link. Raises `SegmentError`."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise SegmentError(f"{path} cannot be created ({error.strerror}): set GRPO_SENTINEL_DIR to another.") from error
    if not stat.S_ISDIR(found.st_mode):
        raise SegmentError(f"{path} is not a directory: remove it, or set GRPO_SENTINEL_DIR to another place.")
    if found.st_uid != os.geteuid():
        raise SegmentError(f"{path} belongs to uid {found.st_uid}: set GRPO_SENTINEL_DIR to a directory of your own.")
    if found.st_mode & 0o022:
        path.chmod(stat.S_IMODE(found.st_mode) & ~0o022)  # nobody else may put a segment or a control word here
    return path


def ring_path(directory: Path, rank: int) -> Path:
    """Name the segment of a rank."""
    return directory / f"rank-{rank:05d}.ring"


def alive_path(ring: Path) -> Path:
    """Name the lock file that belongs to a segment."""
    return ring.with_suffix(".alive")


def list_segments(directory: Path) -> list[Path]:
    """List the segments of a run by rank; empty when the directory is missing."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    found = [(int(match[1]), name) for name in names if (match := _RING.fullmatch(name))]
    return [directory / name for _, name in sorted(found)]
