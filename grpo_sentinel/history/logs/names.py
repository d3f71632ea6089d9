"""Which raw metric name of which trainer is which signal of the catalogue.

The raw name always stays beside the canonical one: a name without an entry here is still a series, only no rule
of ours knows what it means.
"""

from __future__ import annotations

import re
from functools import lru_cache

EXACT: dict[str, str] = {
    # TRL, transformers, unsloth, ms-swift, LLaMA-Factory
    "loss": "policy.loss",
    "train/loss": "policy.loss",
    "lm loss": "policy.loss",
    "lm_loss": "policy.loss",
    "grad_norm": "gradient.norm_preclip",
    "grad norm": "gradient.norm_preclip",
    "train/grad_norm": "gradient.norm_preclip",
    "learning_rate": "optimizer.learning_rate",
    "learning rate": "optimizer.learning_rate",
    "lr": "optimizer.learning_rate",
    "reward": "reward.mean",
    "reward_std": "reward.group_std_mean",
    "frac_reward_zero_std": "reward.zero_std_ratio",
    "kl": "policy.kl_k3_nats",
    "entropy": "policy.entropy_nats",
    "entropy/mean": "policy.entropy_nats",
    "completions/mean_length": "data.completion_length_mean",
    "completion_length": "data.completion_length_mean",
    "completions/min_length": "data.completion_length_min",
    "completions/max_length": "data.completion_length_max",
    "completions/clipped_ratio": "data.truncated_ratio",
    "clip_ratio/region_mean": "policy.clip_ratio",
    "clip_ratio": "policy.clip_ratio",
    "clip_ratio/low_mean": "policy.clip_low_ratio",
    "clip_ratio/high_mean": "policy.clip_high_ratio",
    "step_time": "time.step_seconds",
    "sampling/sampling_logp_difference/mean": "policy.sampling_gap_mean_nats",
    "sampling/sampling_logp_difference/max": "policy.sampling_gap_max_nats",
    # verl and its forks
    "actor/pg_loss": "policy.pg_loss",
    "actor/loss": "policy.loss",
    "actor/kl_loss": "policy.kl_loss",
    "actor/entropy": "policy.entropy_nats",
    "actor/entropy_loss": "policy.entropy_nats",
    "actor/grad_norm": "gradient.norm_preclip",
    "actor/lr": "optimizer.learning_rate",
    "actor/pg_clipfrac": "policy.clip_ratio",
    "actor/ppo_kl": "policy.approx_kl_nats",
    "critic/kl": "policy.kl_k1_nats",
    "critic/score/mean": "reward.mean",
    "critic/score/max": "reward.max",
    "critic/score/min": "reward.min",
    "critic/advantages/max": "policy.advantage_abs_max",
    "response_length/mean": "data.completion_length_mean",
    "response_length/max": "data.completion_length_max",
    "response_length/min": "data.completion_length_min",
    "response_length/clip_ratio": "data.truncated_ratio",
    "prompt_length/clip_ratio": "data.prompt_clip_ratio",
    "timing_s/step": "time.step_seconds",
    "training/rollout_probs_diff_mean": "policy.sampling_gap_mean_nats",
    "training/rollout_actor_probs_pearson_corr": "policy.sampling_correlation",
    # OpenRLHF
    "policy_loss": "policy.loss",
    "actor_grad_norm": "gradient.norm_preclip",
    "actor_lr": "optimizer.learning_rate",
    "act_lr": "optimizer.learning_rate",
    "ppo_clip_ratio": "policy.clip_ratio",
    "ppo_kl": "policy.approx_kl_nats",
    "entropy_loss": "policy.entropy_nats",
    "group_reward_std": "reward.group_std_mean",
    "response_length": "data.completion_length_mean",
    "vllm_vs_local_logprob_diff_mean": "policy.sampling_gap_mean_nats",
    "logprob_gap": "policy.sampling_gap_mean_nats",
    "vllm_kl": "policy.sampling_k3_nats",
    "logprobs_diff": "policy.sampling_gap_mean_nats",
    # NeMo-RL
    "Loss": "policy.loss",
    "Avg Reward": "reward.mean",
    "Avg Filtered Reward": "reward.mean",
    "Generation KL Error": "policy.sampling_k3_nats",
    "Mean Generation Length": "data.completion_length_mean",
    "Total step time": "time.step_seconds",
    "token_mult_prob_error": "policy.sampling_mult_error",
    # slime, miles
    "train/pg_clipfrac": "policy.clip_ratio",
    "train/ppo_kl": "policy.approx_kl_nats",
    "train/entropy_loss": "policy.entropy_nats",
    "train/train_rollout_logprob_abs_diff": "policy.sampling_gap_mean_nats",
    "train/lr-pg_0": "optimizer.learning_rate",
    "kl_loss": "policy.kl_loss",
    "pg_loss": "policy.pg_loss",
    "rollout/raw_reward": "reward.mean",
    "rollout/response_lengths": "data.completion_length_mean",
    "rollout/response_len/mean": "data.completion_length_mean",
    "rollout/truncated": "data.truncated_ratio",
    "rollout/truncated_ratio": "data.truncated_ratio",
    # TRL's PPO, open-instruct, prime-rl
    "objective/kl": "policy.kl_k1_nats",
    "objective/kl_avg": "policy.kl_k1_nats",
    "policy/clipfrac_avg": "policy.clip_ratio",
    "policy/approxkl_avg": "policy.approx_kl_nats",
    "ppo/policy/clipfrac": "policy.clip_ratio",
    "ppo/policy/approxkl": "policy.approx_kl_nats",
    "objective/entropy": "policy.entropy_nats",
    "policy/entropy_avg": "policy.entropy_nats",
    "objective/scores": "reward.mean",
    "env/reward_mean": "reward.mean",
    "ppo/mean_scores": "reward.mean",
    "loss/policy_avg": "policy.loss",
    "ppo/loss/policy": "policy.loss",
    "mismatch_kl": "policy.sampling_k3_nats",
    "entropy_avg": "policy.entropy_nats",
    "seq_length": "data.completion_length_mean",
    # AReaL
    "ppo_actor/task_reward/avg": "reward.mean",
    "ppo_actor/update/actor_loss/avg": "policy.loss",
    "ppo_actor/update/entropy/avg": "policy.entropy_nats",
    "ppo_actor/update/grad_norm": "gradient.norm_preclip",
    "ppo_actor/update/grad_norm/avg": "gradient.norm_preclip",
    "ppo_actor/update/clip_ratio/avg": "policy.clip_ratio",
    "ppo_actor/update/approx_kl/avg": "policy.approx_kl_nats",
    "ppo_actor/update/lr": "optimizer.learning_rate",
    "ppo_actor/update/lr/avg": "optimizer.learning_rate",
    "ppo_actor/no_eos_ratios/avg": "data.truncated_ratio",
    "ppo_actor/seq_len/avg": "data.completion_length_mean",
    "timeperf/train_step": "time.step_seconds",
    # SkyRL
    "policy/policy_loss": "policy.loss",
    "policy/raw_grad_norm": "gradient.norm_preclip",
    "policy/ppo_clip_ratio": "policy.clip_ratio",
    "policy/policy_lr": "optimizer.learning_rate",
    "policy/policy_entropy": "policy.entropy_nats",
    "reward/avg_raw_reward": "reward.mean",
    "avg_raw_rewards": "reward.mean",
    "avg_final_rewards": "reward.mean",
    "avg_response_length": "data.completion_length_mean",
    # EasyR1, older OpenRLHF
    "reward/overall": "reward.mean",
    "truncated": "data.truncated_ratio",
    "truncated_rate": "data.truncated_ratio",
    # DeepSpeed-Chat, trlX, Megatron
    "act_loss": "policy.loss",
    "losses/policy_loss": "policy.loss",
    "loss scale": "optimizer.loss_scale",
    "loss_scale": "optimizer.loss_scale",
    "average reward score": "reward.mean",
}

_REWARD = re.compile(r"rewards/(?P<func>.+?)(?:/(?P<stat>mean|std))?$")


@lru_cache(maxsize=4096)
def canonical(raw: str) -> str | None:
    """Give the catalogue's signal for a raw metric name, None when it has none."""
    known = EXACT.get(raw)
    if known is not None:
        return known
    if raw.startswith("train/"):
        return canonical(raw[len("train/") :])
    found = _REWARD.match(raw)
    if found:
        return f"reward.func_{found['stat'] or 'mean'}[{found['func']}]"
    plain = raw.lower().replace(". ", "_").replace(" ", "_")  # `Grad. Norm`, `Learning Rate`
    return EXACT.get(plain) if plain != raw else None
