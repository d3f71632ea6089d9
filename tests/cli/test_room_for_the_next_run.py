"""Rings of runs that are over go by themselves with `launch` alone, and by hand; the living and unread ones stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_support import HERE, cli

from grpo_sentinel.cli import main
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.places import run_directories, state_dir
from grpo_sentinel.daemon.tidy import KEEP_SECONDS, KEEP_SECONDS_WHEN_TIGHT, make_room
from grpo_sentinel.history import history_path
from grpo_sentinel.protocol import RankWriter, choose_root, list_segments, new_identity, run_dir

FAKE = HERE / "fake_trainer.py"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Rings in a tmpfs that holds three of them."""
    place = tmp_path / "shm"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)]
    if subprocess.run(words, capture_output=True, timeout=30, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(place))
    yield place
    subprocess.run(["umount", "-l", place], check=True, timeout=30)


def ring(name: str, *, age_s: float = 0.0, lives: bool = False) -> RankWriter:
    writer = RankWriter(run_dir(choose_root(), name), new_identity(0, 0, 1, name))
    if not lives:
        writer.close()
    for path in list_segments(run_dir(choose_root(room_bytes=0), name)):
        then = path.stat().st_mtime - age_s
        os.utime(path, (then, then))
    return writer


def read(name: str) -> None:
    """Let a sidecar read a run into the history."""
    assert main(["run", "--once", "--run-id", name, "--json"]) == 0


def left() -> set[str]:
    return {one.name for one in run_directories([choose_root(room_bytes=0)])}


def history() -> Path:
    return history_path(state_dir(Config()), "any")


def launch(tmp_path: Path, name: str) -> str:
    config = tmp_path / "sentinel.yaml"
    quiet = {"http": {"port": 0}, "launch": {"linger_seconds": 0.5}, "collectors": {"nvml": {"enabled": False}}}
    config.write_text(json.dumps(quiet))
    done = cli("launch", "--config", config, "--run-id", name, "--", sys.executable, FAKE, "--steps", 100, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_launch_that_finds_no_room_makes_some_and_is_watched(small: Path, tmp_path: Path) -> None:
    living = ring("living", lives=True)
    ring("unread", age_s=50)
    ring("unread-too")
    said = launch(tmp_path, "next")
    assert "unwatched" not in said
    assert "watching run next" in said
    assert "rings of 1 ended run removed: unread" in said, "the oldest, and no more than is needed"
    assert left() == {"living", "unread-too", "next"}
    living.close()


def test_where_room_is_short_stored_runs_go_before_unread_ones_and_never_a_living_one(small: Path) -> None:
    ring("unread", age_s=100)
    ring("stored")
    read("stored")
    living = ring("living", lives=True)
    root = choose_root(room_bytes=0)
    assert [one.name for one in make_room([root], history())] == ["stored"]
    also = ring("living-too", lives=True)
    assert [one.name for one in make_room([root], history(), spared="unread")] == []
    assert [one.name for one in make_room([root], history())] == ["unread"]
    last = ring("living-three", lives=True)
    assert make_room([root], history()) == []
    assert left() == {"living", "living-too", "living-three"}
    for writer in (living, also, last):
        writer.close()


def test_launch_removes_what_ended_a_week_ago_and_was_read_and_nothing_else(tmp_path: Path) -> None:
    for name, age_s in (
        ("old", KEEP_SECONDS + 60),
        ("unread", KEEP_SECONDS + 60),
        ("lately", 2 * KEEP_SECONDS_WHEN_TIGHT),
    ):
        ring(name, age_s=age_s)
        if name != "unread":
            read(name)
    assert "ended run removed: old" in launch(tmp_path, "next")
    assert left() == {"unread", "lately", "next"}


def test_rings_are_listed_and_removed_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rings"]) == 0
    assert "there are no rings" in capsys.readouterr().out
    living = ring("living", lives=True)
    ring("unread")
    ring("stored")
    read("stored")
    capsys.readouterr()
    assert main(["rings", "--json"]) == 0
    told = {one["run_id"]: one["stage"] for one in json.loads(capsys.readouterr().out)["rings"]}
    assert {name: stage.split(",")[0] for name, stage in told.items()} == {
        "living": "it lives", "unread": "it ended", "stored": "it ended",
    }  # fmt: skip
    assert main(["rings", "--prune"]) == 0
    assert left() == {"living", "unread"}
    assert main(["rings", "--remove"]) == 2
    assert main(["rings", "nosuch"]) == 2
    assert main(["rings", "living", "--remove"]) == 1
    assert main(["rings", "unread", "--remove"]) == 0
    assert left() == {"living"}
    living.close()
    assert main(["status", "stored"]) == 0, "its history stays"
