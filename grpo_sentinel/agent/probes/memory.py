"""Memory layer: the process, its cgroup and the CUDA allocator; host only, standard library and torch.cuda."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_UNLIMITED = 1 << 60  # cgroup v1 writes a huge number where there is no limit
_KIB = 1024


class MemoryProbe:
    """Reads /proc, the cgroup (v1 or v2) and torch.cuda. What cannot be read is absent, never 0."""

    def __init__(
        self,
        ring_directory: Path | None = None,
        *,
        device: int | None = None,
        root: Path = Path("/"),
        slow_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ring_directory`: whose file system `memory.shm_used_ratio` is about. `root`: where /proc and /sys are.

        All but the process's own memory and the allocator is read again only after `slow_seconds`, repeated between.
        """
        self._slow_seconds = slow_seconds
        self._clock = clock
        self._slow: dict[str, float] = {}
        self._slow_read_at = float("-inf")
        self._ring_directory = ring_directory
        self._device = device
        self._proc = root / "proc"
        self._cgroup = find_cgroup(root)

    def observe(self) -> dict[str, float]:
        """Read what changes fast, repeat the rest. Never initialises CUDA, never raises for a missing file."""
        now = self._clock()
        if now - self._slow_read_at >= self._slow_seconds:
            self._slow_read_at = now
            self._slow = self._read(self._children, self._cgroup_memory, self._host, self._limits, self._shm)
        return {**self._slow, **self._read(self._process, self._cuda)}

    def _read(self, *readers: Callable[[], dict[str, float]]) -> dict[str, float]:
        out: dict[str, float] = {}
        for reader in readers:
            try:
                out.update(reader())
            except (OSError, ValueError, IndexError):
                continue  # absent, not zero
        return out

    def _process(self) -> dict[str, float]:
        pages = int((self._proc / "self" / "statm").read_text().split()[1])
        return {"memory.rss_bytes": float(pages * _PAGE)}

    def _children(self) -> dict[str, float]:
        # /proc/self/task/*/children lists direct children only: data-loader workers and reward servers are.
        total = 0
        for task in (self._proc / "self" / "task").iterdir():
            for child in (task / "children").read_text().split():
                try:
                    total += int((self._proc / child / "statm").read_text().split()[1]) * _PAGE
                except (OSError, IndexError):
                    continue  # it ended in between
        return {"memory.children_rss_bytes": float(total)}

    def _cgroup_memory(self) -> dict[str, float]:
        return {} if self._cgroup is None else read_cgroup(self._cgroup)

    def _host(self) -> dict[str, float]:
        fields = parse_meminfo((self._proc / "meminfo").read_text())
        return {"memory.host_available_bytes": fields["MemAvailable"]} if "MemAvailable" in fields else {}

    def _limits(self) -> dict[str, float]:
        import resource

        out = {"memory.threads": float(len(os.listdir(self._proc / "self" / "task")))}
        out["memory.open_files"] = float(len(os.listdir(self._proc / "self" / "fd")) - 1)  # less the listing's own
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            out["memory.open_files_limit"] = float(soft)
        return out

    def _shm(self) -> dict[str, float]:
        where = self._ring_directory or Path("/dev/shm")  # noqa: S108 - a file system to measure, nothing is written
        stats = os.statvfs(where)
        if not stats.f_blocks:
            return {}
        return {"memory.shm_used_ratio": 1.0 - stats.f_bavail / stats.f_blocks}

    def _cuda(self) -> dict[str, float]:
        if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
            return {}
        device = torch.cuda.current_device() if self._device is None else self._device
        out = parse_cuda(torch.cuda.memory_stats(device))
        torch.cuda.reset_peak_memory_stats(device)
        return {**out, **outside_allocator(out, *torch.cuda.mem_get_info(device))}


def parse_cuda(stats: Mapping[str, int]) -> dict[str, float]:
    """Take the allocator's own statistics apart (`torch.cuda.memory_stats`)."""
    names = {
        "memory.cuda_allocated_bytes": "allocated_bytes.all.current",
        "memory.cuda_reserved_bytes": "reserved_bytes.all.current",
        "memory.cuda_peak_bytes": "allocated_bytes.all.peak",
        "memory.cuda_inactive_bytes": "inactive_split_bytes.all.current",
        "memory.cuda_alloc_retries": "num_alloc_retries",
        "memory.cuda_ooms": "num_ooms",
    }
    return {name: float(stats[key]) for name, key in names.items() if key in stats}


def outside_allocator(allocator: Mapping[str, float], free: int, total: int) -> dict[str, float]:
    """Tell what of the device is used but not held by this process's caching allocator (`torch.cuda.mem_get_info`)."""
    out = {"memory.cuda_free_bytes": float(free), "memory.cuda_total_bytes": float(total)}
    reserved = allocator.get("memory.cuda_reserved_bytes")
    if reserved is not None:
        out["memory.cuda_outside_bytes"] = max(0.0, total - free - reserved)
    return out


def parse_meminfo(text: str) -> dict[str, float]:
    """Read /proc/meminfo: bytes by name."""
    out = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        parts = rest.split()
        if parts and parts[0].isdigit():
            out[name] = float(parts[0]) * (_KIB if len(parts) > 1 else 1)
    return out


def find_cgroup(root: Path) -> Path | None:
    """Find the directory of this process's memory cgroup: the v2 one, or v1's memory controller; None without."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    base = root / "sys/fs/cgroup"
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            found = _existing(base, path, "memory.current")
        elif "memory" in controllers.split(","):
            found = _existing(base / "memory", path, "memory.usage_in_bytes")
        else:
            continue
        if found is not None:
            return found
    return None


def _existing(base: Path, path: str, name: str) -> Path | None:
    """Inside a cgroup namespace the path is seen from outside: then the mount's own root is ours."""
    for directory in (base / path.lstrip("/"), base):
        if (directory / name).is_file():
            return directory
    return None


def read_cgroup(directory: Path) -> dict[str, float]:
    """Read use (less inactive page cache, which the kernel drops first), its kinds, and limit of a cgroup, v1 or v2."""
    second = (directory / "memory.current").is_file()
    used_name, limit_name = (
        ("memory.current", "memory.max") if second else ("memory.usage_in_bytes", "memory.limit_in_bytes")
    )
    used = int((directory / used_name).read_text())
    stat = dict(line.split(maxsplit=1) for line in (directory / "memory.stat").read_text().splitlines() if " " in line)
    cache = int(stat.get("inactive_file" if second else "total_inactive_file", "0"))
    out = {"memory.cgroup_used_bytes": float(max(0, used - cache))}
    files, shared = (stat.get(name) for name in (("file", "shmem") if second else ("total_cache", "total_shmem")))
    if shared is not None:
        out["memory.cgroup_shm_bytes"] = float(shared)
        if files is not None:
            out["memory.cgroup_cache_bytes"] = float(max(0, int(files) - int(shared)))
    limit = _limit(directory, limit_name)
    if limit is not None:
        out["memory.cgroup_limit_bytes"] = limit
    return out


def _limit(directory: Path, name: str) -> float | None:
    """Find the tightest limit from this cgroup upwards: a parent's binds as well (a pod's, a job's)."""
    limits = []
    while (directory / name).is_file():
        text = (directory / name).read_text().strip()
        if text.isdigit() and int(text) < _UNLIMITED:
            limits.append(float(text))
        directory = directory.parent
    return min(limits, default=None)
