"""Kept checkpoints are bounded, listed, and removed when asked."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from run_support import HERE, cli

from grpo_sentinel.cli import main
from grpo_sentinel.daemon.pins import _make_room

FAKE = HERE / "fake_trainer.py"


def test_what_is_kept_is_listed_and_goes_only_when_it_may(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, out = tmp_path / "sentinel.yaml", tmp_path / "out"
    quiet = {"http": {"port": 0}, "launch": {"linger_seconds": 0.5}, "collectors": {"nvml": {"enabled": False}}}
    config.write_text(json.dumps(quiet))
    words = ("--output-dir", out, "--save-steps", 5)
    assert main(["pins"]) == 0
    assert "no checkpoint is kept" in capsys.readouterr().out
    bad = cli("launch", "--config", config, "--run-id", "bad", "--", sys.executable, FAKE, *words, "--bad-from", 100)
    assert bad.returncode == 83, bad.stderr
    assert "`grpo-sentinel pins` lists and removes such copies" in bad.stderr
    good = cli("launch", "--config", config, "--run-id", "good", "--", sys.executable, FAKE, *words, "--steps", 40)
    assert good.returncode == 0, good.stderr
    (kept,) = (tmp_path / "sentinel-pinned" / "bad").glob("checkpoint*")
    shutil.copytree(kept, tmp_path / "sentinel-pinned" / "good" / kept.name)

    assert main(["pins", "--prune"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted((Path(line.split()[0]).parent.name, line.rpartition("  ")[2]) for line in lines) == [
        ("bad", "its run was halted"), ("good", "removed"),
    ]  # fmt: skip
    assert [one.name for one in (tmp_path / "sentinel-pinned").iterdir()] == ["bad"]
    assert main(["resume-point", "bad"]) == 0
    assert main(["pins", "--remove"]) == 2
    assert main(["pins", "nosuch"]) == 2
    capsys.readouterr()
    assert main(["pins", "bad", "--remove", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == [str(kept)]
    assert not (tmp_path / "sentinel-pinned").exists()


def test_restarts_of_a_job_that_crashes_often_keep_no_more_than_the_bound(tmp_path: Path) -> None:
    for number in range(1, 7):
        folder = tmp_path / ("job" if number == 1 else f"job-r{number}")
        (folder / f"checkpoint-{number}").mkdir(parents=True)
        (folder / f".checkpoint-{number}.partial").mkdir()
    (tmp_path / "other" / "checkpoint-1").mkdir(parents=True)
    (tmp_path / "job-r6" / "checkpoint-7").mkdir()
    for number, path in enumerate(sorted(tmp_path.glob("*/checkpoint-*"), key=lambda one: one.name)):
        os.utime(path, (1000 + number, 1000 + number))
    _make_room(tmp_path / "job-r6", 3)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/checkpoint-*"))
    assert left == ["job-r5/checkpoint-5", "job-r6/checkpoint-6", "job-r6/checkpoint-7", "other/checkpoint-1"]
