"""Settings that train nothing, are refused at start or lose a run are named; those of good runs pass in silence."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_sentinel.cli import main
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.config_check import check_config
from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import CheckReport

TRL: dict[str, Any] = {
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 8, "learning_rate": 1e-6,
    "lr_scheduler_type": "constant_with_warmup", "beta": 0.04, "epsilon": 0.2, "max_steps": 1000, "save_steps": 100,
}  # fmt: skip
VERL: dict[str, Any] = {
    "algorithm.adv_estimator": "grpo", "data.train_batch_size": 256, "actor_rollout_ref.rollout.n": 8,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 64, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
    "actor_rollout_ref.actor.clip_ratio_low": 0.2, "actor_rollout_ref.actor.clip_ratio_high": 0.28,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.6, "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
    "actor_rollout_ref.actor.optim.lr": 1e-6, "trainer.n_gpus_per_node": 8, "trainer.nnodes": 1, "trainer.save_freq": 20,
}  # fmt: skip
OPENRLHF: dict[str, Any] = {
    "advantage_estimator": "group_norm", "n_samples_per_prompt": 8, "rollout_batch_size": 128, "train_batch_size": 128,
    "micro_train_batch_size": 4, "micro_rollout_batch_size": 16, "actor_num_nodes": 1, "actor_num_gpus_per_node": 8,
    "actor_learning_rate": 5e-7, "eps_clip_low_high": [0.2, 0.28], "save_steps": 50, "vllm_num_engines": 4,
    "vllm_tensor_parallel_size": 2, "vllm_gpu_memory_utilization": 0.6, "colocate_all_models": True,
}  # fmt: skip
DEEPSPEED: dict[str, Any] = {
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2},
}  # fmt: skip
BASES = {"TRL": TRL, "verl": VERL, "OpenRLHF": OPENRLHF, "DeepSpeed": DEEPSPEED}


def report_of(folder: Path, body: dict[str, Any], world_size: int | None = None) -> CheckReport:
    path = folder / "settings.json"
    path.write_text(json.dumps(body))
    return check_config(path, world_size=world_size)


def codes(report: CheckReport) -> set[str]:
    return {fault.code for fault in report.faults}


@pytest.mark.parametrize("trainer", BASES)
def test_good_settings_of_a_trainer_pass_in_silence(trainer: str, tmp_path: Path) -> None:
    report = report_of(tmp_path, BASES[trainer])
    assert (report.facts["trainer"], report.faults) == (trainer, ())


WRONG: list[tuple[str, dict[str, Any], str, Level]] = [
    ("TRL", {"fp16": True, "bf16": True}, "fp16", Level.BROKEN),
    ("TRL", {"fp16_full_eval": True, "bf16_full_eval": True}, "fp16", Level.BROKEN),
    ("DeepSpeed", {"fp16": {"enabled": True}}, "fp16", Level.BROKEN),
    ("TRL", {"generation_batch_size": 20}, "groups-do-not-fit", Level.BROKEN),
    ("TRL", {"generation_batch_size": 24, "steps_per_generation": 2}, "excluded", Level.BROKEN),
    ("TRL", {"num_generations": 32, "world_size": 1}, "groups-do-not-fit", Level.BROKEN),
    ("TRL", {"num_generations": 12}, "groups-do-not-fit", Level.BROKEN),
    ("TRL", {"eval_strategy": "steps", "per_device_eval_batch_size": 4, "world_size": 1}, "groups-do-not-fit", Level.BROKEN),
    ("TRL", {"auto_find_batch_size": True}, "excluded", Level.BROKEN),
    ("TRL", {"load_best_model_at_end": True}, "excluded", Level.BROKEN),
    ("TRL", {"lr_scheduler_type": "cosine_with_min_lr"}, "excluded", Level.BROKEN),
    ("TRL", {"epsilon_high": 3.0}, "epsilon", Level.DOUBTFUL),
    ("TRL", {"epsilon_high": 0.1}, "epsilon", Level.BROKEN),
    ("TRL", {"delta": 1.1}, "epsilon", Level.BROKEN),
    ("TRL", {"beta": -1}, "beta", Level.BROKEN),
    ("TRL", {"top_k": 1}, "temperature", Level.BROKEN),
    ("TRL", {"temperature": 0.01}, "temperature", Level.DOUBTFUL),
    ("TRL", {"warmup_ratio": 0.7}, "warmup", Level.DOUBTFUL),
    ("TRL", {"save_steps": None, "max_steps": 300}, "never-saves", Level.LOSS),
    ("TRL", {"save_strategy": "epoch", "num_train_epochs": 1}, "never-saves", Level.LOSS),
    ("TRL", {"max_completion_length": 4096, "vllm_max_model_length": 2048}, "context", Level.BROKEN),
    ("TRL", {"use_vllm": True, "vllm_gpu_memory_utilization": 0.9}, "engine-memory", Level.DOUBTFUL),
    ("TRL", {"max_grad_norm": -1.0}, "max-grad-norm", Level.BROKEN),
    ("verl", {"actor_rollout_ref.rollout.n": 1}, "group-of-one", Level.BROKEN),
    ("verl", {"actor_rollout_ref.actor.ppo_mini_batch_size": 3}, "accumulation-zero", Level.BROKEN),
    ("verl", {"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 5}, "batch-mismatch", Level.BROKEN),
    ("verl", {"actor_rollout_ref.actor.ppo_mini_batch_size": 512}, "batch-below-mini-batch", Level.BROKEN),
    ("verl", {"data.train_batch_size": 125, "actor_rollout_ref.rollout.n": 6}, "batch-mismatch", Level.BROKEN),
    ("verl", {"actor_rollout_ref.rollout.tensor_model_parallel_size": 3}, "batch-mismatch", Level.BROKEN),
    ("verl", {"actor_rollout_ref.actor.clip_ratio_high": 0.1}, "epsilon", Level.BROKEN),
    ("verl", {"actor_rollout_ref.actor.clip_ratio_low": 0}, "epsilon", Level.BROKEN),
    ("verl", {"actor_rollout_ref.actor.use_kl_loss": True, "algorithm.use_kl_in_reward": True}, "beta", Level.DOUBTFUL),
    ("verl", {"actor_rollout_ref.rollout.gpu_memory_utilization": 0.95}, "engine-memory", Level.DOUBTFUL),
    ("verl", {"actor_rollout_ref.rollout.gpu_memory_utilization": 60}, "engine-memory", Level.BROKEN),
    ("verl", {"data.max_prompt_length": 1024, "data.max_response_length": 8192,
              "actor_rollout_ref.rollout.max_model_len": 8192}, "context", Level.BROKEN),
    ("verl", {"actor_rollout_ref.actor.optim.lr_scheduler_type": "cosine"}, "ends-at-zero", Level.DOUBTFUL),
    ("verl", {"trainer.save_freq": -1}, "never-saves", Level.LOSS),
    ("verl", {"actor_rollout_ref.actor.checkpoint.save_contents": ["model"]}, "no-state", Level.LOSS),
    ("verl", {"actor_rollout_ref.rollout.temperature": 0}, "temperature", Level.BROKEN),
    ("OpenRLHF", {"n_samples_per_prompt": 1, "micro_rollout_batch_size": 4}, "group-of-one", Level.BROKEN),
    ("OpenRLHF", {"advantage_estimator": "reinforce_baseline", "n_samples_per_prompt": 1}, "group-of-one", Level.BROKEN),
    ("OpenRLHF", {"micro_train_batch_size": 32}, "accumulation-zero", Level.BROKEN),
    ("OpenRLHF", {"rollout_batch_size": 8}, "batch-below-mini-batch", Level.BROKEN),
    ("OpenRLHF", {"micro_rollout_batch_size": 256}, "batch-mismatch", Level.BROKEN),
    ("OpenRLHF", {"vllm_num_engines": 3}, "batch-mismatch", Level.BROKEN),
    ("OpenRLHF", {"eps_clip_low_high": [0.28, 0.2]}, "epsilon", Level.BROKEN),
    ("OpenRLHF", {"vllm_gpu_memory_utilization": 0.95}, "engine-memory", Level.DOUBTFUL),
    ("OpenRLHF", {"prompt_max_len": 1024, "generate_max_len": 1024, "max_len": 1500}, "context", Level.BROKEN),
    ("OpenRLHF", {"save_steps": -1}, "never-saves", Level.LOSS),
    ("OpenRLHF", {"disable_ds_ckpt": True}, "no-state", Level.LOSS),
]  # fmt: skip


@pytest.mark.parametrize(("trainer", "change", "code", "level"), WRONG, ids=lambda one: str(one)[:60])
def test_each_wrong_setting_is_named_with_its_level_and_nothing_else_is(
    trainer: str, change: dict[str, Any], code: str, level: Level, tmp_path: Path
) -> None:
    report = report_of(tmp_path, {**BASES[trainer], **change})
    if code == "batch-below-mini-batch" and trainer == "OpenRLHF":
        assert "batch-mismatch" in codes(report)  # so few completions are fewer batches than ranks, too
        report_faults = [one for one in report.faults if one.code == code]
    else:
        report_faults = list(report.faults)
    assert [(one.code, one.level) for one in report_faults] == [(code, level)]
    assert all(one.remedy and "{0}" not in one.message for one in report.faults)


RIGHT: list[tuple[str, dict[str, Any]]] = [
    ("TRL", {"epsilon_high": 5.0, "loss_type": "cispo"}), ("TRL", {"delta": 2.0}),
    ("TRL", {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}}),
    ("TRL", {"use_vllm": True, "vllm_mode": "server", "vllm_gpu_memory_utilization": 0.9}),
    ("TRL", {"vllm_gpu_memory_utilization": 0.9}), ("TRL", {"bf16": True, "fp16": False}),
    ("TRL", {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "num_generations": 16}),  # 4 ranks fit
    ("TRL", {"save_strategy": "epoch", "save_steps": 5000, "num_train_epochs": 3}), ("TRL", {"warmup_steps": 0.03}),
    ("TRL", {"eval_strategy": "steps", "num_generations_eval": 4, "per_device_eval_batch_size": 4}),
    ("TRL", {"top_k": 50, "top_p": 0.95, "temperature": 0.7}), ("TRL", {"top_k": 0, "top_p": 1.0}),
    ("verl", {"actor_rollout_ref.actor.use_dynamic_bsz": True, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4096}),
    ("verl", {"algorithm.adv_estimator": "gae", "actor_rollout_ref.rollout.n": 1}),
    ("verl", {"actor_rollout_ref.actor.optim.lr_scheduler_type": "cosine", "actor_rollout_ref.actor.optim.min_lr_ratio": 0.1}),
    ("verl", {"actor_rollout_ref.model.path": "${oc.env:MODEL}", "data.max_response_length": "$LENGTH"}),
    ("verl", {"actor_rollout_ref.actor.ulysses_sequence_parallel_size": 4}),
    ("verl", {"actor_rollout_ref.actor.megatron.tensor_model_parallel_size": 4, "data.train_batch_size": 8,
              "actor_rollout_ref.actor.ppo_mini_batch_size": 8, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 32}),
    ("verl", {"actor_rollout_ref.actor.policy_loss.loss_mode": "cispo", "actor_rollout_ref.actor.clip_ratio_low": 10}),
    ("OpenRLHF", {"ring_attn_size": 2, "actor_num_gpus_per_node": 8}),
    ("OpenRLHF", {"ring_attn_size": 2}), ("OpenRLHF", {"async_train": True, "vllm_num_engines": 3}),
    ("DeepSpeed", {"fp16": {"enabled": False}}),
]  # fmt: skip


@pytest.mark.parametrize(("trainer", "change"), RIGHT, ids=lambda one: str(one)[:60])
def test_settings_that_look_odd_and_are_right_pass(trainer: str, change: dict[str, Any], tmp_path: Path) -> None:
    assert report_of(tmp_path, {**BASES[trainer], **change}).faults == ()


def test_how_many_ranks_whole_groups_need_is_a_note_until_the_number_of_ranks_is_given(tmp_path: Path) -> None:
    body = {**TRL, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "num_generations": 16}
    report = report_of(tmp_path, body)
    assert any("multiple of 4" in note for note in report.notes)
    assert report_of(tmp_path, body, world_size=8).faults == ()
    assert codes(report_of(tmp_path, body, world_size=2)) == {"groups-do-not-fit"}


def test_settings_in_a_section_among_others_are_found(tmp_path: Path) -> None:
    body = {"model": {"name": "x", "dtype": "bf16"}, "training": {"grpo": {**TRL, "temperature": 0}}, "seed": 1}
    report = report_of(tmp_path, body)
    assert (codes(report), report.facts["trainer"]) == ({"temperature"}, "TRL")
    assert "in section training.grpo" in report.looked_at[0]


def test_completions_longer_than_the_model_that_is_named_are_broken(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"max_position_embeddings": 2048}')
    body = {
        **TRL,
        "model_name_or_path": str(tmp_path / "model"),
        "max_completion_length": 2000,
        "max_prompt_length": 48,
    }
    assert report_of(tmp_path, body).faults == ()
    (fault,) = report_of(tmp_path, {**body, "max_completion_length": 2001}).faults
    assert (fault.code, fault.where) == ("context", "max_completion_length")
    assert "2048 of the model" in fault.message


@pytest.mark.torch
@pytest.mark.parametrize("change", [
    {}, {"fp16": True, "bf16": True}, {"num_generations": 1}, {"num_generations": 6}, {"generation_batch_size": 20},
    {"generation_batch_size": 32}, {"generation_batch_size": 24, "steps_per_generation": 2}, {"steps_per_generation": 4},
    {"per_device_train_batch_size": 3}, {"do_eval": True, "eval_strategy": "steps", "eval_steps": 10,
                                         "per_device_eval_batch_size": 4},
    {"eval_strategy": "steps", "eval_steps": 10, "per_device_eval_batch_size": 16}, {"load_best_model_at_end": True},
    {"fp16_full_eval": True, "bf16_full_eval": True},
], ids=str)  # fmt: skip
def test_what_trl_itself_refuses_is_broken_and_what_it_takes_is_not(change: dict[str, Any], tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    body = {**TRL, **change}
    try:
        taken = trl.GRPOConfig(output_dir=str(tmp_path), use_cpu=True, report_to="none", **body)
    except ValueError:
        taken = None
    broken = [one for one in report_of(tmp_path, body, world_size=1).faults if one.level is Level.BROKEN]
    assert bool(broken) == (taken is None)
    if taken is not None:  # the configuration as it is saved
        whole = json.loads(taken.to_json_string())
        assert [one for one in report_of(tmp_path, whole, 1).faults if one.level is Level.BROKEN] == []


OPENRLHF_SCRIPT = """set -x
# it's what starts the run; $HOME/data isn't known here
SAMPLES=8
read -r -d '' training_commands <<EOF
openrlhf.cli.train_ppo_ray \\
   --actor_num_nodes 1 --actor_num_gpus_per_node 8 \\
   --advantage_estimator group_norm --n_samples_per_prompt $SAMPLES \\
   --rollout_batch_size ${PROMPTS:-128} --train_batch_size=128 --micro_train_batch_size 4 \\
   --eps_clip_low_high 0.2 0.28 --save_steps SAVE --prompt_data $HOME/data \\
   --bf16 --vllm_enable_sleep --max_norm $NORM
EOF
deepspeed --module $training_commands 2>&1 | tee log
"""
SECTIONS = (("actor_num_nodes", "actor.num_nodes"), ("actor_num_gpus_per_node", "actor.num_gpus_per_node"),
            ("advantage_estimator", "algo.advantage.estimator"), ("n_samples_per_prompt", "rollout.n_samples_per_prompt"),
            ("rollout_batch_size", "rollout.batch_size"), ("micro_train_batch_size", "train.micro_batch_size"),
            ("train_batch_size", "train.batch_size"), ("eps_clip_low_high", "actor.eps_clip_low_high"),
            ("save_steps", "ckpt.save_steps"))  # fmt: skip


def with_sections(script: str) -> str:
    """The same script with the names that OpenRLHF's options have since they have sections."""
    for old, new in SECTIONS:
        script = script.replace(f"--{old}", f"--{new}")
    return script


VERL_SCRIPT = """N=8; export GPUS=8
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=256 +data.extra=x \\
    actor_rollout_ref.rollout.n=$N \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
    'trainer.logger=["console"]' trainer.n_gpus_per_node=$GPUS trainer.nnodes=1 trainer.save_freq=20 "$@" | tee log
"""
TRL_SCRIPT = "accelerate launch --num_processes 4 -m trl.scripts.grpo --num_generations 8 --learning_rate 1e-6 \\\n" \
    "  --per_device_train_batch_size 2 --lr_scheduler_type constant --save_steps 50 --bf16 true"  # fmt: skip
TRL_PYTHON = """from trl import GRPOConfig
LR = 1e-6
def main(steps):
    return trl.GRPOConfig("out", learning_rate=LR, num_generations=8, lr_scheduler_type="constant", max_steps=steps,
                          save_steps=50, per_device_train_batch_size=BATCH, **more)
"""


@pytest.mark.parametrize(("name", "text", "wrong"), [
    ("run.sh", OPENRLHF_SCRIPT.replace("SAVE", "50"), set()), ("run.sh", OPENRLHF_SCRIPT.replace("SAVE", "-1"), {"never-saves"}),
    ("run.sh", OPENRLHF_SCRIPT.replace("--save_steps SAVE", ""), {"never-saves"}),  # OpenRLHF's default is -1
    ("run.sh", OPENRLHF_SCRIPT.replace("SAVE", "50").replace("SAMPLES=8", "SAMPLES=1"), {"group-of-one"}),
    ("run.sh", OPENRLHF_SCRIPT.replace("SAVE", "50").replace("0.2 0.28", "0.4 0.28"), {"epsilon"}),
    ("run.sh", with_sections(OPENRLHF_SCRIPT.replace("SAVE", "50")), set()),
    ("run.sh", with_sections(OPENRLHF_SCRIPT.replace("SAVE", "-1").replace("SAMPLES=8", "SAMPLES=1")),
     {"group-of-one", "never-saves"}),
    ("run.sh", with_sections(OPENRLHF_SCRIPT.replace("SAVE", "-1").replace("batch_size 4", "batch_size 32")),
     {"accumulation-zero", "never-saves"}),
    ("run.slurm", VERL_SCRIPT, set()), ("run.sh", VERL_SCRIPT.replace("GPUS=8", "GPUS=7"), {"batch-mismatch"}),
    ("run.sh", VERL_SCRIPT.replace("actor_rollout_ref.rollout.n=$N", ""), {"group-of-one"}),  # verl's default is 1
    ("run.sh", VERL_SCRIPT.replace("trainer.save_freq=20", ""), {"never-saves"}),
    ("run.sh", TRL_SCRIPT, set()), ("run.sh", TRL_SCRIPT.replace("processes 4", "processes 3"), {"groups-do-not-fit"}),
    ("run.sh", TRL_SCRIPT + " --fp16", {"fp16"}), ("train.py", TRL_PYTHON, set()),
    ("train.py", TRL_PYTHON.replace("1e-6", "1.0"), {"learning-rate"}),
    ("train.py", TRL_PYTHON.replace("save_steps=50", "save_steps=5, fp16=True, bf16=True"), {"fp16"}),
])  # fmt: skip
def test_settings_are_read_out_of_the_script_that_starts_the_run(
    name: str, text: str, wrong: set[str], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    assert codes(check_config(tmp_path / name)) == wrong


@pytest.mark.parametrize("script", [
    "conf = dict(learning_rate={rate}, num_generations=8, output_dir=args.out)\nGRPOConfig(**conf)",
    "RATE = {rate}\nconf: dict[str, object] = {{'learning_rate': RATE, 'num_generations': 8}}\nGRPOConfig(**conf)",
    "base = dict(num_generations=8)\nGRPOConfig(**{{**base, 'learning_rate': {rate}}})",
    "def main():\n    conf = dict(learning_rate=1e-6)\n    conf['learning_rate'] = {rate}\n    GRPOConfig(num_generations=8, **conf)",
    "conf = {{}}\nconf.update(learning_rate=1e-6)\nconf.update({{'learning_rate': {rate}}}, num_generations=8)\nGRPOConfig(**conf)",
    "conf = {{'learning_rate': 1e-6}}\nconf |= dict(learning_rate={rate})\nother = conf.copy()\nconf.update(learning_rate=2)\n"
    "GRPOConfig(**other | {{'num_generations': 2 * 4}})",
    "args = GRPOConfig(output_dir=where)\nargs.learning_rate = {rate}\nsetattr(args, 'num_generations', 8)\ntrain(args)",
    "GROUP = 4\nGROUP *= 2\nargs = GRPOConfig(num_generations=GROUP)\nargs = dataclasses.replace(args, learning_rate={rate})",
    "def conf():\n    args = GRPOConfig(\n        num_generations=8)\n    if debug:\n        args.save_steps = 1\n"
    "    args.learning_rate = {rate}\n    return args",
    "make = partial(GRPOConfig, num_generations=8)\nif __name__ == '__main__':\n    conf = {{}}\n    conf.setdefault('learning_rate', {rate})\n"
    "    GRPOConfig(**conf)",
    "if mode == 'grpo':\n    conf = {{'num_generations': 8}}\n    conf['learning_rate'] = {rate}\n    args = GRPOConfig(**conf)",
])  # fmt: skip
def test_settings_are_read_out_of_a_dict_that_a_script_hands_over(script: str, tmp_path: Path) -> None:
    for rate, wrong in (("0", {"learning-rate"}), ("1e-6", set())):
        (tmp_path / "train.py").write_text(script.format(rate=rate))
        report = check_config(tmp_path / "train.py")
        assert codes(report) == wrong
        assert report.facts["settings"] == {"learning_rate": float(rate), "group_size": 8}


@pytest.mark.parametrize("script", [
    "args = GRPOConfig(learning_rate=1e-6, num_generations=8)\nif debug:\n    args.learning_rate = 0\n",
    "conf = dict(learning_rate=1e-6, num_generations=8)\nif debug:\n    conf.update(learning_rate=0)\nelse:\n    pass\nGRPOConfig(**conf)",
    "conf = dict(num_generations=8)\ntry:\n    go()\nexcept OSError:\n    conf['learning_rate'] = 0\nGRPOConfig(**conf)",
    "rate = 1e-6\nif cold:\n    rate = 0\nGRPOConfig(learning_rate=rate, num_generations=8)",
])  # fmt: skip
def test_what_a_branch_changes_that_may_not_be_taken_is_not_known(script: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script)
    report = check_config(tmp_path / "train.py")
    assert codes(report) == set()
    assert report.facts["settings"] == {"group_size": 8}


@pytest.mark.parametrize("script", [
    "conf = {'a': 1}\nconf['b'] = conf\nconf.update(c=conf)\nGRPOConfig(num_generations=8, **conf)",
    "d = {}\n" + "d = {'a': d, 'b': d}\n" * 60 + "GRPOConfig(num_generations=8, more=d)",
    "n = 9\n" + "n *= n\n" * 90 + "GRPOConfig(num_generations=8, n=n)",
])  # fmt: skip
def test_a_script_that_puts_a_dict_into_itself_or_doubles_without_end_takes_no_time(
    script: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(script)
    began = time.process_time()
    assert check_config(tmp_path / "train.py").facts["settings"] == {"group_size": 8}
    assert time.process_time() - began < 5


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan", "1" + "0" * 400])
def test_a_number_that_is_not_finite_is_told_wherever_it_stands(value: str, tmp_path: Path) -> None:
    for key in ("num_generations", "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate"):
        text = yaml.safe_dump({**TRL, key: "VALUE"}).replace("VALUE", value)
        (tmp_path / "a.yaml").write_text(text)
        for ranks in (None, 2):
            report = check_config(tmp_path / "a.yaml", world_size=ranks)
            assert ("no-number", key) in {(fault.code, fault.where) for fault in report.faults}
    (tmp_path / "b.yaml").write_text(
        yaml.safe_dump(BASES["verl"]).replace("n_gpus_per_node: 8", f"n_gpus_per_node: {value}")
    )
    check_config(tmp_path / "b.yaml")


@pytest.mark.parametrize(("length", "wrong"), [(0, Level.BROKEN), (2, Level.DOUBTFUL), (8, None), (512, None)])
def test_a_completion_of_a_few_tokens_is_doubtful(length: int, wrong: Level | None, tmp_path: Path) -> None:
    report = report_of(tmp_path, {**TRL, "max_completion_length": length})
    assert [fault.level for fault in report.faults if fault.where == "max_completion_length"] == [wrong] * bool(wrong)


def test_a_script_without_settings_and_one_that_is_no_python_are_one_sentence(tmp_path: Path, capsys: Any) -> None:
    for name, text in (
        ("a.sh", "echo hello\n"),
        ("a.py", "x = 1\n"),
        ("b.py", "def (:\n"),
        ("b.sh", "\x00"),
        ("c.sh", "ls --all"),
    ):
        (tmp_path / name).write_text(text)
        assert main(["check", "config", str(tmp_path / name)]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    change=st.dictionaries(
        st.sampled_from(sorted({key for base in BASES.values() for key in base} | {"model", "delta", "save_strategy"})),
        st.none() | st.booleans() | st.floats() | st.integers(-3, 600) | st.text(max_size=5)
        | st.lists(st.floats() | st.text(max_size=3), max_size=3) | st.just({"enabled": True}),
        max_size=4,
    ),
    trainer=st.sampled_from(sorted(BASES)), name=st.sampled_from(["a.yaml", "a.json", "a.sh", "a.py"]),
    junk=st.text(max_size=60),
)  # fmt: skip
def test_no_setting_of_any_kind_makes_the_check_crash(
    change: dict[str, Any], trainer: str, name: str, junk: str, tmp_path: Path
) -> None:
    body = {**BASES[trainer], **change}
    text = {
        "a.yaml": yaml.safe_dump(body), "a.json": json.dumps(body),
        "a.sh": junk + "\npython " + " ".join(f"--{key} {value}" for key, value in body.items()) + junk,
        "a.py": "GRPOConfig(" + ", ".join(f"{key.replace('.', '_')}={value!r}" for key, value in body.items()) + ")" + junk,
    }[name]  # fmt: skip
    (tmp_path / name).write_text(text, errors="replace")
    try:
        report = check_config(tmp_path / name, world_size=2)
    except SentinelError:
        return
    json.dumps(report.to_json(), default=str)
