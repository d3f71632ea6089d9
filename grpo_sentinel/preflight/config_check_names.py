"""Settings of trainers under one name each: what TRL, verl, OpenRLHF and DeepSpeed call the same thing."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from grpo_sentinel.errors import SentinelError

_TRL = {
    "per_device_train_batch_size": "micro_batch", "gradient_accumulation_steps": "accumulation",
    "num_generations": "group_size", "generation_batch_size": "generation_batch",
    "steps_per_generation": "steps_per_generation", "epsilon": "epsilon", "epsilon_high": "epsilon_high",
    "beta": "beta", "learning_rate": "learning_rate", "lr_scheduler_type": "schedule", "warmup_steps": "warmup_steps",
    "warmup_ratio": "warmup_ratio", "max_steps": "total_steps", "save_strategy": "save_strategy",
    "save_steps": "save_steps", "save_total_limit": "save_limit", "save_only_model": "save_only_model",
    "temperature": "temperature", "max_grad_norm": "max_grad_norm", "fp16": "fp16", "use_peft": "use_peft",
    "world_size": "world_size", "logging_nan_inf_filter": "nan_filter", "scale_rewards": "scale_rewards",
    "num_train_epochs": "epochs", "max_completion_length": "completion_length", "weight_decay": "weight_decay",
    "num_iterations": "iterations", "logging_steps": "logging_steps", "bf16": "bf16",
    "fp16_full_eval": "fp16_eval", "bf16_full_eval": "bf16_eval", "auto_find_batch_size": "auto_batch",
    "eval_strategy": "eval_strategy", "do_eval": "do_eval", "per_device_eval_batch_size": "eval_batch",
    "num_generations_eval": "eval_group_size", "delta": "delta", "loss_type": "loss_type", "top_p": "top_p",
    "top_k": "top_k", "lr_scheduler_kwargs.min_lr": "least_rate", "lr_scheduler_kwargs.lr_end": "least_rate",
    "lr_scheduler_kwargs.min_lr_rate": "least_share", "max_prompt_length": "prompt_length",
    "vllm_max_model_len": "engine_length", "vllm_max_model_length": "engine_length", "model": "model",
    "model_name_or_path": "model", "use_vllm": "use_engine", "vllm_mode": "engine_mode",
    "vllm_gpu_memory_utilization": "engine_memory", "vllm_enable_sleep_mode": "engine_sleeps",
    "load_best_model_at_end": "load_best", "num_processes": "world_size",
}  # fmt: skip
_VERL = {
    "data.train_batch_size": "prompts", "actor_rollout_ref.rollout.n": "group_size",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "mini_batch_prompts",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "micro_batch",
    "actor_rollout_ref.actor.use_dynamic_bsz": "dynamic_batch", "actor_rollout_ref.actor.clip_ratio": "epsilon",
    "actor_rollout_ref.actor.clip_ratio_high": "epsilon_high", "actor_rollout_ref.actor.kl_loss_coef": "beta",
    "actor_rollout_ref.actor.optim.lr": "learning_rate", "actor_rollout_ref.actor.grad_clip": "max_grad_norm",
    "actor_rollout_ref.rollout.temperature": "temperature", "trainer.save_freq": "save_steps",
    "trainer.total_training_steps": "total_steps", "trainer.max_actor_ckpt_to_keep": "save_limit",
    "actor_rollout_ref.actor.optim.lr_warmup_steps": "warmup_steps",
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": "warmup_ratio", "algorithm.adv_estimator": "algorithm",
    "data.max_response_length": "completion_length", "trainer.total_epochs": "epochs",
    "data.max_prompt_length": "prompt_length", "actor_rollout_ref.model.path": "model",
    "actor_rollout_ref.actor.clip_ratio_low": "epsilon", "actor_rollout_ref.rollout.max_model_len": "engine_length",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "engine_memory",
    "actor_rollout_ref.rollout.free_cache_engine": "engine_sleeps",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "engine_ranks",
    "actor_rollout_ref.rollout.top_p": "top_p", "actor_rollout_ref.rollout.top_k": "top_k",
    "actor_rollout_ref.actor.ppo_micro_batch_size": "micro_batch_all",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "loss_type",
    "actor_rollout_ref.actor.use_kl_loss": "kl_in_loss", "algorithm.use_kl_in_reward": "kl_in_reward",
    "actor_rollout_ref.actor.optim.warmup_style": "schedule",
    "actor_rollout_ref.actor.optim.lr_scheduler_type": "schedule",
    "actor_rollout_ref.actor.optim.min_lr_ratio": "least_share",
    "actor_rollout_ref.actor.checkpoint.contents": "save_contents",
    "actor_rollout_ref.actor.checkpoint.save_contents": "save_contents",
}  # fmt: skip
_OPENRLHF = {
    "n_samples_per_prompt": "group_size", "train_batch_size": "train_batch", "micro_train_batch_size": "micro_batch",
    "rollout_batch_size": "prompts", "eps_clip": "epsilon", "eps_clip_low_high": "epsilon_pair",
    "init_kl_coef": "beta", "actor_learning_rate": "learning_rate", "lr_scheduler": "schedule",
    "lr_warmup_ratio": "warmup_ratio", "save_steps": "save_steps", "max_ckpt_num": "save_limit",
    "temperature": "temperature", "max_norm": "max_grad_norm", "advantage_estimator": "algorithm",
    "micro_rollout_batch_size": "micro_rollout", "prompt_max_len": "prompt_length",
    "generate_max_len": "completion_length", "max_len": "engine_length", "pretrain": "model", "top_p": "top_p",
    "vllm_gpu_memory_utilization": "engine_memory", "vllm_enable_sleep": "engine_sleeps",
    "colocate_all_models": "colocated", "vllm_num_engines": "engines", "vllm_tensor_parallel_size": "engine_ranks",
    "use_dynamic_batch": "dynamic_batch", "disable_ds_ckpt": "save_only_model", "num_episodes": "epochs",
    "use_kl_loss": "kl_in_loss", "async_train": "asynchronous",
    # since 0.10 its options have sections
    "rollout.n_samples_per_prompt": "group_size", "train.batch_size": "train_batch",
    "train.micro_batch_size": "micro_batch", "rollout.batch_size": "prompts",
    "rollout.micro_batch_size": "micro_rollout",
    "actor.eps_clip": "epsilon", "actor.eps_clip_low_high": "epsilon_pair", "algo.kl.init_coef": "beta",
    "actor.adam.lr": "learning_rate", "actor.lr_scheduler": "schedule", "actor.lr_warmup_ratio": "warmup_ratio",
    "actor.max_norm": "max_grad_norm", "ckpt.save_steps": "save_steps", "ckpt.max_num": "save_limit",
    "ckpt.disable_ds": "save_only_model", "rollout.temperature": "temperature", "rollout.top_p": "top_p",
    "algo.advantage.estimator": "algorithm", "rollout.max_new_tokens": "completion_length",
    "data.max_len": "engine_length", "actor.model_name_or_path": "model",
    "vllm.gpu_memory_utilization": "engine_memory", "vllm.enable_sleep": "engine_sleeps",
    "train.colocate_all": "colocated", "vllm.num_engines": "engines", "vllm.tensor_parallel_size": "engine_ranks",
    "train.dynamic_batch_enable": "dynamic_batch", "train.num_episodes": "epochs", "algo.kl.use_loss": "kl_in_loss",
    "train.async_enable": "asynchronous",
}  # fmt: skip
_DEEPSPEED = {
    "train_batch_size": "train_batch", "train_micro_batch_size_per_gpu": "micro_batch",
    "gradient_accumulation_steps": "accumulation", "gradient_clipping": "max_grad_norm",
    "optimizer.params.lr": "learning_rate", "fp16.enabled": "fp16", "bf16.enabled": "bf16",
}  # fmt: skip
_TRAINERS: tuple[tuple[str, Mapping[str, str], tuple[str, ...]], ...] = (
    ("verl", _VERL, ("actor_rollout_ref.", "algorithm.adv_estimator")),
    ("DeepSpeed", _DEEPSPEED, ("zero_optimization.", "train_micro_batch_size_per_gpu")),
    (
        "OpenRLHF",
        _OPENRLHF,
        ("n_samples_per_prompt", "micro_train_batch_size", "init_kl_coef", "algo.", "rollout.n_samples_per_prompt"),
    ),
    (
        "TRL",
        _TRL,
        ("num_generations", "per_device_train_batch_size", "learning_rate", "lr_scheduler_type", "max_steps"),
    ),
)


_COMPLETE: Mapping[str, Mapping[str, Any]] = {
    "verl": {"save_steps": -1, "group_size": 1, "algorithm": "gae", "prompts": 1024, "mini_batch_prompts": 256},
    "OpenRLHF": {
        "save_steps": -1, "group_size": 1, "algorithm": "gae", "prompts": 1024, "train_batch": 128, "micro_batch": 4,
        "engine_memory": 0.95,
    },
}  # fmt: skip
"""What holds where a command line, which is all that the trainer is told, does not say it."""
_RANKS: Mapping[str, tuple[tuple[tuple[str, str], ...], tuple[str, ...]]] = {
    "verl": (
        (("trainer.n_gpus_per_node", "trainer.nnodes"),),
        (
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
            "actor_rollout_ref.actor.megatron.tensor_model_parallel_size",
            "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size",
            "actor_rollout_ref.actor.megatron.context_parallel_size",
        ),
    ),
    "OpenRLHF": (
        (("actor_num_gpus_per_node", "actor_num_nodes"), ("actor.num_gpus_per_node", "actor.num_nodes")),
        ("ring_attn_size", "ds_tensor_parallel_size", "ds.ring_attn_size", "ds.tensor_parallel_size"),
    ),
}  # fmt: skip
"""Settings whose product is the number of GPUs, and those by which so many GPUs share one sample."""


@dataclass(slots=True)
class Settings:
    """What a trainer's file says, under our names; `keys` gives the trainer's name of each."""

    trainer: str
    values: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    told: frozenset[str] = frozenset()  # of `values`: those that are no defaults

    def number(self, name: str) -> float | None:
        """Give a setting as a finite number; None when it is missing, "auto", or no such number."""
        value = self.values.get(name)
        if isinstance(value, bool):
            return float(value)
        try:
            number = float(value) if value is not None else None
        except (TypeError, ValueError, OverflowError):  # the last: an integer of more than 300 digits
            return None
        return number if number is not None and math.isfinite(number) else None

    def key(self, name: str) -> str:
        """What the trainer calls it."""
        return self.keys.get(name, name)


def flatten(body: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Join nested keys with dots."""
    out: dict[str, Any] = {}
    for key, value in body.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and depth < 16:
            out.update(flatten(value, f"{name}.", depth + 1))
        else:
            out[name] = value
    return out


def names_of(trainer: str) -> Mapping[str, str]:
    """The keys of one trainer's file that are read, with dots, and our name of each."""
    return next(names for name, names, _ in _TRAINERS if name == trainer)


def settings_in(flat: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The trainer's settings, which some files keep in a section ("grpo:") beside others, and the name of that section.

    The section is "" where the file is nothing but settings, or is nobody's.
    """
    sections = dict.fromkeys(("", *(key.rpartition(".")[0] for key in flat)))
    for section in sections:
        start = f"{section}." if section else ""
        inside = {key.removeprefix(start): value for key, value in flat.items() if key.startswith(start)}
        if any(_marks(key, mark, 1.0) for key in inside for _, _, marks in _TRAINERS for mark in marks):
            return inside, section
    return dict(flat), ""


def _marks(key: str, mark: str, likeness: float) -> bool:
    if mark.endswith("."):
        return key.startswith(mark)
    return key == mark or (likeness < 1 and difflib.SequenceMatcher(None, key, mark).ratio() >= likeness)


def recognise_trainer(flat: Mapping[str, Any], place: str, *, complete: bool = False) -> Settings:
    """Find whose settings they are and translate their names; `complete`: what they do not say has its default.

    Raises `SentinelError` when they are nobody's.
    """
    for likeness, (trainer, names, marks) in product((1.0, 0.92), _TRAINERS):  # as written, then with a slip
        if any(_marks(key, mark, likeness) for key in flat for mark in marks):
            told = {ours: theirs for theirs, ours in names.items() if flat.get(theirs) is not None}
            values: dict[str, Any] = dict(_COMPLETE.get(trainer, {})) if complete else {}
            values |= {ours: flat[theirs] for ours, theirs in told.items()}
            keys = {ours: theirs for theirs, ours in reversed(list(names.items()))} | told
            values |= _ranks(trainer, flat)
            return Settings(trainer, values, keys, frozenset(told))
    known = ", ".join(sorted(flat)[:8])
    raise SentinelError(
        f"{place}: these settings ({known}) are neither grpo-sentinel's nor those of TRL, verl, OpenRLHF or DeepSpeed"
    )


def _ranks(trainer: str, flat: Mapping[str, Any]) -> dict[str, int]:
    """GPUs, and ranks that have samples of their own; {} where that is not told."""
    if trainer not in _RANKS:
        return {}
    products, shared = _RANKS[trainer]
    try:  # null, or ${oc.env:...}
        by_node, nodes = next((pair for pair in products if pair[0] in flat), products[0])
        gpus = ranks = int(flat[by_node]) * int(flat[nodes])
        for name in shared:
            ranks //= max(1, int(flat.get(name) or 1))
    except (KeyError, TypeError, ValueError, OverflowError):
        return {}
    return {"world_size": ranks, "gpus": gpus}


__all__ = ["Settings", "flatten", "names_of", "recognise_trainer", "settings_in"]
