"""Container limits are found and read in both versions of cgroups, from texts as kernels write them."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_sentinel.collectors.cgroup import CgroupMemory, Place, locate, parse_flat, parse_limit, read_cgroup

HOST_V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
DOCKER_V2 = "30 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n"
DOCKER_V1 = (
    "35 31 0:32 /docker/4f3a /sys/fs/cgroup/memory ro,nosuid master:15 - cgroup cgroup rw,memory\n"
    "36 31 0:33 /docker/4f3a /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
)
HYBRID = (
    "35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw\n"
)
SLURM_V1 = "12:memory:/slurm/uid_1000/job_42/step_0\n4:cpu,cpuacct:/slurm\n0::/system.slice/slurmd.service\n"


@pytest.mark.parametrize(
    ("cgroup", "mounts", "version", "directory"),
    [
        (
            "0::/user.slice/user-0.slice/session-1.scope\n",
            HOST_V2,
            2,
            "/sys/fs/cgroup/user.slice/user-0.slice/session-1.scope",
        ),
        ("0::/\n", DOCKER_V2, 2, "/sys/fs/cgroup"),
        ("0::/../../kubepods/pod1\n", DOCKER_V2, 2, "/sys/fs/cgroup"),
        ("5:memory:/docker/4f3a\n3:cpu,cpuacct:/docker/4f3a\n", DOCKER_V1, 1, "/sys/fs/cgroup/memory"),
        ("5:memory:/docker/4f3a/inner\n", DOCKER_V1, 1, "/sys/fs/cgroup/memory/inner"),
        ("5:memory:/another\n", DOCKER_V1, 1, "/sys/fs/cgroup/memory"),
        (SLURM_V1, HYBRID, 1, "/sys/fs/cgroup/memory/slurm/uid_1000/job_42/step_0"),
        ("0::/a b\n", "30 23 0:26 / /sys/fs/cg\\040roup rw - cgroup2 cgroup2 rw\n", 2, "/sys/fs/cg roup/a b"),
    ],
)
def test_the_memory_cgroup_of_a_process_is_found(cgroup: str, mounts: str, version: int, directory: str) -> None:
    place = locate(cgroup, mounts)

    assert place is not None
    assert (place.version, str(place.directory)) == (version, directory)


def test_a_host_without_cgroups_has_no_place() -> None:
    assert locate("", "") is None
    assert locate("5:memory:/a\n", HOST_V2) is None


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max\n", None),
        ("9223372036854771712\n", None),
        ("34359738368\n", 34359738368),
        ("", None),
        ("-1", None),
        ("٣", None),
    ],
)
def test_no_limit_is_told_from_a_limit(text: str, limit: int | None) -> None:
    assert parse_limit(text) == limit


def test_flat_files_are_read_by_key() -> None:
    text = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"

    assert parse_flat(text)["oom_kill"] == 2
    assert parse_flat("oom_kill_disable 0\nunder_oom 0\noom_kill 1\nbroken\nsome text here\nx y\n") == {
        "oom_kill_disable": 0,
        "under_oom": 0,
        "oom_kill": 1,
    }


@given(st.text())
def test_no_text_makes_the_parsers_raise(text: str) -> None:
    parse_flat(text)
    parse_limit(text)
    locate(text, text)


lines = st.sampled_from(
    [*HYBRID.splitlines(), *DOCKER_V1.splitlines(), HOST_V2.strip(), "x", " - cgroup2", "1 2 3 4 5 - "]
)


@given(
    st.lists(lines),
    st.lists(st.sampled_from(["0::/a", "5:memory:/../b", "5:memory:", "::", "0:", "7:memory,cpu:/c/d"])),
)
def test_a_place_always_lies_below_its_mount(mounts: list[str], members: list[str]) -> None:
    place = locate("\n".join(members), "\n".join(mounts))

    assert place is None or place.directory.is_relative_to(place.mount)


def _host(root: Path, mount: Path, version: int, cgroup: str) -> Path:
    """A /proc with one process whose cgroup lies below `mount`."""
    kind = "cgroup2 cgroup2 rw" if version == 2 else "cgroup cgroup rw,memory"
    for who in ("self", "7"):
        (root / who).mkdir(parents=True)
        (root / who / "cgroup").write_text("0::/\n" if who == "self" else cgroup)
    (root / "self" / "mountinfo").write_text(f"30 23 0:26 / {mount} rw - {kind}\n")
    return root


def _fill(directory: Path, files: dict[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)


def test_version_2_counts_without_page_cache_and_takes_the_level_with_the_least_room(tmp_path: Path) -> None:
    mount = tmp_path / "cg"
    _fill(
        mount / "job", {"memory.max": "1000000\n", "memory.current": "900000\n", "memory.stat": "inactive_file 50000\n"}
    )
    _fill(
        mount / "job" / "step",
        {
            "memory.max": "max\n",
            "memory.current": "700000\n",
            "memory.stat": "anon 1\nfile 400000\ninactive_file 300000\n",
            "memory.events": "oom 1\noom_kill 1\n",
        },
    )
    proc = _host(tmp_path / "proc", mount, 2, "0::/job/step\n")

    assert read_cgroup(7, proc) == CgroupMemory(limit_bytes=1_000_000, used_bytes=850_000, oom_kills=1)


def test_version_1_knows_limits_of_ancestors_that_are_out_of_sight(tmp_path: Path) -> None:
    mount = tmp_path / "cg"
    _fill(
        mount / "job",
        {
            "memory.limit_in_bytes": "9223372036854771712\n",
            "memory.usage_in_bytes": "600000\n",
            "memory.stat": "total_inactive_file 100000\nhierarchical_memory_limit 800000\n",
            "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
        },
    )
    proc = _host(tmp_path / "proc", mount, 1, "5:memory:/job\n")

    assert read_cgroup(7, proc) == CgroupMemory(limit_bytes=800_000, used_bytes=500_000, oom_kills=4)


def test_a_cgroup_without_files_says_nothing_rather_than_zero(tmp_path: Path) -> None:
    proc = _host(tmp_path / "proc", tmp_path / "nowhere", 2, "0::/job\n")

    assert read_cgroup(7, proc) == CgroupMemory(limit_bytes=None, used_bytes=None, oom_kills=None)
    assert read_cgroup(8, tmp_path / "none") is None


def test_places_compare_by_value() -> None:
    assert locate("0::/\n", DOCKER_V2) == Place(2, PurePosixPath("/sys/fs/cgroup"), PurePosixPath("/sys/fs/cgroup"))
