"""One tiny GRPO run on older TRL versions, each in an environment of its own: all five layers arrive."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "agent"))
from old_trl import VERSIONS, environment_of
from ranks import Scenarios

from grpo_sentinel.records import Kind

pytestmark = [pytest.mark.torch, pytest.mark.nightly]
HERE = Path(__file__).parent
RUNS = {
    "watched": {"attach": "explicit", "iterations": 2, "beta": 0.04},
    "nan": {"attach": "explicit", "fault": "reduced_nan", "fault_rank": 0, "fault_step": 2},
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", VERSIONS)
def test_all_layers_arrive_and_the_gate_works_on_trl(version, tmp_path):
    from tiny import build

    assets = build(tmp_path / "tiny-policy")
    runs = Scenarios(HERE / "grpo_script.py", tmp_path, 1, RUNS, str(assets), python=environment_of(version))
    result = runs["watched"]
    segment = result.segment(0)
    assert result.ranks[0]["ended"] == "finished"
    assert segment.of("config")[0]["versions"]["trl"] == version
    assert segment.of("probe_error") == []
    steps = segment.steps()
    assert list(steps) == [1, 2, 3, 4]
    seen = {name for record in segment.records for name in record.values}
    assert {name.partition(".")[0] for name in seen} >= {"data", "reward", "policy", "gradient", "optimizer", "memory"}
    assert seen >= {"data.token_id_max", "reward.func_mean[length_reward]", "policy.logp_mean_nats", "policy.loss"}
    assert seen >= {"policy.kl_k3_nats", "policy.ratio_mean", "gradient.abs_p95", "optimizer.update_ratio"}
    assert [r.step for r in segment.records if r.kind is Kind.GENERATION] == [1, 3]
    logged = [row["grad_norm"] for row in result.ranks[0]["log"] if "grad_norm" in row]
    assert logged == pytest.approx([steps[step]["gradient.norm_preclip"] for step in steps], rel=1e-6)
    poisoned = runs["nan"]
    assert poisoned.ranks[0]["finite"]
    assert [event["step"] for event in poisoned.segment(0).of("skip")] == [2]
