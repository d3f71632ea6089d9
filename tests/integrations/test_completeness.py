"""No signal is a promise only: real TRL runs produce every one that the trainer's side can, the rest say what they need."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "agent"))
pytest.importorskip("trl")
pytest.importorskip("peft")
from ranks import Scenarios

from grpo_sentinel.catalog import SIGNALS, split_name

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]
HERE = Path(__file__).parent
NEEDS = {
    "data.unk_ratio": "a tokenizer with an unknown token",
    "data.prompt_clip_ratio": "max_prompt_length, which newer TRL has not",
    "reward.learnability_index": "rewards of two values",
    "reward.func_nothing": "a reward function that returns None (test_unusable_input)",
    **{
        name: "an asynchronous trainer that gives versions of the weights (test_versions)"
        for name in SIGNALS
        if name.startswith(("data.version_", "data.stale_dropped"))
    },
    **{name: "a model with experts (test_activations)" for name in SIGNALS if name.startswith("policy.expert_")},
    **{
        name: "a colocated rollout engine, and CUDA (test_engine_sleep)" for name in SIGNALS if "memory.engine_" in name
    },
    "reward.func_twin_mismatch": "a group with the same completion twice",
    "reward.func_repeated": "scores of 40 bits or more in a batch",
    "reward.endpoint_prompt_ratio": "rewards of two values, and 32 prompts that come twice (test_prompt_history)",
    "reward.func_sanitized": "a reward function that calls sanitize_rewards()",
    "optimizer.loss_scale": "a loss scaler: CUDA, or DeepSpeed in fp16 (test_deepspeed)",
    "memory.cgroup_used_bytes": "a memory cgroup",
    "memory.cgroup_limit_bytes": "a memory cgroup with a limit",
    "sentinel.frame_skew_steps": "the sidecar, which makes it",
    "sentinel.agent_plain_seconds": "steps that are thinned",
    "sentinel.probe_off": "a probe that failed (test_unusable_input)",
    **{name: "CUDA" for name in SIGNALS if name.startswith("memory.cuda_")},
    **{name: "the sidecar, which makes it" for name in SIGNALS if name.startswith("device.")},
}
ALL_SETTINGS = {
    "env": {
        "GRPO_SENTINEL_SETTINGS": json.dumps(
            {"live_tensors_every": 1, "activations_every": 2, "local_gradients": "always"}
        )
    }
}
TWO_SETTINGS = {"env": {"GRPO_SENTINEL_SETTINGS": json.dumps({"vitals_every": 2, "local_gradients": "always"})}}
BASE = {"attach": "explicit", "beta": 0.04}
# what is read at every 16th step of the optimizer, and not thinned
LONG = {"steps": 18, "env": {"GRPO_SENTINEL_SETTINGS": json.dumps({"overhead_floor_seconds": 1.0})}}
ONE = {
    "everything": {**BASE, **ALL_SETTINGS, "iterations": 2, "reward_model": True, "sampling": True, "completion": 12},
    "bf16": {**BASE, "dtype": "bfloat16", "completion": 100, "steps": 8},  # long enough that some completions end early
    "lora": {**BASE, "lora": True, "binary": True},
    "no clipping": {"attach": "explicit", "max_grad_norm": 0.0, "async_reward": True, **LONG},
    "adapter left on": {**BASE, "lora": True, "adapter_left_on": True},
}
TWO = {
    "two": {**BASE, **TWO_SETTINGS, "steps": 5},
    "shared": {**BASE, **TWO_SETTINGS, "steps": 3, "same_samples": True},
}


def scenarios(tmp_path_factory, world, options):
    from tiny import build

    folder = tmp_path_factory.mktemp(f"world{world}")
    return Scenarios(HERE / "grpo_script.py", folder, world, options, str(build(tmp_path_factory.mktemp("tiny"))))


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return scenarios(tmp_path_factory, 1, ONE)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return scenarios(tmp_path_factory, 2, TWO)


def newest(result, rank=0):
    """The newest value of every signal."""
    out = {}
    for record in result.segment(rank).records:
        out.update(record.values)
    return out


def test_every_signal_of_the_catalogue_is_produced_by_a_real_run_or_says_what_it_needs(one, two):
    results = [*(one[name] for name in ONE), *(two[name] for name in TWO)]
    assert all(rank["ended"] == "finished" for result in results for rank in result.ranks)
    assert [result.segment(0).of("probe_error") for result in results] == [[]] * len(results)
    seen = {split_name(name)[0] for result in results for name in newest(result)}
    assert seen - set(SIGNALS) == set(), "the agent makes nothing that is not in the catalogue"
    assert set(SIGNALS) - seen - set(NEEDS) == set()


def test_the_reference_model_is_looked_at_as_the_reward_models_are(one):
    found = newest(one["everything"])
    for model in ("reward2", "reference"):
        assert f"reward.model_bits[{model}]" in found, "a reward model without a name gets its number"
        assert found[f"reward.model_autograd[{model}]"] == 0
    assert found["reward.model_active_dropouts[reward2]"] == 1
    assert found["reward.model_training_modules[reward2]"] > 10
    assert found["reward.model_head_bias[reward2]"] == 7
    assert found["reward.model_training_modules[reference]"] == 0
    assert found["reward.model_trainable_parameters[reference]"] == 0, "no optimizer holds any"
    described = one["everything"].segment(0).of("config")[0]["frozen_models"]
    assert described["reference"] == {"dtype": "float32", "device": "cpu"}


def test_the_trainers_own_kl_stands_beside_the_recomputed_one(one):
    found = newest(one["everything"])
    assert found["policy.kl_reported_nats"] > 0
    assert found["policy.kl_reported_nats"] == pytest.approx(found["policy.kl_k3_nats"], rel=0.02)


def test_an_adapter_that_is_on_during_the_reference_pass_is_seen(one):
    assert newest(one["lora"])["reward.model_adapter_mismatch[reference]"] == 0
    wrong = newest(one["adapter left on"])
    assert wrong["reward.model_adapter_mismatch[reference]"] == 4, "two layers, two projections"
    assert wrong["policy.kl_reported_nats"] == 0, "which nothing in the log shows"


def test_of_a_lora_model_only_the_adapter_is_trained_and_every_part_of_it_is_held(one):
    found = newest(one["lora"])
    assert found["gradient.tensors"] == found["optimizer.sampled_tensors"] == 8
    assert (found["optimizer.unheld_parameters"], found["optimizer.stale_parameters"]) == (0, 0)


def test_gradients_are_read_before_the_update_also_where_the_trainer_does_not_clip(one):
    found = newest(one["no clipping"])
    assert found["gradient.tensors"] == 24
    assert found["gradient.norm_preclip"] == pytest.approx(found["gradient.norm_local"])
    assert found["gradient.clip_coefficient"] == 1


def test_an_asynchronous_reward_function_is_timed_and_its_scores_are_read_as_any_others(one):
    found = newest(one["no clipping"])
    assert 0.05 <= found["reward.func_latency_seconds[async_reward]"] < 5
    assert found["reward.func_failures[async_reward]"] == 0
    assert 0 <= found["reward.func_mean[async_reward]"] <= 2


def test_the_column_that_names_the_data_set_of_a_row_is_found(one):
    assert (newest(one["everything"])["data.sources"], newest(one["everything"])["data.source_imbalance"]) == (1, 1)


def test_ranks_that_work_on_the_same_samples_are_seen(two):
    assert newest(two["two"])["data.duplicate_over_ranks_ratio"] == 0
    assert newest(two["shared"])["data.duplicate_over_ranks_ratio"] == 1
