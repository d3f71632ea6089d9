"""FaultBench: its table is whole, its scoring is fair, and real faulty runs come out as they must."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.faultbench import peers, score
from benchmarks.faultbench.fault import HARD, LOOP1, LOOP2, SUBTLE
from benchmarks.faultbench.table import LAYERS, MECHANISMS, ROWS, chosen, twin
from grpo_sentinel.catalog import LAYERS as SIGNAL_LAYERS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.torch


def bench(out: Path, *options: str, seconds: float) -> dict:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", "benchmarks.faultbench", "--out", str(out), "--seeds", "1", "--no-peers", *options]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads((out / "faultbench.json").read_text())


def test_there_are_sixty_mechanisms_and_ten_of_every_layer():
    assert len(ROWS) == len(MECHANISMS) >= 60
    counted = Counter(row.layer for row in ROWS)
    assert set(counted) == set(LAYERS)
    assert min(counted.values()) >= 10, counted


def test_every_mechanism_says_what_it_does_and_where_its_root_may_lie():
    for row in ROWS:
        assert row.what, row.name
        assert row.roots, row.name
        assert set(row.roots) <= set(SIGNAL_LAYERS), row.name
        assert row.start <= row.steps, row.name
        assert row.rank is None or row.rank == 0 or any(kind.endswith("2") for kind in row.trainers), row.name


def test_mechanisms_are_chosen_by_name_and_by_layer_and_a_wrong_name_is_said():
    assert [row.name for row in chosen("loss_nan")] == ["loss_nan"]
    assert {row.layer for row in chosen("gradient")} == {"gradient"}
    assert len(chosen("")) == len(ROWS)
    with pytest.raises(ValueError, match="no_such_fault"):
        chosen("no_such_fault")


def test_a_twin_has_the_configuration_of_its_mechanism_and_no_fault():
    row = MECHANISMS["entropy_minimised"]
    control = twin(row, LOOP1)
    assert control.config == row.config
    assert control.start > control.steps >= row.steps


def finding(rule: str, layer: str, step: int, severity: str = "warning", root: str = "") -> dict:
    return {"rule": rule, "layer": layer, "severity": severity, "step": step, "onset": step, "ranks": [0],
            "id": f"{rule}:{step}", "root": root, "wall_ns": 10 * step, "message": ""}  # fmt: skip


def result(*findings: dict, step: int = 20) -> dict:
    return {"fault": {"step": step, "wall_ns": 10 * step}, "findings": list(findings), "trainer": LOOP1, "seed": 1, "checkpoints": {},
            "requests": [], "rules": "", "last_step": 40, "history_step": 40, "seconds": 1.0}  # fmt: skip


def test_what_the_healthy_twin_also_gets_does_not_count():
    row = MECHANISMS["reward_infinite"]
    run = result(finding("reward_cliff", "reward", 21))
    assert score.judge(row, run, result())["detected"]
    assert not score.judge(row, run, result(finding("reward_cliff", "reward", 30)))["detected"]


def test_an_alarm_from_before_the_fault_is_early_and_no_detection():
    scored = score.judge(MECHANISMS["reward_infinite"], result(finding("kl_high", "policy", 12)), None)
    assert not scored["detected"]
    assert scored["early_alarms"] == ["kl_high"]


def test_a_note_is_enough_for_a_subtle_mechanism_only():
    note = finding("reward_level_moved", "reward", 45, "note")
    subtle = next(row for row in ROWS if row.severity == SUBTLE and row.layer == "reward")
    hard = next(row for row in ROWS if row.severity == HARD and row.layer == "reward")
    assert score.judge(subtle, result(note), None)["detected"]
    assert not score.judge(hard, result(note), None)["detected"]


def test_the_root_is_that_of_the_gravest_chain():
    root = finding("grad_spike", "gradient", 20)
    chained = finding("grad_spike_persists", "gradient", 22, "critical", root=root["id"])
    other = finding("reward_cliff", "reward", 20)
    assert score.root_of([other, root, chained])["rule"] == "grad_spike"


def test_a_loss_that_is_not_finite_is_seen_by_the_peers_that_look_at_it():
    rows = [{"step": step, "loss": float("nan") if step == 3 else 0.1, "reward": 1.0} for step in range(1, 6)]
    assert [(step, layer) for step, _, layer, _ in peers.trl_log_alerts(rows)] == [(3, "policy")]
    assert peers.loss_alerts({"loss_nonfinite": {"0": [], "1": [3]}}) == [(3, "loss not finite", "policy", "critical")]


def test_two_real_faults_are_found_at_once_in_their_layer_and_poison_no_checkpoint(tmp_path):
    body = bench(tmp_path, "--mechanisms", "negative_token_id,gradient_nan_once", "--trainers", "loop1", seconds=240)
    total = body["totals"]["sentinel"]
    assert total["runs"] == 2, body["rows"]
    assert total["detected"] == total["right_layer"] == total["hard_within_1_step"] == 1.0, body["rows"]
    assert total["checkpoints"] > 0
    assert total["poisoned_checkpoints"] == 0
    same = {"detected", "right_layer", "hard_within_1_step", "poisoned_checkpoints", "criticals_per_1000_healthy",
            "warnings_per_1000_healthy"}  # fmt: skip
    assert all(same <= set(summary) for summary in body["totals"].values()), body["totals"]
    stored = {place: json.loads(place.read_text()) for place in (tmp_path / "results").glob("*.json")}
    for place, told in stored.items():
        place.write_text(json.dumps({**told, "findings": []}))
    again = bench(tmp_path, "--rescore", "negative_token_id,gradient_nan_once,healthy_twin", seconds=120)
    assert again["totals"]["sentinel"] == total  # the records say what the daemon said live


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hard_faults_of_both_layers_on_two_ranks_name_the_rank(tmp_path):
    names = "gradient_nan_one_rank,loss_nan,log_probs_nan,one_reward_nan,empty_attention_row,rank_killed"
    body = bench(tmp_path, "--mechanisms", names, "--trainers", "loop2", seconds=880)
    rows = body["rows"]
    assert {row["mechanism"] for row in rows} == set(names.split(","))
    assert [row["mechanism"] for row in rows if not row["hard_within_1_step"] or not row["right_layer"]] == []
    named = [row for row in rows if row["trainer"] == LOOP2 and row["right_rank"] is False]
    # two ranks found dead at one look are named together; nothing else may name more than the one, or another
    assert all(row["mechanism"] == "rank_killed" and row["rank"] in row["root_ranks"] for row in named), named
