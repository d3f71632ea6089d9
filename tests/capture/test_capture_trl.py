"""A real TRL run: what it captured by itself and on request, and its faulty step run again by the user's trainer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")
sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("halting", "integrations")]

from run_support import cli  # noqa: E402
from tiny import build  # noqa: E402

from grpo_sentinel.agent.capture.files import read  # noqa: E402
from grpo_sentinel.incidents.bundle import Bundle  # noqa: E402
from grpo_sentinel.incidents.places import bundles  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]
LOOP = Path(__file__).with_name("grpo_loop.py")


def test_a_faulty_step_of_trl_is_captured_and_comes_again_with_the_users_trainer(tmp_path: Path) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    build(assets)
    config = tmp_path / "sentinel.yaml"
    body = {
        "http": {"port": 0}, "launch": {"linger_seconds": 3}, "halting": {"dry_run": True},
        "collectors": {"nvml": {"enabled": False}}, "incidents": {"samples": "full"},
    }  # fmt: skip
    config.write_text(json.dumps(body))
    trained = cli(
        "launch", "--config", config, "--run-id", "trl", "--", sys.executable, LOOP, assets, tmp_path / "out",
        timeout=240,
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    made = [Bundle(path) for path, _ in bundles(tmp_path / "state" / "grpo-sentinel" / "incidents")]
    assert {one.about.onset_step for one in made} == {1, 5}, "a policy made at random, and the reward"
    (bundle,) = [one for one in made if one.about.onset_step == 5]
    path = bundle.path
    assert bundle.damage() == []
    chain = json.loads((path / "findings.json").read_text())
    assert {"reward_func_infinite", "loss_nonfinite", "nonfinite_updates"} <= {one["rule"] for one in chain["findings"]}
    tensors, facts = read(path / "tensors" / "rank-00000-step-5-gradient.safetensors")
    assert facts["micro_batches"] == 2
    assert facts["left_out"] == {}
    assert {"batch/1/completion_ids", "batch/1/advantages", "weight/model.norm.weight"} <= tensors.keys()
    scores, _ = read(path / "tensors" / "rank-00000-step-5-reward.safetensors")
    assert scores["reward/scores"].isinf().any()
    done = cli(
        "reproduce", path, "--builder", "grpo_loop:build", "--anomaly", "--json", timeout=240,
        env={"PYTHONPATH": str(LOOP.parent), "TINY_ASSETS": str(assets)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["weights"] == "the captured ones"
    assert "aten.mul" in told["anomaly"]
    assert "grpo_loop.py" in told["anomaly"]
