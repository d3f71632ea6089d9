"""Another user has made our directory where everybody may make one: the run is watched elsewhere, or it is said why not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from run_support import cli

from grpo_sentinel.errors import SegmentError
from grpo_sentinel.protocol import choose_root, user_dir

STRANGER = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory for another user")


def squat(root: Path) -> Path:
    root.mkdir(exist_ok=True)
    root.chmod(0o1777)
    user_dir(root).mkdir(mode=0o700)
    os.chown(user_dir(root), STRANGER, STRANGER)
    return root


def test_the_next_place_is_taken_unless_the_user_named_this_one(tmp_path: Path) -> None:
    squatted = squat(tmp_path / "shared")
    free = tmp_path / "free"
    free.mkdir()
    given = {"GRPO_SENTINEL_DIR": str(squatted)}
    with pytest.raises(
        SegmentError, match=f"holds grpo-sentinel-0, which belongs to uid {STRANGER}; set GRPO_SENTINEL_DIR"
    ):
        choose_root(given)
    assert choose_root({"XDG_RUNTIME_DIR": str(squatted), "TMPDIR": str(free)}, room_bytes=1) != squatted


def test_a_file_or_a_link_in_its_place_is_named(tmp_path: Path) -> None:
    user_dir(tmp_path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SegmentError, match="which is no directory"):
        choose_root({"GRPO_SENTINEL_DIR": str(tmp_path)})


def test_launch_says_first_and_last_that_nothing_is_watched_and_training_runs(tmp_path: Path) -> None:
    squatted = squat(tmp_path / "shared")
    env = {"GRPO_SENTINEL_DIR": str(squatted)}
    done = cli("launch", "--run-id", "r", "--", sys.executable, "-c", "print('trained')", env=env)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    first, *_, last = done.stderr.splitlines()
    assert f"belongs to uid {STRANGER}" in first
    assert "Training starts unwatched" in first
    assert (
        last
        == "grpo-sentinel: run r ended with exit code 0; nothing was watched, for want of a directory for its rings"
    )


def test_one_who_comes_between_launch_and_trainer_is_named_in_the_summary(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    root.mkdir(mode=0o1777)
    late = (
        f"import os, pathlib, shutil; p = pathlib.Path({str(user_dir(root))!r}); shutil.rmtree(p, ignore_errors=True); "
        f"p.mkdir(); os.chown(p, {STRANGER}, {STRANGER})"
    )
    done = cli("launch", "--run-id", "r", "--", sys.executable, "-c", late, env={"GRPO_SENTINEL_DIR": str(root)})
    assert done.returncode == 0
    assert f"nothing was recorded: {root} holds grpo-sentinel-0, which belongs to uid {STRANGER}" in done.stderr
    assert "no trainer attached" not in done.stderr


def test_the_doctor_finds_the_owner_and_the_mode(tmp_path: Path) -> None:
    squatted = squat(tmp_path / "shared")
    env = {"GRPO_SENTINEL_DIR": str(squatted)}
    done = cli("doctor", env=env)
    line = next(line for line in done.stdout.splitlines() if "ring directory" in line)
    assert line.startswith("MISSING")
    assert f"belongs to uid {STRANGER}" in line
    os.chown(user_dir(squatted), 0, 0)
    user_dir(squatted).chmod(0o755)
    line = next(line for line in cli("doctor", env=env).stdout.splitlines() if "ring directory" in line)
    assert line.startswith("note")
    assert "is open to other users" in line
