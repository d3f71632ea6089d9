"""A good node and good settings pass; each thing that breaks a run is named before it does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_sentinel.cli import main
from grpo_sentinel.preflight import environment_host as host
from grpo_sentinel.preflight import environment_versions as versions
from grpo_sentinel.preflight.config_check import check_config
from grpo_sentinel.preflight.environment import EnvironmentOptions, check_environment
from grpo_sentinel.preflight.report import CheckReport

TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<pad>": 2}}, "added_tokens": [{"id": 3, "content": "<eos>"}],
}  # fmt: skip
SAVED = {"eos_token": "<eos>", "pad_token": {"content": "<pad>"}, "padding_side": "left", "chat_template": "{{ x }}"}
CONFIG = {"vocab_size": 4, "eos_token_id": 3, "pad_token_id": 2, "dtype": "bfloat16"}


def model(
    path: Path, saved: dict[str, Any] | None = None, config: dict[str, Any] | None = None, **tokenizer: Any
) -> Path:
    path.mkdir(parents=True)
    (path / "tokenizer.json").write_text(json.dumps({**TOKENIZER, **tokenizer}))
    (path / "tokenizer_config.json").write_text(json.dumps({**SAVED, **(saved or {})}))
    (path / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    return path


def codes(report: CheckReport) -> set[str]:
    return {fault.code for fault in report.faults}


def tokenizer_codes(policy: Path, **others: Path) -> set[str]:
    return codes(check_environment(EnvironmentOptions(models={"policy": policy, **others}))) - {
        "open-files",
        "file-size",
    }


def test_equal_tokenizers_agree_and_a_reward_model_may_have_its_own(tmp_path: Path) -> None:
    policy, reference = model(tmp_path / "p"), model(tmp_path / "r")
    reward = model(tmp_path / "w", {"eos_token": "b"}, {"eos_token_id": 1}, added_tokens=[])
    assert tokenizer_codes(policy, reference=reference, reward=reward) == set()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"saved": {"eos_token": "b"}, "config": {"eos_token_id": 1}}, "special-tokens"),
        ({"saved": {"padding_side": "right"}}, "padding-side"),
        ({"saved": {"chat_template": "{{ y }}"}}, "chat-template"),
        ({"config": {"dtype": "float32"}}, "dtype"),
        ({"added_tokens": [{"id": 3, "content": "<eos>"}, {"id": 2, "content": "c"}]}, "vocabulary-differs"),
        ({"config": {"eos_token_id": 1}}, "special-token-id"),
        ({"config": {"vocab_size": 3}}, "vocabulary"),
    ],
)
def test_each_difference_of_the_reference_is_named(tmp_path: Path, change: dict[str, Any], code: str) -> None:
    assert tokenizer_codes(model(tmp_path / "p"), reference=model(tmp_path / "r", **change)) == {code}


def test_a_reward_model_without_the_template_of_the_policy_is_doubtful(tmp_path: Path) -> None:
    reward = model(tmp_path / "w", {"chat_template": None})
    assert tokenizer_codes(model(tmp_path / "p"), reward=reward) == {"chat-template"}


def requirements(name: str) -> list[str]:
    return {
        "trl": ["transformers>=4.53", "torch>=2.4; extra == 'x'", "vllm>=0.22.0,<=0.31.0; extra == 'vllm'"],
        "vllm": ["torch==2.6.0"], "accelerate": ["peft>=9; extra == 'peft'"],
    }.get(name, [])  # fmt: skip


@pytest.mark.parametrize(
    ("have", "code"),
    [
        ({"trl": "1.0", "transformers": "4.40.0"}, {"requirement"}),
        ({"trl": "1.0", "transformers": "4.55.0", "torch": "2.0"}, set()),
        ({"vllm": "0.8", "torch": "2.6.0+cu124"}, set()),
        ({"vllm": "0.8", "torch": "2.7.0"}, {"requirement"}),
        ({"numpy": "2.1", "torch": "2.2.1"}, {"known-conflict"}),
        ({"trl": "1.0", "vllm": "0.19.0"}, {"not-tried-together"}),
        ({"trl": "1.0", "vllm": "0.25.0"}, set()),
        ({"accelerate": "1.0", "peft": "0.2"}, set()),
        ({"nvidia-nccl-cu12": "2.20", "nvidia-nccl-cu13": "2.27"}, {"two-nccl"}),
    ],
)
def test_versions_that_break_together_are_found_by_their_own_requirements(have: dict[str, str], code: set[str]) -> None:
    faults, not_seen = versions.version_faults(have, requirements)
    assert ({fault.code for fault in faults}, not_seen) == (code, [])


@pytest.mark.parametrize(
    ("cuda", "driver", "code"),
    [
        ("12.8", (550, 54), set()), ("13.0", (550, 54), {"driver-too-old"}), ("", (550, 54), {"cpu-build"}),
        ("12.8", None, set()), (None, (550, 54), set()),
    ],
)  # fmt: skip
def test_the_driver_is_judged_against_torchs_cuda(cuda: str | None, driver: Any, code: set[str]) -> None:
    assert {fault.code for fault in versions.driver_faults(cuda, driver)} == code


def test_the_driver_version_is_read_from_both_forms_of_the_file(tmp_path: Path) -> None:
    for text in (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release",
    ):
        (tmp_path / "version").write_text(text)
        assert versions.driver_version(tmp_path / "version") in ((550, 54), (570, 86))


def test_limits_disk_and_clock_are_judged(tmp_path: Path) -> None:
    fine = {"open_files": 65536, "file_size": -1, "core": 0}
    assert host.limit_faults(fine) == []
    assert [one.code for one in host.limit_faults({**fine, "open_files": 1024, "file_size": 10**6})] == [
        "open-files",
        "file-size",
    ]
    assert host.disk_faults(tmp_path / "new", 10**9, 3, free=4 * 10**9) == []
    assert [one.code for one in host.disk_faults(tmp_path / "new", 10**9, 3, free=4 * 10**9 - 1)] == ["disk"]
    assert host.place_faults(tmp_path / "new" / "deeper") == []
    (tmp_path / "file").write_text("")
    assert [one.code for one in host.place_faults(tmp_path / "file" / "out")] == ["checkpoint-place"]
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1" / "w").write_bytes(b"x" * 100)
    assert host.checkpoint_bytes(None, tmp_path) == 100
    assert host.clock_faults(tmp_path) == []
    os.utime(tmp_path / "checkpoint-1", (4e9, 4e9))
    assert [one.code for one in host.clock_faults(tmp_path)] == ["clock"]
    assert [one.code for one in host.clock_faults(None, now=1000.0)] == ["clock"]


def test_a_directory_that_this_user_cannot_write_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(mode=0o555)
    code = (
        "import os, sys; from pathlib import Path; from grpo_sentinel.preflight import environment_host as host;"
        "os.getuid() or os.setuid(65534);"
        "print(*[one.message for one in host.place_faults(Path(sys.argv[1]))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out")], capture_output=True, text=True, timeout=60
    )
    assert "is not writable for this user" in done.stdout, done.stderr


def test_the_command_adds_what_doctor_knows_and_loads_no_torch(capsys: Any) -> None:
    code = (
        "import sys; from grpo_sentinel.cli import main; main(['check', 'environment', '--json']);"
        "print([n for n in ('torch', 'transformers', 'numpy') if n in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr.strip() == "[]"
    body = json.loads(done.stdout)
    assert body["schema"] == "grpo-sentinel/environment-check"
    assert any(line.startswith("sidecar packages:") for line in body["looked_at"])


TRL = {
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 8, "learning_rate": 1e-6,
    "lr_scheduler_type": "constant_with_warmup", "beta": 0.04, "epsilon": 0.2, "max_steps": 1000, "save_steps": 100,
    "save_total_limit": 3, "temperature": 0.9, "bf16": True,
}  # fmt: skip


def test_good_settings_of_every_trainer_pass(tmp_path: Path) -> None:
    verl = {
        "data": {"train_batch_size": 256}, "trainer": {"n_gpus_per_node": 8, "nnodes": 1, "save_freq": 20},
        "algorithm": {"adv_estimator": "grpo"},
        "actor_rollout_ref": {"rollout": {"n": 8}, "actor": {"ppo_mini_batch_size": 64, "ppo_micro_batch_size_per_gpu": 4}},
    }  # fmt: skip
    openrlhf = {
        "n_samples_per_prompt": 8,
        "train_batch_size": 128,
        "micro_train_batch_size": 4,
        "actor_learning_rate": 5e-7,
    }
    deepspeed = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 2},
    }
    for name, body in {"TRL": TRL, "verl": verl, "OpenRLHF": openrlhf, "DeepSpeed": deepspeed}.items():
        (tmp_path / "a.json").write_text(json.dumps(body))
        report = check_config(tmp_path / "a.json")
        assert (report.facts["trainer"], report.faults) == (name, ()), name


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"num_generations": 1}, "group-of-one"), ({"num_generations": 6}, "groups-do-not-fit"),
        ({"gradient_accumulation_steps": 0}, "accumulation-zero"), ({"epsilon": 0}, "epsilon"), ({"epsilon": 0.9}, "epsilon"),
        ({"epsilon_high": 0.1}, "epsilon"), ({"beta": -0.1}, "beta"), ({"beta": 5}, "beta"),
        ({"learning_rate": 0}, "learning-rate"), ({"learning_rate": 1e-2}, "learning-rate"),
        ({"warmup_steps": 1000}, "warmup"), ({"lr_scheduler_type": "linear"}, "ends-at-zero"),
        ({"save_strategy": "no"}, "never-saves"), ({"save_steps": 5000}, "never-saves"), ({"save_total_limit": 1}, "one-checkpoint"),
        ({"save_only_model": True}, "no-state"), ({"temperature": 0}, "temperature"), ({"fp16": True}, "fp16"),
    ],
)  # fmt: skip
def test_each_fatal_or_doubtful_setting_of_trl_is_named(tmp_path: Path, change: dict[str, Any], code: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps({**TRL, **change}))
    report = check_config(tmp_path / "a.json")
    assert codes(report) == {code}
    assert report.faults[0].where in change


def test_accumulation_that_becomes_zero_over_the_ranks_is_computed_for_verl_and_openrlhf(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "actor_rollout_ref: {rollout: {n: 4}, actor: {ppo_mini_batch_size: 16, ppo_micro_batch_size_per_gpu: 8}}\n"
        "trainer: {n_gpus_per_node: 8, nnodes: 2}\n"
    )
    assert codes(check_config(path)) == {"accumulation-zero"}
    path.write_text("n_samples_per_prompt: 8\ntrain_batch_size: 16\nmicro_train_batch_size: 4\n")
    assert codes(check_config(path)) == set()
    assert codes(check_config(path, world_size=8)) == {"accumulation-zero"}
    path.write_text(
        "train_batch_size: 64\ntrain_micro_batch_size_per_gpu: 4\ngradient_accumulation_steps: 2\nzero_optimization: {stage: 2}\n"
    )
    assert codes(check_config(path, world_size=4)) == {"batch-mismatch"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("num_generation: 8\nlearning_rate: abc\n", {("misspelled", "num_generation"), ("no-number", "learning_rate")}),
        ('{"learning_rate": "1e-6", "beta": "x"}', {("no-number", "beta")}),
        ("num_generation: 8\n", {("misspelled", "num_generation")}),
        ("learning_rate: true\nmax_steps: [5]\n", {("no-number", "learning_rate"), ("no-number", "max_steps")}),
        ("learning_rate: .nan\n", {("no-number", "learning_rate")}),
        ("learning_rate: 1e-6\nmax_completion_lenght: 9\n", {("misspelled", "max_completion_lenght")}),
        ("actor_rollout_ref: {actor: {ppo_mini_batchsize: 8, optim: {lr: fast}}}\n",
         {("misspelled", "actor_rollout_ref.actor.ppo_mini_batchsize"), ("no-number", "actor_rollout_ref.actor.optim.lr")}),
        # nothing of these is a mistake
        ("learning_rate: 1e-6\nnum_generations_eval: 4\nmax_prompt_length: 9\neval_steps: 5\nmy_own_setting: x\n", set()),
        ("zero_optimization: {stage: 2}\ntrain_batch_size: auto\noptimizer: {params: {lr: auto}}\n", set()),
        ("actor_rollout_ref: {actor: {clip_ratio: 0.2, clip_ratio_low: 0.2, clip_ratio_c: 3, optim: {lr: 1e-6}}}\n"
         "trainer: {n_gpus_per_node: '${oc.env:GPUS}', nnodes: 1, total_training_steps: null}\n", set()),
    ],
)  # fmt: skip
def test_misspelled_settings_and_words_for_numbers_are_named_and_strange_ones_are_left_alone(
    tmp_path: Path, text: str, named: set[tuple[str, str]]
) -> None:
    path = tmp_path / ("a.json" if text.startswith("{") else "a.yaml")
    path.write_text(text)
    report = check_config(path)
    assert {(fault.code, fault.where) for fault in report.faults} == named
    assert report.exit_code == bool(named)


def test_our_own_settings_are_checked_with_their_rules(tmp_path: Path, capsys: Any) -> None:
    good = Path(__file__).resolve().parents[2] / "config.example.yaml"
    assert main(["check", "config", str(good)]) == 0
    (tmp_path / "a.yaml").write_text("halting:\n  enabeld: true\n")
    assert codes(check_config(tmp_path / "a.yaml")) == {"own-config"}
    capsys.readouterr()
    for text in ("", "- 1", "{", "colour: red"):
        (tmp_path / "a.yaml").write_text(text)
        assert main(["check", "config", str(tmp_path / "a.yaml"), "--json"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
