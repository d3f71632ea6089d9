"""Settings that make no sense are refused in one sentence each, all of them, by every command that reads them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from run_support import HERE, cli

from grpo_sentinel.config import Config, load_config
from grpo_sentinel.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("halting: {nonfinite_updates: 30}", "nonfinite_updates 30 never fall within nonfinite_window_steps 20"),
        ("halting: {nonfinite_window_steps: 2}", "nonfinite_updates 3 never fall within nonfinite_window_steps 2"),
        ("rank_dead_seconds: 1000", "rank_dead_seconds: at most 600 seconds make sense"),
        ("rank_dead_seconds: .inf", "rank_dead_seconds: at most 600 seconds make sense"),
        ("halting: {checkpoint_seconds: 600000}", "halting.checkpoint_seconds: at most 86,400 seconds"),
        ("collectors: {host: {interval_seconds: 5000}}", "collectors.host.interval_seconds: at most 600 seconds"),
        ("launch: {notice_seconds: 120000}", "launch.notice_seconds: at most 86,400 seconds"),
        ("ring_dir: /there-is-none/rings", "ring_dir: there is no directory /there-is-none to make it in"),
        ("state_dir: /there-is-none/state", "state_dir: there is no directory /there-is-none to make it in"),
    ],
)
def test_one_sentence_names_the_key_the_limit_and_the_value(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "sentinel.yaml"
    path.write_text(text + "\n")
    with pytest.raises(ConfigError, match="line 1: ") as refused:
        load_config(path)
    assert said in str(refused.value)
    assert len(refused.value.mistakes) == 1


def test_what_makes_sense_holds(tmp_path: Path) -> None:
    halting = {
        "nonfinite_updates": 5,
        "nonfinite_window_steps": 5,
        "checkpoint_seconds": 7200,
        "kill_after_seconds": None,
    }
    places = {"state_dir": str(tmp_path / "new"), "ring_dir": str(tmp_path)}
    config = Config.model_validate({"halting": halting, **places, "rank_dead_seconds": 600})
    assert config.halting.checkpoint_seconds == 7200
    assert not (tmp_path / "new").exists()


def test_all_mistakes_are_listed_by_check_run_and_launch(tmp_path: Path) -> None:
    path = tmp_path / "sentinel.yaml"
    path.write_text("rank_dead_seconds: 1000\nstate_dir: /there-is-none/x\nhttp: {port: 99999}\nhttps: {}\n")
    keys = ("rank_dead_seconds", "state_dir", "http.port", "unknown setting https")
    checked = cli("check", "config", path)
    assert checked.returncode == 1
    faults = json.loads(cli("check", "config", path, "--json").stdout)["faults"]
    run = cli("run", "--once", "--config", path)
    assert run.returncode == 2
    launched = cli("launch", "--config", path, "--", sys.executable, HERE / "fake_trainer.py", "--steps", 2)
    assert launched.returncode == 0
    for key in keys:
        assert key in checked.stdout
        assert sum(key in line for line in run.stderr.splitlines()) == 1, run.stderr
        assert key in launched.stderr
    assert len(faults) == len(keys)
    assert len(run.stderr.splitlines()) == len(keys)
    assert "more after this" not in checked.stdout + run.stderr + launched.stderr
    assert not Path("/there-is-none").exists()
