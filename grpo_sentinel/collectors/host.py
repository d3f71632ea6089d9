"""Collects the host: memory, processors, cgroup, shared memory, file systems, the ranks' processes.

The only module that imports psutil.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from grpo_sentinel.clock import Clock
from grpo_sentinel.collectors.cgroup import CgroupMemory, read_cgroup
from grpo_sentinel.collectors.disk import DiskProbe, space_of
from grpo_sentinel.protocol.liveness import process_gone
from grpo_sentinel.records import Liveness, Sample
from grpo_sentinel.views import RankStatus

if TYPE_CHECKING:
    from grpo_sentinel.config import HostConfig

Ranks = Mapping[int, RankStatus]
_Values = dict[str, float]


def cpu_shares(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, float] | None:
    """Return busy and iowait share between two readings of CPU times by kind; None when no time has passed.

    Time of guests is part of `user` already (proc(5)), so it is left out.
    """
    kinds = [kind for kind in after if not kind.startswith("guest")]
    spent = {kind: max(0.0, after[kind] - before.get(kind, 0.0)) for kind in kinds}
    total = sum(spent.values())
    if total <= 0:
        return None
    waiting = spent.get("iowait", 0.0)
    return (total - spent.get("idle", 0.0) - waiting) / total, waiting / total


def memory_values(total: float, available: float, cgroup: CgroupMemory | None) -> _Values:
    """Put host memory beside what may really be used: a container's limit counts where it is the tighter one."""
    used_ratio = 1.0 - available / total
    values = {
        "device.host_memory_total_bytes": total,
        "device.host_memory_available_bytes": available,
        "device.host_memory_used_ratio": used_ratio,
        "device.memory_limit_bytes": total,
        "device.memory_used_ratio": used_ratio,
    }
    if cgroup is not None and cgroup.limit_bytes and cgroup.used_bytes is not None:
        share = cgroup.used_bytes / cgroup.limit_bytes
        values["device.cgroup_memory_used_ratio"] = share
        if cgroup.limit_bytes < total:
            values |= {"device.memory_limit_bytes": float(cgroup.limit_bytes), "device.memory_used_ratio": share}
    if cgroup is not None and cgroup.oom_kills is not None:
        values["device.cgroup_oom_kills"] = float(cgroup.oom_kills)
    return values


class HostCollector:
    """Gives one sample of the host and one per watched file system, every `interval_seconds`.

    `paths` are watched besides those of the configuration; `ring` lies on the file system of the ring segments;
    `ranks` tells which ranks run here, to look at their processes and their cgroup.
    """

    name = "host"

    def __init__(
        self,
        config: HostConfig,
        paths: Sequence[Path],
        clock: Clock,
        ring: Path | None = None,
        ranks: Callable[[], Ranks] = dict,
    ) -> None:
        self._interval_ns = round(config.interval_seconds * 1e9)
        self._clock = clock
        self._ring = ring
        self._ranks = ranks
        self._host = socket.gethostname()
        unique = dict.fromkeys([*paths, *map(Path, config.disk_paths)])
        self._disks = [DiskProbe(path, clock) for path in unique]
        self._due_ns = clock.monotonic_ns()
        self._cpu_before: Mapping[str, float] = {}
        self._rank_before: dict[int, tuple[int, float, int]] = {}  # rank -> pid, CPU seconds, at which time

    def poll(self, wait_seconds: float = 0.0) -> Sequence[Sample]:
        """Return the host when it is due, and file systems as they answer.

        Never blocks unless `wait_seconds` says how long one file system may be waited for. Never raises.
        """
        samples: list[Sample | None] = []
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + self._interval_ns
            samples.append(self._host_sample())
            samples.extend(disk.start() for disk in self._disks)
        samples.extend(disk.take(wait_seconds) for disk in self._disks)
        return [sample for sample in samples if sample is not None]

    def close(self) -> None:
        """Nothing to let go: threads of file systems that hang are daemons."""

    # ---- the host

    def _host_sample(self) -> Sample:
        ranks = self._ranks()
        processes = {rank: status.identity.pid for rank, status in ranks.items() if _is_here(status)}
        queries: tuple[tuple[tuple[str, ...], Callable[[], _Values]], ...] = (
            (("device.host_memory_used_ratio", "device.memory_used_ratio"), lambda: self._memory(processes)),
            (("device.host_cpu_ratio", "device.host_iowait_ratio"), self._cpu),
            (("device.host_load1",), lambda: {"device.host_load1": psutil.getloadavg()[0]}),
            (("device.shm_used_ratio",), self._shm),
            (("device.rank_rss_bytes", "device.rank_cpu_ratio"), lambda: self._processes(processes)),
            (("device.rank_processes_dead",), lambda: _dead(ranks)),
        )
        values: _Values = {}
        failed: dict[str, str] = {}
        for signals, read in queries:
            try:
                values |= read()
            except (OSError, psutil.Error, ValueError) as error:
                failed |= dict.fromkeys(signals, str(error))
        optional = ("device.cgroup_memory_used_ratio", "device.cgroup_oom_kills")
        return Sample(
            source="host",
            entity=self._host,
            wall_ns=self._clock.wall_ns(),
            values=values,
            unsupported=tuple(signal for signal in optional if signal not in values),
            failed=failed,
        )

    def _memory(self, processes: Mapping[int, int]) -> _Values:
        """The trainer's cgroup counts, not the sidecar's, where its process can be seen."""
        host = psutil.virtual_memory()
        return memory_values(
            float(host.total), float(host.available), read_cgroup(next(iter(processes.values()), None))
        )

    def _cpu(self) -> _Values:
        before, self._cpu_before = self._cpu_before, psutil.cpu_times()._asdict()
        shares = cpu_shares(before, self._cpu_before) if before else None  # against zero: the average since boot
        return {} if shares is None else {"device.host_cpu_ratio": shares[0], "device.host_iowait_ratio": shares[1]}

    def _shm(self) -> _Values:
        return {} if self._ring is None else {"device.shm_used_ratio": space_of(self._ring)[1]}

    def _processes(self, processes: Mapping[int, int]) -> _Values:
        values: _Values = {}
        for rank, pid in processes.items():
            try:
                values |= self._process(rank, psutil.Process(pid))
            except psutil.NoSuchProcess:
                self._rank_before.pop(rank, None)
        return values

    def _process(self, rank: int, process: Any) -> _Values:
        spent = process.cpu_times()
        seconds, now_ns = spent.user + spent.system, self._clock.monotonic_ns()
        values = {f"device.rank_rss_bytes[{rank}]": float(process.memory_info().rss)}
        pid, seconds_before, before_ns = self._rank_before.get(rank, (0, 0.0, now_ns))
        if pid == process.pid and now_ns > before_ns:
            values[f"device.rank_cpu_ratio[{rank}]"] = (seconds - seconds_before) / ((now_ns - before_ns) / 1e9)
        self._rank_before[rank] = (process.pid, seconds, now_ns)
        return values


def _is_here(status: RankStatus) -> bool:
    """Whether the pid of a rank means in this namespace the process that wrote the segment."""
    return process_gone(status.identity) is False


def _dead(ranks: Ranks) -> _Values:
    dead = sum(status.liveness is Liveness.DEAD for status in ranks.values())
    return {"device.rank_processes_dead": float(dead)}
