"""Settings that a trainer would never read: keys one slip away from a known one, and words where a number belongs.

Trainers have hundreds of settings and their users add more, so a key that resembles nothing is left alone. TRL's are
known by name (TRL 0.19 to 1.16 with transformers' `TrainingArguments`), and any key close to one of them is a slip; of
the others only what this check reads is known, so the likeness must be greater.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from grpo_sentinel.preflight.config_check_names import Settings, names_of
from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import Fault

_NO_NUMBERS = {
    "schedule", "save_strategy", "save_only_model", "fp16", "use_peft", "nan_filter", "scale_rewards", "dynamic_batch",
    "algorithm", "epsilon_pair", "bf16", "fp16_eval", "bf16_eval", "auto_batch", "eval_strategy", "do_eval",
    "loss_type", "model", "use_engine", "engine_mode", "engine_sleeps", "load_best", "kl_in_loss",
    "kl_in_reward", "save_contents", "colocated", "asynchronous",
}  # fmt: skip
_LIKENESS_TRL, _LIKENESS = 0.88, 0.92  # of difflib: one wrong letter in 9, in 13
_LETTERS = 4  # shorter names resemble one another by chance
_TRL_TEXT = """
    accelerator_config activation_checkpointing activation_checkpointing_kwargs adafactor adam_beta1 adam_beta2
    adam_epsilon attn_implementation auto_find_batch_size average_tokens_across_devices batch_eval_metrics
    benchmarks beta bf16 bf16_full_eval bnb_4bit_quant_storage bnb_4bit_quant_type cache_implementation
    callbacks cast_lm_head_to_fp32 chat_template chat_template_kwargs data_seed dataloader_drop_last
    dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers dataloader_persistent_workers
    dataloader_pin_memory dataloader_prefetch_factor dataset_config dataset_name dataset_num_proc
    dataset_prompt_column dataset_streaming dataset_test_split dataset_text_field dataset_train_split datasets
    ddp_backend ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout
    debug deepspeed delta disable_dropout disable_tqdm dispatch_batches distributed_type do_eval do_predict
    do_train ds3_gather_for_generation dtype enable_jit_checkpoint entropy_coef entropy_coef_delta
    entropy_coef_max entropy_coef_min entropy_target epsilon epsilon_high epsilon_low eval_accumulation_steps
    eval_delay eval_do_concat_batches eval_on_start eval_packing eval_steps eval_strategy eval_use_gather_object
    evaluation_strategy fp16 fp16_backend fp16_full_eval fp16_opt_level fsdp fsdp_config full_determinism
    generation_batch_size generation_kwargs gradient_accumulation_steps gradient_checkpointing
    gradient_checkpointing_kwargs greater_is_better group_by_length half_precision_backend hub_always_push
    hub_model_id hub_model_revision hub_private_repo hub_revision hub_strategy hub_token ignore_bias_buffers
    ignore_data_skip importance_sampling_level include_for_metrics include_inputs_for_metrics
    include_num_input_tokens_seen jit_mode_eval label_names label_smoothing_factor learning_rate
    length_column_name liger_kernel_config load_best_model_at_end load_in_4bit load_in_8bit local_rank
    log_completions log_completions_hub_repo log_level log_level_replica log_multimodal log_on_each_node
    log_unique_prompts logging_dir logging_first_step logging_nan_inf_filter logging_steps logging_strategy
    lora_alpha lora_dropout lora_modules_to_save lora_r lora_target_modules lora_target_parameters
    lora_task_type loss_type lr_scheduler_kwargs lr_scheduler_type mask_truncated_completions
    max_completion_length max_eval_samples max_grad_norm max_length max_prompt_length max_seq_length max_steps
    max_tool_calling_iterations max_train_samples metric_for_best_model min_p mixed_precision model_init_kwargs
    model_name model_name_or_path model_revision multi_objective_aggregation neftune_noise_alpha no_cuda
    num_completions_to_print num_generations num_generations_eval num_iterations num_processes num_train_epochs
    off_policy_mask_threshold optim optim_args optim_target_modules output_dir overwrite_output_dir packing
    pad_to_multiple_of parallelism_config past_index per_device_eval_batch_size per_device_train_batch_size
    per_gpu_eval_batch_size per_gpu_train_batch_size prediction_loss_only project push_to_hub
    push_to_hub_model_id push_to_hub_token ray_scope ref_model_mixup_alpha ref_model_sync_steps
    remove_unused_columns repetition_penalty report_to restore_callback_states_from_checkpoint resume
    resume_from_checkpoint reward_funcs reward_model_name_or_path reward_weights router_aux_loss_coef run_name
    sapo_temperature_neg sapo_temperature_pos save_on_each_node save_only_model save_safetensors save_steps
    save_strategy save_total_limit scale_rewards seed shuffle_dataset skip_memory_metrics split_batches
    steps_per_generation sync_ref_model system_prompt temperature tf32 tokenizer_name top_entropy_quantile top_k
    top_p torch_compile torch_compile_backend torch_compile_mode torch_dtype torch_empty_cache_steps torchdynamo
    tpu_num_cores trackio_bucket_id trackio_space_id trackio_static_space_id train_sampling_strategy
    transformers_continuous_batching_config trust_remote_code use_adaptive_entropy use_bias_correction_kl
    use_bnb_nested_quant use_cache use_cpu use_dora use_ipex use_liger_kernel use_liger_loss use_mps_device
    use_peft use_reentrant use_rslora use_transformers_continuous_batching use_transformers_paged use_vllm
    vespo_k_neg vespo_k_pos vespo_lambda_neg vespo_lambda_pos vllm_device vllm_dtype vllm_enable_prefix_caching
    vllm_enable_sleep_mode vllm_gpu_memory_utilization vllm_group_port vllm_guided_decoding_regex
    vllm_importance_sampling_cap vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min
    vllm_importance_sampling_correction vllm_importance_sampling_mode vllm_max_model_len vllm_max_model_length
    vllm_mode vllm_model_impl vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout
    vllm_structured_outputs_regex vllm_tensor_parallel_size wandb_log_unique_prompts warmup_ratio warmup_steps
    weight_decay world_size
"""
_TRL_NAMES = _TRL_TEXT.split()


def slips(settings: Settings, flat: Mapping[str, object]) -> list[Fault]:
    """Find misspelled keys and values that are no numbers; `flat` is the file with its keys joined by dots."""
    return [*_misspelled(settings.trainer, flat), *_no_numbers(settings)]


def _misspelled(trainer: str, flat: Mapping[str, object]) -> list[Fault]:
    read = names_of(trainer)
    known = {*read, *_TRL_NAMES} if trainer == "TRL" else set(read)
    likeness = _LIKENESS_TRL if trainer == "TRL" else _LIKENESS
    found = []
    for key, value in flat.items():
        section, _, name = key.rpartition(".")
        if key in known or len(name) < _LETTERS:
            continue
        siblings = [one.rpartition(".")[2] for one in known if one.rpartition(".")[0] == section and one not in flat]
        near = difflib.get_close_matches(name.lower().replace("-", "_"), siblings, n=1, cutoff=likeness)
        if near:
            message = f"{key}: {trainer} knows no such setting, probably {near[0]} is meant (here {_short(value)})"
            found.append(_fault("misspelled", key, message, f"write {near[0]}"))
    return found


def _no_numbers(settings: Settings) -> list[Fault]:
    found = []
    for name, value in settings.values.items():
        if name in _NO_NUMBERS or (isinstance(value, str) and (value == "auto" or "$" in value)):
            continue
        number = None if isinstance(value, bool) else settings.number(name)
        if number is None:
            key = settings.key(name)
            found.append(_fault("no-number", key, f"{key}: {_short(value)} is no number", "give a finite number"))
    return found


def _fault(code: str, key: str, message: str, remedy: str) -> Fault:
    return Fault(level=Level.BROKEN, code=code, where=key, subject=key, message=message, remedy=remedy)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


__all__ = ["slips"]
