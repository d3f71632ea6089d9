"""ZeRO 0 to 3 on two gloo ranks: read as partitions, voted before the engine's step, gated where DeepSpeed would go on."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "agent"))
from ranks import Scenarios

pytestmark = [
    pytest.mark.torch,
    pytest.mark.nightly,
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None,
        reason="deepspeed is not installed: DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed",
    ),
]
SCENARIOS = {
    **{f"zero-{stage}": {"stage": stage, "local_nan": [1, 3]} for stage in (0, 1, 2, 3)},
    **{f"zero-{stage} bf16": {"stage": stage, "bf16": True, "local_nan": [1, 3]} for stage in (1, 2, 3)},
    **{f"fp16 zero-{stage}": {"stage": stage, "fp16": True, "local_nan": [1, 3]} for stage in (1, 2, 3)},
    "bound": {"stage": 2, "spike": 3, "settings": {"skip_above_norm": 50.0}},
    "accumulation": {"stage": 2, "accumulation": 2, "steps": 3},
}


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deepspeed")
    worker = Path(__file__).with_name("deepspeed_worker.py")
    return Scenarios(worker, folder, 2, SCENARIOS, DS_ACCELERATOR="cpu", PYTHONPATH=_path(folder))


def _path(folder):
    from ranks import environment

    where = Path(importlib.util.find_spec("deepspeed").origin).parents[1]
    return environment(folder)["PYTHONPATH"] + f":{where}"


@pytest.fixture(scope="module")
def trl(tmp_path_factory):
    """TRL under accelerate, whose `backward` calls the engine's step."""
    from tiny import build

    folder = tmp_path_factory.mktemp("trl-deepspeed")
    assets = build(tmp_path_factory.mktemp("tiny-policy"))
    return Scenarios(
        Path(__file__).with_name("grpo_script.py"),
        folder,
        2,
        {
            "nan": {
                "attach": "explicit",
                "steps": 5,
                "fault": "local_nan",
                "accumulation": 2,
                "halt_at": [5, 0, "HALT_NOW"],
            }
        },
        str(assets),
        DS_ACCELERATOR="cpu",
        ACCELERATE_USE_DEEPSPEED="true",
        ACCELERATE_DEEPSPEED_ZERO_STAGE="2",
        ACCELERATE_GRADIENT_CLIPPING="1.0",
        ACCELERATE_MIXED_PRECISION="no",
        PYTHONPATH=_path(folder),
    )


def test_under_accelerate_a_step_is_voted_on_before_the_engine_makes_it(trl):
    result = trl["nan"]
    assert [rank["ended"] for rank in result.ranks] == ["finished"] * 2
    assert all(rank["finite"] for rank in result.ranks)
    segments = [result.segment(rank) for rank in (0, 1)]
    for segment in segments:
        steps = segment.steps()
        assert list(steps) == [1, 2, 3, 4, 5]
        assert segment.of("probe_error") == []
        assert [event["step"] for event in segment.of("skip")] == [3, 4, 5]
        assert [steps[step]["optimizer.step_applied"] for step in steps] == [1, 1, 0, 0, 0]
        assert steps[2]["gradient.tensors"] > 0
        assert steps[2]["optimizer.update_norm"] > 0
        assert segment.closed == "halted"
    parts = [segment.steps()[2]["gradient.norm_local"] for segment in segments]
    assert segments[0].steps()[2]["gradient.norm_preclip"] == pytest.approx(math.hypot(*parts), rel=1e-4)
    named = [event for event in segments[1].of("nonfinite") if event["where"] == "before_reduce"]
    assert [event["names"] for event in named][:1] == [["model.layers.1.mlp.up_proj.weight"]]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name.startswith("zero")])
def test_partitions_add_up_to_the_engines_norm_and_a_nan_reaches_no_weight(engines, name):
    result = engines[name]
    assert [rank["verdicts"] for rank in result.ranks] == [[False, False, True, False, False]] * 2
    assert all(rank["finite"] and rank["probes_off"] == {} for rank in result.ranks)
    assert result.ranks[0]["weights"] == result.ranks[1]["weights"]
    first, second = (result.segment(rank).steps() for rank in (0, 1))
    loose = 1e-2 if "bf16" in name else 1e-5
    for step in (1, 2, 4, 5):
        here, there = first[step], second[step]
        engine = result.ranks[0]["norms"][step - 1] or here["gradient.norm_preclip"]  # it has none without ZeRO
        local = (here["gradient.norm_local"], there["gradient.norm_local"])
        whole = local[0] if name == "zero-0" else math.hypot(*local)
        assert whole == pytest.approx(engine, rel=loose)
        assert here["gradient.norm_preclip"] == pytest.approx(engine, rel=1e-6)
        assert here["optimizer.step_applied"] == 1
        assert here["optimizer.update_norm"] > 0
    assert first[3]["optimizer.step_applied"] == 0
    assert first[5]["optimizer.skipped_updates"] == 1


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_fp16_overflow_is_the_scalers_skip_and_halves_the_scale_and_gradients_are_read_unscaled(engines, stage):
    result = engines[f"fp16 zero-{stage}"]
    assert [rank["skipped_steps"] for rank in result.ranks] == [1, 1]
    assert all(rank["finite"] and rank["probes_off"] == {} for rank in result.ranks)
    first, second = (result.segment(rank).steps() for rank in (0, 1))
    assert [first[step]["optimizer.loss_scale"] for step in first] == [256, 256, 128, 128, 128]
    assert [first[step]["optimizer.scaler_skips"] for step in first] == [0, 0, 1, 1, 1]
    assert [first[step]["optimizer.step_applied"] for step in first] == [1, 1, 0, 1, 1]
    assert first[5]["optimizer.skipped_updates"] == 0, "no skip of ours, no alarm"
    assert result.segment(0).of("skip") == []
    for step in (1, 2, 4, 5):
        whole = math.hypot(first[step]["gradient.norm_local"], second[step]["gradient.norm_local"])
        assert whole == pytest.approx(result.ranks[0]["norms"][step - 1], rel=1e-5)
        assert first[step]["gradient.norm_preclip"] == pytest.approx(whole, rel=1e-5)


def test_a_bound_stops_an_update_that_deepspeed_would_make(engines):
    result = engines["bound"]
    assert [rank["verdicts"] for rank in result.ranks] == [[False, False, True, False, False]] * 2
    assert result.ranks[0]["skipped_steps"] == 0, "DeepSpeed saw nothing to skip"
    assert result.segment(0).steps()[3]["optimizer.step_applied"] == 0
    assert result.ranks[0]["weights"] == result.ranks[1]["weights"]


def test_micro_batches_of_one_step_are_voted_on_once(engines):
    result = engines["accumulation"]
    assert [rank["verdicts"] for rank in result.ranks] == [[False] * 3] * 2
    assert list(result.segment(0).steps()) == [1, 2, 3]
