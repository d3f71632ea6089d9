"""Memory limit and use of a cgroup, version 1 or 2: what a container may use, where host totals mislead.

Parsing is pure (`parse_*`, `locate`), reading opens files below the given roots.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_NO_LIMIT = 1 << 60  # version 1 writes "no limit" as the largest multiple of the page size below 2**63


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """Memory of one cgroup. `limit_bytes` is the tightest on the way to the root, None when there is none."""

    limit_bytes: int | None
    used_bytes: int | None  # charged, less inactive page cache, which the kernel drops before it kills
    oom_kills: int | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process's memory cgroup lies: the mount, and the directory below it."""

    version: int
    mount: PurePosixPath
    directory: PurePosixPath


@dataclass(frozen=True, slots=True)
class _Files:
    """Where one version keeps its figures."""

    limit: str
    used: str
    cache: str  # key of memory.stat
    kills: str


_FILES = {
    1: _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control"),
    2: _Files("memory.max", "memory.current", "inactive_file", "memory.events"),
}


def parse_flat(text: str) -> dict[str, int]:
    """Read `key number` lines, as in memory.stat, memory.events and memory.oom_control; others are passed over."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and _is_number(pair[1])}


def parse_limit(text: str) -> int | None:
    """Read a limit in bytes; None for "max", for version 1's huge number and for anything that is no number."""
    text = text.strip()
    if not _is_number(text) or int(text) >= _NO_LIMIT:
        return None
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 24


def locate(cgroup_text: str, mountinfo_text: str) -> Place | None:
    """Find the memory cgroup from /proc/<pid>/cgroup and /proc/self/mountinfo; None when it is not mounted.

    Version 1 goes first: on hybrid hosts the memory controller is there and version 2 holds no limits.
    """
    paths = dict(_memberships(cgroup_text))
    mounts = {(version, mount): root for version, mount, root in _mounts(mountinfo_text)}
    for version in (1, 2):
        if version not in paths:
            continue
        for (mounted, mount), root in mounts.items():
            if mounted == version:
                return Place(version, mount, mount / _below(paths[version], root))
    return None


def _memberships(cgroup_text: str) -> Iterable[tuple[int, str]]:
    """Yield (version, path) of the hierarchies that can limit memory."""
    for line in cgroup_text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield 2, path
        elif "memory" in controllers.split(","):
            yield 1, path


def _mounts(mountinfo_text: str) -> Iterable[tuple[int, PurePosixPath, str]]:
    """Yield (version, mount point, root within the hierarchy) of the mounts that can hold the memory controller."""
    for line in mountinfo_text.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or not kind:
            continue
        if kind[0] == "cgroup2":
            yield 2, PurePosixPath(_unescape(fields[4])), _unescape(fields[3])
        elif kind[0] == "cgroup" and "memory" in kind[-1].split(","):
            yield 1, PurePosixPath(_unescape(fields[4])), _unescape(fields[3])


def _unescape(text: str) -> str:
    """Undo mountinfo's octal escapes (a space is written \\040)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _below(path: str, root: str) -> str:
    """Give the part of a cgroup path that lies below a mount showing `root` of the hierarchy.

    In a container the mount shows the container's own cgroup while the path may still be the host's, or lie outside
    its namespace (`/../..`): then the mount point itself is the cgroup.
    """
    if path == root or ".." in path.split("/"):
        return ""
    if root != "/" and path.startswith(root.rstrip("/") + "/"):
        path = path[len(root) :]
    elif root != "/":
        return ""
    return path.lstrip("/")


# ---- reading


def read_cgroup(pid: int | None = None, proc: Path = Path("/proc")) -> CgroupMemory | None:
    """Read the memory cgroup of a process (None = this one). None when it has none that can be seen; never raises."""
    who = "self" if pid is None else str(pid)
    place = locate(_text(proc / who / "cgroup"), _text(proc / "self" / "mountinfo"))
    return None if place is None else read_memory(place)


def read_memory(place: Place) -> CgroupMemory:
    """Read the limits from the cgroup up to the mount and return the level with the least room left."""
    files = _FILES[place.version]
    directory = Path(place.directory)
    if not directory.is_dir():  # a path of the host that is not visible in this container
        directory = Path(place.mount)
    levels = [_level(level, files) for level in _upwards(directory, Path(place.mount))]
    tightest = min(levels, key=lambda level: math.inf if level[0] is None else level[0] - (level[1] or 0))
    return CgroupMemory(*tightest, parse_flat(_text(directory / files.kills)).get("oom_kill"))


def _level(directory: Path, files: _Files) -> tuple[int | None, int | None]:
    """Limit and use of one level."""
    stat = parse_flat(_text(directory / "memory.stat"))
    limit = parse_limit(_text(directory / files.limit))
    above = parse_limit(str(stat.get("hierarchical_memory_limit", "")))  # version 1 tells of ancestors out of sight
    limits = [number for number in (limit, above) if number is not None]
    used = parse_limit(_text(directory / files.used))
    cache = stat.get(files.cache, 0)
    return min(limits, default=None), None if used is None else max(0, used - cache)


def _upwards(directory: Path, mount: Path) -> Iterable[Path]:
    yield directory
    while directory != mount and directory != directory.parent:
        directory = directory.parent
        yield directory


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
