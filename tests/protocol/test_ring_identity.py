"""Run ids: the same on every rank, new at every restart, safe as a directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import grpo_sentinel
from grpo_sentinel.daemon.places import belongs_to
from grpo_sentinel.protocol import derive_parent_run_id, derive_run_id, new_identity, run_dir, sanitise_run_id
from grpo_sentinel.protocol.identity import parse_stat, start_ticks


@pytest.mark.parametrize(
    ("environ", "run_id", "parent"),
    [
        ({"GRPO_SENTINEL_RUN_ID": "given", "SLURM_JOB_ID": "7"}, "given", ""),
        ({"TORCHELASTIC_RUN_ID": "elastic", "SLURM_JOB_ID": "7"}, "elastic", ""),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7"}, "7", ""),
        ({"RAY_JOB_ID": "ray"}, "ray", ""),
        ({"GRPO_SENTINEL_RUN_ID": "a", "TORCHELASTIC_RESTART_COUNT": "0"}, "a", ""),
        ({"GRPO_SENTINEL_RUN_ID": "a", "TORCHELASTIC_RESTART_COUNT": "1"}, "a-r1", "a"),
        ({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "3"}, "7-r3", "7-r2"),
        ({"GRPO_SENTINEL_RUN_ID": "a", "GRPO_SENTINEL_PARENT_RUN_ID": "before"}, "a", "before"),
    ],
)
def test_the_run_is_named_after_what_all_ranks_share(environ, run_id, parent):
    assert derive_run_id(environ) == run_id
    assert derive_parent_run_id(environ) == parent


def test_ranks_without_any_given_id_share_the_launcher_and_a_lone_process_stands_for_itself():
    ranks = {
        derive_run_id({"RANK": str(rank), "LOCAL_RANK": str(rank), "TORCHELASTIC_RUN_ID": "none"}) for rank in (0, 1)
    }
    assert len(ranks) == 1
    assert str(os.getppid()) in ranks.pop()
    assert str(os.getpid()) in derive_run_id({})


@given(text=st.text(max_size=300))
def test_any_text_becomes_a_plain_directory_name(text):
    name = sanitise_run_id(text)
    assert name == sanitise_run_id(name)
    assert name not in ("", ".", "..")
    assert len(name) < 200
    assert "/" not in name
    assert name.isascii()
    assert not name.startswith(".")


def test_two_ids_that_need_cleaning_stay_two():
    assert sanitise_run_id("a/b") != sanitise_run_id("a b")


@pytest.mark.parametrize("length", [119, 120, 121, 128, 129, 140, 200])
@pytest.mark.parametrize("odd", ["", "/"])
def test_a_long_id_is_the_same_for_launcher_agent_and_sidecar_and_so_are_its_restarts(length, odd, tmp_path):
    given = odd + "x" * (length - len(odd))
    name = sanitise_run_id(given)  # the launcher
    assert len(name) <= 120
    for environ in ({"GRPO_SENTINEL_RUN_ID": given}, {"GRPO_SENTINEL_RUN_ID": name}):
        assert derive_run_id(environ) == name
        again = {**environ, "TORCHELASTIC_RESTART_COUNT": "2"}
        assert (derive_run_id(again), derive_parent_run_id(again)) == (f"{name}-r2", f"{name}-r1")
        assert belongs_to(tmp_path / derive_run_id(again), given)
    for made in (name, f"{name}-r2"):
        assert new_identity(0, 0, 1, made).run_id == run_dir(tmp_path, made).name == made


def test_long_ids_that_differ_at_their_end_stay_two():
    assert sanitise_run_id("x" * 130 + "a") != sanitise_run_id("x" * 130 + "b")


def test_identity_tells_this_process_apart():
    identity = new_identity(5, 1, 8, "run")
    assert (identity.rank, identity.local_rank, identity.world_size, identity.pid) == (5, 1, 8, os.getpid())
    assert identity.pid_start_ticks == start_ticks(os.getpid()) > 0
    assert identity.pid_namespace == os.stat("/proc/self/ns/pid").st_ino
    assert len(identity.boot_id) == 36


def test_a_command_with_brackets_and_spaces_does_not_confuse_the_process_table():
    assert parse_stat("7 (a) b (c d) Z " + " ".join(str(field) for field in range(4, 60))) == ("Z", 22)


def test_the_protocol_loads_the_standard_library_only():
    """It lives in the trainer: what it imports, every trainer imports."""
    code = "import sys; before = set(sys.modules); import grpo_sentinel.protocol; print(*set(sys.modules) - before)"
    environ = {**os.environ, "PYTHONPATH": str(Path(grpo_sentinel.__file__).parents[1])}
    out = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    loaded = {name.partition(".")[0] for name in out.stdout.split()}
    assert loaded - set(sys.stdlib_module_names) == {"grpo_sentinel"}
    assert "grpo_sentinel.config" not in out.stdout.split()
    assert not loaded & {"pickle", "multiprocessing"}
