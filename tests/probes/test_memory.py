"""Memory is read from files as the kernel writes them; what cannot be read is absent."""

from __future__ import annotations

import subprocess
import sys
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from grpo_sentinel.agent.probes.live_tensors import LiveTensors  # noqa: E402
from grpo_sentinel.agent.probes.memory import (  # noqa: E402
    MemoryProbe,
    find_cgroup,
    outside_allocator,
    parse_cuda,
    parse_meminfo,
    read_cgroup,
)

pytestmark = pytest.mark.torch


def test_this_process_is_read_as_it_is(tmp_path):
    values = MemoryProbe(tmp_path).observe()
    status = Path("/proc/self/status").read_text()
    resident = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))
    assert values["memory.rss_bytes"] == pytest.approx(resident, rel=0.2)
    assert values["memory.threads"] >= 1
    assert values["memory.open_files"] >= 3
    assert 0 <= values["memory.shm_used_ratio"] <= 1
    assert values["memory.host_available_bytes"] > 0


def test_open_files_and_children_are_counted(tmp_path):
    probe = MemoryProbe(tmp_path, slow_seconds=0)
    before = probe.observe()
    child = subprocess.Popen([sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    try:
        child.stdout.readline()
        during = probe.observe()
        assert during["memory.open_files"] == before["memory.open_files"] + 2
        assert during["memory.children_rss_bytes"] > before["memory.children_rss_bytes"] + 1e6
    finally:
        child.communicate(timeout=10)
    with open(tmp_path / "one", "w"):
        assert probe.observe()["memory.open_files"] == before["memory.open_files"] + 1


def fake(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_cgroup_v2_takes_reclaimable_cache_off_and_the_tightest_limit(tmp_path):
    root = fake(tmp_path, {
        "proc/self/cgroup": "0::/job/task\n",
        "sys/fs/cgroup/job/task/memory.current": "1000\n",
        "sys/fs/cgroup/job/task/memory.max": "max\n",
        "sys/fs/cgroup/job/task/memory.stat": "anon 600\nfile 390\nshmem 50\ninactive_file 300\n",
        "sys/fs/cgroup/job/memory.max": "4096\n",
    })  # fmt: skip
    assert read_cgroup(find_cgroup(root)) == {
        "memory.cgroup_used_bytes": 700, "memory.cgroup_limit_bytes": 4096, "memory.cgroup_cache_bytes": 340,
        "memory.cgroup_shm_bytes": 50,
    }  # fmt: skip
    values = MemoryProbe(root=root).observe()
    assert values["memory.cgroup_used_bytes"] == 700
    assert "memory.rss_bytes" not in values
    assert "memory.host_available_bytes" not in values


def test_cgroup_v1_and_a_namespace_that_hides_its_own_path(tmp_path):
    root = fake(tmp_path, {
        "proc/self/cgroup": "5:cpu:/x\n7:memory:/docker/abc\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "500",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096),
        "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 800\n",
    })  # fmt: skip
    assert read_cgroup(find_cgroup(root)) == {"memory.cgroup_used_bytes": 0}


def test_nothing_to_read_is_no_error(tmp_path):
    assert set(MemoryProbe(tmp_path / "gone", root=tmp_path).observe()) <= {"memory.open_files_limit"}
    assert find_cgroup(tmp_path) is None


def test_meminfo_and_allocator_statistics_are_taken_apart():
    assert parse_meminfo("MemAvailable:  5 kB\nHugePages_Total: 3\nbroken\n") == {"MemAvailable": 5120, "HugePages_Total": 3}
    stats = {"allocated_bytes.all.current": 1, "num_ooms": 2, "other": 3}
    assert parse_cuda(stats) == {"memory.cuda_allocated_bytes": 1, "memory.cuda_ooms": 2}


def test_what_changes_slowly_is_read_once_a_second_and_repeated_between(tmp_path):
    now = [10.0]
    root = fake(tmp_path, {"proc/meminfo": "MemAvailable: 1 kB\n", "proc/self/statm": "9 5 1\n"})
    probe = MemoryProbe(root=root, clock=lambda: now[0])
    first = probe.observe()
    fake(tmp_path, {"proc/meminfo": "MemAvailable: 2 kB\n", "proc/self/statm": "9 6 1\n"})
    now[0] = 10.5
    second = probe.observe()
    assert second["memory.host_available_bytes"] == first["memory.host_available_bytes"] == 1024
    assert second["memory.rss_bytes"] * 5 == first["memory.rss_bytes"] * 6
    now[0] = 11.0
    assert probe.observe()["memory.host_available_bytes"] == 2048


def test_a_shape_of_which_more_and_more_is_alive_is_named_with_its_bytes():
    live = LiveTensors()
    first, _ = live.observe()
    leak = [torch.zeros(7, 1013) for _ in range(5)]
    view = leak[0][1:]  # the same storage again
    values, growers = live.observe()
    found = next(grower for grower in growers if grower.name == "float32[7, 1013] cpu")
    assert (found.count, found.bytes, found.growth_bytes) == (5, 5 * 7 * 1013 * 4, 5 * 7 * 1013 * 4)
    assert values["memory.live_tensor_growth_bytes"] >= found.growth_bytes
    assert values["memory.live_tensors"] >= first["memory.live_tensors"] + 6
    assert view.shape == (6, 1013)


def test_counting_live_tensors_keeps_none_of_them():
    live, tensor = LiveTensors(), torch.zeros(11, 17)
    gone = weakref.ref(tensor)
    live.observe()
    del tensor
    assert gone() is None
    assert not any(grower.name == "float32[11, 17] cpu" for grower in live.observe()[1])


def test_device_memory_outside_the_allocator_is_what_neither_it_nor_nobody_holds():
    held = {"memory.cuda_reserved_bytes": 30.0}
    assert outside_allocator(held, 40, 100)["memory.cuda_outside_bytes"] == 30
    assert "memory.cuda_outside_bytes" not in outside_allocator({}, 40, 100)
