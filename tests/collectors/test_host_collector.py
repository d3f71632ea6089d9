"""The host is read through the real psutil and /proc; the arithmetic on it is pure."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_sentinel.catalog import SIGNALS, split_name
from grpo_sentinel.clock import ManualClock, SystemClock
from grpo_sentinel.collectors import disk
from grpo_sentinel.collectors.cgroup import CgroupMemory
from grpo_sentinel.collectors.host import HostCollector, cpu_shares, memory_values
from grpo_sentinel.config import HostConfig
from grpo_sentinel.protocol import new_identity
from grpo_sentinel.records import Heartbeat, Liveness, Phase, RankIdentity
from grpo_sentinel.views import RankStatus

BEAT = Heartbeat(step=1, phase=Phase.IDLE, phase_since_wall_ns=0, updated_wall_ns=0)


def _status(identity: RankIdentity, liveness: Liveness = Liveness.ALIVE) -> RankStatus:
    return RankStatus(identity=identity, heartbeat=BEAT, liveness=liveness, last_step=1)


def test_a_real_host_gives_every_figure_with_a_name_of_the_catalogue(tmp_path: Path) -> None:
    clock = ManualClock()
    collector = HostCollector(HostConfig(), [tmp_path], clock, ring=tmp_path)
    collector.poll(10)
    clock.advance(6)
    _burn()
    host, space = collector.poll(10)

    assert host.entity == socket.gethostname()
    assert not host.failed
    values = host.values
    assert values["device.host_memory_total_bytes"] == psutil.virtual_memory().total
    assert 0 < values["device.host_memory_used_ratio"] < 1
    assert 0 < values["device.memory_used_ratio"] <= 1.5
    assert 0 < values["device.host_cpu_ratio"] <= 1
    assert 0 <= values["device.host_iowait_ratio"] <= 1
    assert values["device.host_load1"] >= 0
    assert 0 <= values["device.shm_used_ratio"] <= 1
    assert space.entity == str(tmp_path)
    assert space.values["device.disk_free_bytes"] > 0
    assert 0 < space.values["device.disk_used_ratio"] < 1
    assert {split_name(name)[0] for name in (*values, *space.values)} <= set(SIGNALS)


def _burn() -> None:
    """Keep a core busy until the kernel's clock, whatever its grain, has counted it as busy."""
    begun = psutil.cpu_times().user
    while psutil.cpu_times().user <= begun:
        sum(range(10_000))


def test_the_first_reading_has_no_cpu_share_rather_than_the_average_since_boot() -> None:
    (host,) = HostCollector(HostConfig(), [], ManualClock()).poll()

    assert "device.host_cpu_ratio" not in host.values


def test_nothing_is_read_before_its_time() -> None:
    clock = ManualClock()
    collector = HostCollector(HostConfig(interval_seconds=5), [], clock)

    assert len(collector.poll()) == 1
    clock.advance(4.9)
    assert collector.poll() == []
    clock.advance(0.2)
    assert len(collector.poll()) == 1


@pytest.mark.parametrize(
    ("limit", "used", "ratio", "allowed"),
    [(None, 50, 0.25, 1000), (100, 80, 0.8, 100), (5000, 80, 0.25, 1000), (100, None, 0.25, 1000)],
)
def test_a_limit_of_the_cgroup_counts_instead_of_host_memory_where_it_is_tighter(
    limit: int | None, used: int | None, ratio: float, allowed: float
) -> None:
    values = memory_values(1000.0, 750.0, CgroupMemory(limit, used, 3))

    assert values["device.memory_used_ratio"] == pytest.approx(ratio)
    assert values["device.memory_limit_bytes"] == allowed
    assert values["device.host_memory_used_ratio"] == 0.25
    assert values["device.cgroup_oom_kills"] == 3
    assert ("device.cgroup_memory_used_ratio" in values) == (limit is not None and used is not None)


def test_a_host_without_cgroups_reports_host_memory_and_no_zeros() -> None:
    values = memory_values(1000.0, 750.0, None)

    assert values["device.memory_used_ratio"] == 0.25
    assert "device.cgroup_oom_kills" not in values


def test_cpu_shares_leave_out_guests_who_are_counted_as_user_already() -> None:
    before = {"user": 100.0, "system": 50.0, "idle": 800.0, "iowait": 50.0, "guest": 40.0}
    after = {"user": 140.0, "system": 60.0, "idle": 840.0, "iowait": 60.0, "guest": 80.0}

    assert cpu_shares(before, after) == pytest.approx((0.5, 0.1))
    assert cpu_shares(after, after) is None


times = st.fixed_dictionaries(
    {kind: st.floats(0, 1e9) for kind in ("user", "system", "idle", "iowait", "steal", "guest")}
)


@given(times, times)
def test_cpu_shares_are_shares_even_when_counters_step_back(before: dict[str, float], after: dict[str, float]) -> None:
    shares = cpu_shares(before, after)

    assert shares is None or (all(-1e-9 <= share <= 1 + 1e-9 for share in shares) and sum(shares) <= 1 + 1e-9)


def test_a_path_that_is_not_made_yet_is_judged_by_its_parent(tmp_path: Path) -> None:
    (sample,) = HostCollector(HostConfig(), [tmp_path / "a" / "b"], ManualClock()).poll(10)[1:]

    assert sample.values["device.disk_free_bytes"] > 0


def test_paths_of_the_configuration_are_watched_once(tmp_path: Path) -> None:
    config = HostConfig(disk_paths=(str(tmp_path), "/"))
    samples = HostCollector(config, [tmp_path], ManualClock()).poll(10)

    assert [sample.entity for sample in samples[1:]] == [str(tmp_path), "/"]


def test_a_file_system_that_hangs_is_said_and_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, begun, asked = threading.Event(), threading.Event(), []

    def hang(path: Path) -> tuple[float, float]:
        asked.append(path)
        begun.set()
        answer.wait(30)
        return 1.0, 0.5

    monkeypatch.setattr(disk, "space_of", hang)
    clock = ManualClock()
    collector = HostCollector(HostConfig(interval_seconds=5), [tmp_path], clock)
    assert len(collector.poll()) == 1  # the host alone
    assert begun.wait(30)
    for waited in (6, 12):
        clock.advance(6)
        _, stuck = collector.poll()
        assert (
            stuck.failed["device.disk_free_bytes"] == f"{tmp_path} has not answered for {waited} s: is its server gone?"
        )
    assert asked == [tmp_path]  # no thread piles up behind the first

    answer.set()
    assert collector.poll(10)[0].values["device.disk_used_ratio"] == 0.5


def test_a_file_system_that_refuses_is_failed_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> tuple[float, float]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(disk, "space_of", refuse)
    _, sample = HostCollector(HostConfig(), [tmp_path], ManualClock()).poll(10)

    assert sample.failed["device.disk_free_bytes"] == f"{tmp_path}: Permission denied"
    assert not sample.values


def test_processes_of_ranks_are_seen_from_outside_also_while_they_hang() -> None:
    child = subprocess.Popen([sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        identity = replace(new_identity(3, 3, 8, "run"), pid=child.pid, pid_start_ticks=0)
        collector = HostCollector(
            HostConfig(interval_seconds=1e-3), [], SystemClock(), ranks=lambda: {3: _status(identity)}
        )
        collector.poll()
        used = psutil.Process(child.pid).cpu_times().user
        while psutil.Process(child.pid).cpu_times().user < used + 0.1:
            pass
        (host,) = collector.poll()
    finally:
        child.kill()
        child.communicate(timeout=10)

    assert host.values["device.rank_rss_bytes[3]"] > 1e6
    assert 0.05 < host.values["device.rank_cpu_ratio[3]"] < 1.5
    assert "device.rank_rss_bytes[3]" not in collector.poll()[0].values


@pytest.mark.parametrize(
    "stranger",
    [{"pid_start_ticks": 1}, {"pid_namespace": 1}, {"pid": 2**22 - 1}],
    ids=["pid used again", "other namespace", "gone"],
)
def test_a_pid_that_means_another_process_is_left_alone(stranger: dict[str, int]) -> None:
    identity = replace(new_identity(0, 0, 1, "run"), **stranger)
    (host,) = HostCollector(HostConfig(), [], ManualClock(), ranks=lambda: {0: _status(identity)}).poll()

    assert "device.rank_rss_bytes[0]" not in host.values


def test_dead_ranks_are_counted_and_finished_ones_are_not() -> None:
    identity = new_identity(0, 0, 3, "run")
    states = (Liveness.ALIVE, Liveness.DEAD, Liveness.CLOSED)
    ranks = {rank: _status(replace(identity, rank=rank), state) for rank, state in enumerate(states)}
    (host,) = HostCollector(HostConfig(), [], ManualClock(), ranks=lambda: ranks).poll()

    assert host.values["device.rank_processes_dead"] == 1


def test_a_reading_that_fails_is_told_and_spoils_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Callable[[], None]:
        raise OSError("no /proc here")

    monkeypatch.setattr(psutil, "getloadavg", refuse)
    (host,) = HostCollector(HostConfig(), [], ManualClock()).poll()

    assert host.failed == {"device.host_load1": "no /proc here"}
    assert host.values["device.host_memory_total_bytes"] > 0


def test_the_cgroup_of_this_very_process_can_be_read() -> None:
    (host,) = HostCollector(HostConfig(), [], ManualClock()).poll()
    known = set(host.values) | set(host.unsupported)

    assert {"device.cgroup_memory_used_ratio", "device.cgroup_oom_kills"} <= known
