"""Every signal once: the vocabulary that agent, rules, sinks, dashboards and docs share.

A signal is named `layer.name_unit`. A signal with a `dimension` exists once per value of it and is written
`name[value]`, for example `reward.func_mean[accuracy]` or `gradient.group_norm[model.layers.0]`.

Ranks of one step merge by `merge`: `same` (replicas must agree exactly), `sum`, `mean`, `max`, `min`, or `own`
(only ever looked at per rank).
"""

from __future__ import annotations

from dataclasses import dataclass

LAYERS = ("data", "reward", "policy", "gradient", "optimizer", "memory", "device", "time", "sentinel")
"""Order of the backward walk: a fault shows first in the lowest layer it touches. `time` and `device` stand beside."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One named number: `unit` is a base unit, `ratio` (0 to 1), `nats`, `tokens`, `count`, `flag` (0 or 1) or ``."""

    name: str
    unit: str
    kind: str  # gauge | counter
    merge: str  # same | sum | mean | max | min | own
    help: str
    dimension: str = ""

    @property
    def layer(self) -> str:
        return self.name.partition(".")[0]


def _table(rows: str) -> dict[str, Signal]:
    """Read the table below: `name | unit | kind | merge | help`; a name ending in `[x]` has the dimension x."""
    out: dict[str, Signal] = {}
    for row in rows.strip().splitlines():
        if not row.strip() or row.startswith("#"):
            continue
        name, unit, kind, merge, text = (part.strip() for part in row.split("|", 4))
        name, _, dimension = name.rstrip("]").partition("[")
        if name in out:
            raise ValueError(f"catalog: signal {name} stands twice")
        out[name] = Signal(name, unit, kind, merge, text, dimension)
    return out


SIGNALS: dict[str, Signal] = _table("""
# ---- data: the micro-batches of one optimizer step, before their forward
data.samples | count | gauge | sum | completions (rows) in the step's batches
data.tokens | tokens | gauge | sum | unmasked tokens, prompt and completion
data.completion_tokens | tokens | gauge | sum | completion tokens that enter the loss
data.token_id_min | | gauge | min | smallest token id of any position, padding included
data.token_id_max | | gauge | max | largest token id of any position, padding included
data.vocab_size | | gauge | same | rows of the embedding, the bound of every token id
data.out_of_vocabulary | count | gauge | sum | token ids outside [0, vocab_size), padding included: it is looked up as well
data.empty_rows | count | gauge | sum | rows whose attention mask (prompt and completion) is all zero
data.empty_prompt_rows | count | gauge | sum | rows whose prompt mask is all zero
data.masked_completions | count | gauge | sum | rows whose completion mask is all zero: no token of them enters the loss
data.masked_completion_ratio | ratio | gauge | mean | masked_completions / samples
data.nonbinary_mask | count | gauge | sum | mask elements that are neither 0 nor 1
data.shape_mismatch | count | gauge | sum | tensors of the batch whose shape contradicts the ids: rows, or tokens of prompt, completion or both
data.device_mismatch | count | gauge | sum | tensors of the batch on another device than the model
data.dtype_mismatch | count | gauge | sum | id tensors not integer, or mask, advantage and log-prob tensors of a type the loss does not expect
data.pad_ratio | ratio | gauge | mean | padding share of prompt and completion positions
data.eos_ratio | ratio | gauge | mean | completions that contain an end-of-sequence token inside their mask
data.unk_ratio | ratio | gauge | mean | unknown tokens among unmasked tokens
data.right_padded_prompts | count | gauge | sum | prompts whose last position is masked: padding to the right (generation needs it left)
data.prompt_length_mean | tokens | gauge | mean | mean prompt length
data.prompt_length_max | tokens | gauge | max | longest prompt
data.prompt_clip_ratio | ratio | gauge | mean | prompts as long as the longest allowed
data.completion_length_mean | tokens | gauge | mean | mean completion length
data.completion_length_min | tokens | gauge | min | shortest completion
data.completion_length_max | tokens | gauge | max | longest completion
data.truncated_ratio | ratio | gauge | mean | completions that reached max_completion_length without an end-of-sequence token, also those masked out for it
data.group_size | count | gauge | same | completions per prompt that the trainer is configured for
data.mixed_groups | count | gauge | sum | groups with more than one distinct prompt (by hash)
data.duplicate_prompt_ratio | ratio | gauge | mean | share of the groups' distinct prompts that also stand in another group of the generation batch
data.duplicate_completion_ratio | ratio | gauge | mean | 1 - distinct/size within a group, mean over groups
data.duplicate_over_ranks_ratio | ratio | gauge | max | this rank's samples (prompt and completion) that also stand on another rank, where every group stays on one rank
data.sample_age_steps | steps | gauge | max | optimizer steps between the generation of the trained samples and this one: 0 is on-policy
data.version_lag_max | count | gauge | max | versions of the weights between the oldest that sampled the batch and the trainer's own, where an asynchronous trainer gives both: the worst staleness; below 0 a sample is newer than the trainer
data.version_lag_mean | count | gauge | mean | the same, of each row's oldest token, mean over rows
data.version_ahead | count | gauge | sum | rows with a token of newer weights than the trainer has: versions are mixed up
data.version_spans_ratio | ratio | gauge | mean | rows whose tokens come from more than two versions of the weights
data.stale_dropped | count | gauge | sum | samples that the trainer threw away as too old before this step's batches
data.stale_dropped_ratio | ratio | gauge | mean | stale_dropped / (stale_dropped + samples)
data.sources | count | gauge | max | data sets among the newest 500 samples of this rank, where the trainer gives the source of a row (TRL: a column data_source, source, dataset or dataset_name)
data.source_imbalance | | gauge | max | samples of the most frequent of these over the rarest: 1 is even
data.sequence_length_imbalance | ratio | gauge | own | (longest - shortest) / mean of total lengths in the batch
# ---- reward: raw, before any nan-mean of the trainer
reward.mean | | gauge | mean | mean over finite samples of the combined reward: weighted sum of the functions, None left out
reward.std | | gauge | mean | standard deviation of the combined reward over finite samples
reward.min | | gauge | min | smallest finite combined reward
reward.max | | gauge | max | largest finite combined reward
reward.nonfinite | count | gauge | sum | samples whose combined reward is NaN or infinite
reward.func_mean[func] | | gauge | mean | mean of one reward function over finite samples
reward.func_std[func] | | gauge | mean | standard deviation of one reward function over finite samples
reward.func_min[func] | | gauge | min | smallest finite score
reward.func_max[func] | | gauge | max | largest finite score
reward.func_nonfinite[func] | count | gauge | sum | NaN (None counts as NaN) and infinite scores of one function
reward.func_nothing[func] | count | counter | sum | batches for which the function returned None in place of scores, since the start; absent while there are none
reward.func_infinite[func] | count | gauge | sum | infinite scores of one function
reward.func_samples[func] | count | gauge | sum | scores one function returned
reward.func_latency_seconds[func] | seconds | gauge | max | wall time of the slowest call of the function since the last record
reward.func_failures[func] | count | counter | sum | calls that raised
reward.func_sanitized[func] | count | counter | sum | scores that sanitize_rewards() replaced or clamped
reward.func_twin_mismatch[func] | count | gauge | sum | samples scored otherwise than an earlier sample of their group with the same completion, by more than 1 % of the batch's range; absent where no completion of a group repeats or completions are not known
reward.func_repeated[func] | flag | gauge | max | every sample got the score of the one in its place in the batch before, though half or more of the completions are others; absent where the scores hold less than 40 bits inside their groups, so that chance or the prompts may do it
reward.func_variance_share[func] | ratio | gauge | mean | variance of this function / sum of the variances of all functions (unweighted scores); with two functions or more
reward.group_std_mean | | gauge | mean | mean over groups of finite rewards of the sample standard deviation (n-1) inside the group
reward.zero_std_ratio | ratio | gauge | mean | groups whose rewards are all equal and finite, among groups of finite rewards
reward.all_right_ratio | ratio | gauge | mean | groups that are all equal and at the batch's maximum (too easy); absent when the whole batch is equal
reward.all_wrong_ratio | ratio | gauge | mean | groups that are all equal and at the batch's minimum (too hard, or a broken grader); absent when the whole batch is equal
reward.learnability_index | ratio | gauge | mean | mean over groups of sum_m C(n,m) p^m (1-p)^(n-m) sqrt(m/n (1-m/n)) with p the group's share of the higher of two scores: 0 is dead, 0.46 the most for n = 8; absent unless scores take just two values
reward.endpoint_prompt_ratio | ratio | gauge | mean | prompts that were solved in fewer than 5 % or more than 95 % of all samples of the run so far, among the 2048 newest of this rank that came in two generation batches or more; absent below 32 of them and where rewards take more than two values
reward.length_correlation | | gauge | mean | Pearson correlation of combined reward and completion length; absent when either does not vary
reward.bimodality | | gauge | mean | Sarle's coefficient of the newest 200 finite combined rewards: 1/3 for a normal distribution, 5/9 for an even one, more where there are two modes, near 1 for two values; absent below 32 rewards or where all are equal
reward.at_ceiling_ratio | ratio | gauge | mean | samples at the largest combined reward seen in the run so far
reward.model_training_modules[func] | count | gauge | max | submodules in training mode of a reward model, or of the reference model (then named `reference`)
reward.model_active_dropouts[func] | count | gauge | max | dropout modules (and attention dropouts) of a reward or reference model that are active: p > 0 in training mode
reward.model_trainable_parameters[func] | count | gauge | max | parameter tensors of a reward model with requires_grad; of the reference model, those that the optimizer holds
reward.model_head_bias[func] | | gauge | max | largest |bias| of the reward head
reward.model_autograd[func] | flag | gauge | max | scores (of the reference: its log-probs) still carry a grad_fn: the graph of that pass is kept alive
reward.model_dtypes[func] | count | gauge | max | distinct floating dtypes among the parameters of a reward or reference model (names: event `config`)
reward.model_bits[func] | count | gauge | min | bits of the narrowest of them: 16 for bf16 and fp16
reward.model_devices[func] | count | gauge | max | distinct devices among the parameters of a reward or reference model
reward.model_adapter_mismatch[func] | count | gauge | max | adapter layers of a reward or reference model that are on and should be off, or off and should be on
# ---- policy: per rank, before any reduction
policy.loss | | gauge | mean | local loss of the step: mean over its micro-batches of finite loss x accumulation steps, NaN when none is finite; near 0 on-policy is healthy
policy.loss_nonfinite | count | gauge | sum | micro-batches whose local loss is NaN or infinite
policy.pg_loss | | gauge | mean | policy-gradient term recomputed: token mean of -min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A)
policy.kl_loss | | gauge | mean | beta x kl_k3_nats (token mean)
policy.entropy_nats | nats | gauge | mean | token mean of the entropy of the policy's next-token distribution, over finite values inside the mask
policy.entropy_nonfinite | count | gauge | sum | NaN or infinite entropies inside the mask
policy.entropy_max_nats | nats | gauge | same | ln(vocab_size): nothing can exceed it
policy.logp_mean_nats | nats | gauge | mean | token mean of the sampled tokens' log-prob under the current policy, over finite values inside the mask
policy.logp_min_nats | nats | gauge | min | smallest log-prob of a sampled token
policy.logp_nonfinite | count | gauge | sum | NaN or infinite current log-probs inside the mask
policy.old_logp_nonfinite | count | gauge | sum | NaN or infinite old log-probs: the step before is to blame
policy.ref_logp_nonfinite | count | gauge | sum | NaN or infinite reference log-probs
policy.logp_positive | count | gauge | sum | log-probs above 0 (+1e-3): impossible
policy.advantage_mean | | gauge | mean | mean advantage
policy.advantage_std | | gauge | mean | sample standard deviation (n-1) of advantages
policy.advantage_abs_max | | gauge | max | largest |advantage|
policy.advantage_abs_bound | | gauge | same | (n-1)/sqrt(n) when advantages are scaled by the group's sample std; absent when no bound holds
policy.advantage_nonfinite | count | gauge | sum | NaN or infinite advantages
policy.advantage_zero_ratio | ratio | gauge | mean | rows whose advantage is exactly 0
policy.ratio_mean | ratio | gauge | mean | token mean of the importance ratio r = exp(logp - old_logp); per sequence (mean log-ratio) for GSPO
policy.ratio_max | ratio | gauge | max | largest importance ratio
policy.log_ratio_abs_max | nats | gauge | max | largest |logp - old_logp|
policy.on_policy | flag | gauge | same | the batch is trained on for the first time with the weights that sampled it: ratio must be 1
policy.clip_low_ratio | ratio | gauge | mean | masked tokens with ratio < 1 - epsilon_low and advantage < 0
policy.clip_high_ratio | ratio | gauge | mean | masked tokens with ratio > 1 + epsilon_high and advantage > 0
policy.clip_ratio | ratio | gauge | mean | clip_low_ratio + clip_high_ratio
policy.approx_kl_nats | nats | gauge | mean | k3 of the current against the old policy: r - 1 - ln r with r = pi_old/pi, token mean (Schulman 2020)
policy.kl_k1_nats | nats | gauge | mean | KL to the reference, k1: logp - ref_logp (may be negative)
policy.kl_k2_nats | nats | gauge | mean | KL to the reference, k2: (logp - ref_logp)^2 / 2
policy.kl_k3_nats | nats | gauge | mean | KL to the reference, k3: r - 1 - ln r with r = pi_ref/pi (Schulman 2020), never negative
policy.kl_k3_max_nats | nats | gauge | max | largest k3 of a token, recomputed in float64
policy.kl_reported_nats | nats | gauge | mean | KL to the reference as the trainer itself computed and logs it (TRL: its k3, mean over tokens and ranks): below 0 its formula is wrong
policy.kl_position_share | ratio | gauge | mean | share of the summed k3 that the quarter of the completions with the most of it carries: 0.25 is even
policy.kl_k3_overflow | count | gauge | sum | tokens whose k3 overflows to infinity in the log-probs' own dtype (ref_logp - logp > ln of its largest number)
policy.ess_ratio | ratio | gauge | mean | effective sample size of the importance weights over n: (sum w)^2 / (n sum w^2)
policy.sampling_gap_mean_nats | nats | gauge | mean | token mean |logp - sampling_logp|: rollout engine against trainer, whose log-prob is old_logp where there is one, else the current
policy.sampling_gap_max_nats | nats | gauge | max | largest |logp - sampling_logp|
policy.sampling_correlation | | gauge | mean | Pearson correlation of rollout and trainer probabilities exp(logp)
policy.sampling_mult_error | ratio | gauge | mean | mean exp|logp - sampling_logp| (token_mult_prob_error)
policy.sampling_confident_disagreements | count | gauge | sum | tokens the engine gave p >= 0.5 where the log-probs differ by more than 2 nats
policy.sampling_k3_nats | nats | gauge | mean | KL of rollout engine to trainer, k3: r - 1 - ln r with r = pi_trainer/pi_engine, token mean
policy.sampling_ppl_ratio | ratio | gauge | mean | perplexity of the completions for the trainer over that for the rollout engine: exp(mean(sampling_logp - logp))
policy.sampling_weight_mean | ratio | gauge | mean | token mean of the importance weight w = exp(logp - sampling_logp) of trainer over rollout engine
policy.sampling_ess_ratio | ratio | gauge | mean | effective sample size of these weights over n: (sum w)^2 / (n sum w^2); mean(w^2) - 1 is sampling_weight_mean^2 / sampling_ess_ratio - 1
policy.sampling_capped_ratio | ratio | gauge | mean | importance weights of trainer over rollout engine that the cap of truncated importance sampling cuts or masks: of tokens, or of completions (product over tokens) where the trainer weights those; level and cap as the trainer is configured, else 2 per token
policy.sampling_probability_gap_max | | gauge | max | largest |exp(logp) - exp(sampling_logp)| of a token
policy.sampling_logp_nonfinite | count | gauge | sum | NaN or infinite log-probs of the rollout engine inside the mask
policy.entropy_first_nats | nats | gauge | mean | mean entropy over the first quarter of each completion's own tokens
policy.entropy_last_nats | nats | gauge | mean | mean entropy over the last quarter of each completion's own tokens
policy.repetition_ratio | ratio | gauge | mean | mean over completions of 4 tokens or more of the share of 4-grams that stood earlier in the same completion
policy.single_token_ratio | ratio | gauge | mean | completions in which one token takes more than 0.9 of the positions (8 or more tokens)
policy.activation_range_ratio | ratio | gauge | max | largest |output| of a watched block over the largest number of its dtype (65504 in fp16), in the training forward; every activations_every steps, off by default (name: event `named`)
policy.activation_nonfinite | count | gauge | max | watched blocks whose output holds NaN or infinity (names: event `named`)
policy.activation_std_min | | gauge | min | smallest standard deviation of the inputs of a watched activation function
policy.activation_std_ratio | | gauge | max | largest over smallest of these deviations over the model's depth
policy.dead_unit_ratio | ratio | gauge | max | units of a watched activation function that are above 0 at fewer than 1 % of the positions, in the module with the most
policy.expert_load_ratio | | gauge | max | tokens of the busiest expert over their mean per expert, in the router with the most: 1 is even, the number of experts over those chosen per token the most; padding counts
policy.expert_unused_ratio | ratio | gauge | max | experts without a token, in the router with the most
policy.input_grad_leaks | count | gauge | sum | loss inputs that should be detached (old, ref, sampling, advantages) and require grad
policy.loss_dtype_mismatch | count | gauge | sum | log-prob inputs of the loss (old, ref, sampling) whose dtype is not that of the current log-probs
policy.loss_device_mismatch | count | gauge | sum | inputs of the loss on another device than the current log-probs
# ---- gradient: before clipping
gradient.norm_preclip | | gauge | same | global L2 norm before clipping, as the trainer itself computed it where it does
gradient.norm_local | | gauge | own | L2 norm of what this rank holds (its shards; equals the global one under DDP)
gradient.norm_before_reduce | | gauge | own | root of the summed squares of this rank's own gradients before the all-reduce, over parameters and micro-batches, where hooks are armed
gradient.worst_micro_batch | | gauge | own | micro-batch (0-based) with the largest own gradient, or with a non-finite one, where hooks are armed
gradient.abs_max | | gauge | max | largest |g| over the parameters whose gradient is finite
gradient.abs_mean | | gauge | mean | mean of |g| over the finite elements of a hashed sample (standard error: std/sqrt(n), n = 8192 by default)
gradient.std | | gauge | mean | standard deviation of g: second moment from the exact norm, mean from the sample; absent when the norm is not finite
gradient.abs_p50 | | gauge | mean | median of |g| from a hashed sample of n = 8192 (standard error of the rank at most sqrt(q(1-q)/n), here 0.0055); exact when there are no more elements
gradient.abs_p95 | | gauge | mean | 95th percentile of |g|, same sample (standard error of the rank 0.0024)
gradient.abs_p99 | | gauge | mean | 99th percentile of |g|, same sample (standard error of the rank 0.0011)
gradient.nonfinite_tensors | count | gauge | max | parameters whose gradient holds NaN or infinity (names: event `nonfinite`)
gradient.nan_tensors | count | gauge | max | parameters whose gradient holds NaN
gradient.inf_tensors | count | gauge | max | parameters whose gradient holds infinity and no NaN
gradient.norm_overflow | flag | gauge | max | the norm is infinite though every element is finite
gradient.local_nonfinite_tensors | count | gauge | own | the same before the all-reduce: names the rank (armed after a norm that is not finite or far above its running level)
gradient.zero_tensors | count | gauge | max | parameters whose gradient is exactly zero everywhere; without the empty ones, as shards may be
gradient.missing_tensors | count | gauge | max | trainable parameters without a gradient
gradient.tensors | count | gauge | same | parameters with a gradient
gradient.clip_coefficient | ratio | gauge | same | factor applied by clipping: min(1, clip_limit / (norm_preclip + 1e-6)), 1 = none
gradient.carried_norm | | gauge | max | largest norm, over three small parameters, of what is in `.grad` when the first gradient of the step arrives: 0 where the step before was cleared
gradient.clip_limit | | gauge | same | max_grad_norm of the trainer; absent when it does not clip
gradient.top_share | ratio | gauge | max | share of the squared norm that the largest tensor carries; absent when the norm is 0 or not finite
gradient.group_norm[group] | | gauge | same | L2 norm of one block of layers on this rank (model.layers.3), or of one module outside the blocks
gradient.sparse_tensors | count | gauge | max | sparse gradients, read through their coalesced values
gradient.unread_tensors | count | gauge | max | gradients that cannot be read (meta, quantised, integer): unknown, not zero
# ---- optimizer
optimizer.learning_rate | | gauge | same | learning rate of the first group as the step used it
optimizer.beta1 | ratio | gauge | same | share of the first moment that a step keeps (first group; Adam and its kin)
optimizer.beta2 | ratio | gauge | same | share of the second moment that a step keeps
optimizer.weight_decay | | gauge | same | weight decay of the first group
optimizer.learning_rate_expected | | gauge | same | what the schedule says for this step; absent when there is none
optimizer.update_norm | | gauge | same | L2 norm of the weight change of this step, estimated from a hashed sample (relative standard error about 1 %)
optimizer.update_ratio | ratio | gauge | same | update_norm / weight_norm
optimizer.weight_norm | | gauge | same | L2 norm of the trained parameters after the step, exact
optimizer.weight_abs_max | | gauge | max | largest |weight| over the trained parameters that are finite, exact
optimizer.nonfinite_weights | count | gauge | max | trained parameter tensors that hold NaN or infinity after the step, exact, every step (names: event `nonfinite`)
optimizer.moment1_norm | | gauge | same | L2 norm of exp_avg (or momentum_buffer), from the same sample as update_norm
optimizer.moment2_norm | | gauge | same | L2 norm of exp_avg_sq, from the same sample as update_norm
optimizer.nonfinite_moments | count | gauge | max | moment tensors that hold NaN or infinity, exact, at every 16th step only
optimizer.skipped_updates | count | counter | max | updates that the gate stopped since the start
optimizer.scaler_skips | count | counter | max | updates that a mixed-precision scaler or engine skipped since the start
optimizer.step_skipped | flag | gauge | max | this step's update was stopped by the gate
optimizer.step_applied | flag | gauge | min | an update was really made: not stopped by the gate, not skipped by a scaler
optimizer.loss_scale | | gauge | same | loss scale of the scaler or engine
optimizer.unchanged_tensors | count | gauge | same | trained tensors of which no sampled element (32 or more each) changed in this step
optimizer.sampled_tensors | count | gauge | same | trained tensors in the sample of unchanged_tensors
optimizer.unheld_parameters | count | gauge | same | trainable parameters that no optimizer group holds
optimizer.stale_parameters | count | gauge | same | parameters in optimizer groups that the model does not hold any more
optimizer.state_shape_mismatch | count | gauge | same | moment tensors whose shape is not their parameter's
optimizer.bf16_swallowed_ratio | ratio | gauge | mean | sampled bf16 weights that were left bit-equal though their first moment (or gradient) is not zero
optimizer.bf16_image_same_ratio | ratio | gauge | mean | float32 weights whose bf16 image is the same after the step, from the sample, weighted by size: what a rollout engine in bf16 sees nothing of yet; absent without float32 weights or at rate 0
optimizer.gradient_spike_ratio | ratio | gauge | mean | elements whose squared gradient, as the optimizer got it, was more than 5000 times their second moment before the step, among those whose moment is not 0; from the sample, weighted by size, at every 16th step only (SPAM, arXiv 2501.06842)
optimizer.tensor_std_max[of] | | gauge | max | largest standard deviation of the elements of one tensor, over `weights`, `moment1` or `moment2`, at every 16th step only; 32 or more sampled elements of each (relative standard error 13 % or less for Gaussian ones)
optimizer.tensor_std_min[of] | | gauge | min | smallest of the same, over the tensors of two elements or more: 0 is a constant tensor (a fresh norm or bias)
optimizer.parameter_digest | | gauge | same | 52-bit digest of a fixed sample of the weights' bits (32 or more of every tensor): replicas must be equal; absent when sharded
optimizer.low_precision_weights | flag | gauge | same | weights are stepped in bf16 or fp16 without a float32 master
# ---- memory
memory.rss_bytes | bytes | gauge | sum | resident memory of the rank's process
memory.children_rss_bytes | bytes | gauge | sum | resident memory of its direct child processes (data-loader workers)
memory.cgroup_used_bytes | bytes | gauge | max | memory charged to the cgroup less inactive page cache
memory.cgroup_limit_bytes | bytes | gauge | min | tightest limit of the cgroup and its parents; absent when there is none
memory.cgroup_cache_bytes | bytes | gauge | max | page cache of files on disks that is charged to the cgroup: the kernel gives it back before it kills
memory.cgroup_shm_bytes | bytes | gauge | max | files in shared memory and tmpfs that are charged to the cgroup: page cache that cannot be given back
memory.host_available_bytes | bytes | gauge | min | memory the host says is available
memory.cuda_allocated_bytes | bytes | gauge | max | live tensors in the caching allocator
memory.cuda_reserved_bytes | bytes | gauge | max | memory the caching allocator holds
memory.cuda_peak_bytes | bytes | gauge | max | peak of allocated since the last record
memory.cuda_inactive_bytes | bytes | gauge | max | inactive split blocks: fragmentation
memory.cuda_alloc_retries | count | counter | sum | allocations that had to flush the cache first
memory.cuda_ooms | count | counter | sum | out-of-memory errors the allocator raised
memory.cuda_total_bytes | bytes | gauge | min | memory of the device
memory.cuda_free_bytes | bytes | gauge | min | free memory of the device
memory.cuda_outside_bytes | bytes | gauge | max | used device memory that this process's caching allocator does not hold: context, NCCL, CUDA graphs, other processes (rollout engine): total - free - reserved
memory.engine_released_bytes | bytes | gauge | min | device memory that became free while the rollout engine on the trainer's own device was put to sleep, at its newest sleep in this step
memory.engine_budget_bytes | bytes | gauge | min | device memory that this engine may take (vllm_gpu_memory_utilization of the whole)
memory.live_tensors | count | gauge | max | tensor objects that Python holds, every live_tensors_every steps; off by default
memory.live_tensor_bytes | bytes | gauge | max | bytes of the distinct storages behind them
memory.live_tensor_growth_bytes | bytes | gauge | max | bytes by which the shape and dtype that has grown most since the first count has grown (names: event `live_tensors`)
memory.open_files | count | gauge | max | open file descriptors
memory.open_files_limit | count | gauge | min | soft limit on file descriptors
memory.threads | count | gauge | max | threads of the process
memory.shm_used_ratio | ratio | gauge | max | used share of the shared-memory file system that holds the ring
# ---- time
time.step_seconds | seconds | gauge | max | wall time of the optimizer step
time.phase_seconds[phase] | seconds | gauge | max | wall time spent in one phase during the step
time.before_collective_seconds | seconds | gauge | own | from the start of the step to this rank's arrival at the step vote: the late rank, not the waiting one
time.vote_wait_seconds | seconds | gauge | own | time this rank waited in the step vote for the others
time.data_wait_seconds | seconds | gauge | max | waiting for the data loader
time.tokens_per_second | tokens/s | gauge | sum | completion tokens trained on per second
# ---- sentinel: the agent about itself
sentinel.agent_seconds | seconds | gauge | max | self time of the agent in this step, without the time in which the processor ran something else
sentinel.agent_share | ratio | gauge | max | agent_seconds / step time
sentinel.agent_allowed_seconds | seconds | gauge | max | self time that a step may take on average: overhead_share of the median step time, or overhead_floor_seconds where that is more
sentinel.agent_plain_seconds | seconds | gauge | max | median self time of the steps without the costly probes: vote, non-finite checks and bounds, which are never thinned; above agent_allowed_seconds no sampling is enough. Absent while every step is whole
sentinel.vote_seconds | seconds | gauge | max | the all-reduce of the step vote
sentinel.probe_errors | count | counter | sum | exceptions caught in probes since the start
sentinel.calls_left_out | count | counter | sum | calls and arguments of the loop that could not be used, since the start
sentinel.probes_off | count | gauge | max | probes switched off after errors
sentinel.probe_off[probe] | flag | gauge | max | this probe is off after an error; absent while none is
sentinel.names_overflow | count | counter | sum | signal names that found no place in the name table
sentinel.core_active | flag | gauge | min | step vote, gate and halt work on this rank
sentinel.replica_mismatch | flag | gauge | max | the vote saw unequal gradient norms or parameter digests between replicas
sentinel.sampling_every | steps | gauge | max | costly probes (percentiles, update and moment norms, repetition, model states) run every so many steps, to keep agent_share down; vote, non-finite checks and bounds run at every step
sentinel.rank_deviation[vital] | | gauge | own | this rank's vital (time to the collective, loss, gradient norm, reward, memory, parameter digest) against the median over all ranks of all nodes, in robust standard deviations: (value - median) / max(1.4826 MAD, 0.05 |median|); infinite for a value that is not finite among finite ones, and for another digest than most; every vitals_every steps
sentinel.odd_rank_deviation[vital] | | gauge | same | rank_deviation of the rank that is furthest from the median in this vital
sentinel.odd_rank[vital] | | gauge | same | that rank; -1 when all are equal. Of two ranks the one with the larger value
sentinel.compared_ranks[vital] | count | gauge | same | ranks of all nodes that knew this vital when it was compared; below four nobody can tell which noisy one is odd
sentinel.frame_skew_steps | steps | gauge | max | newest step of this rank behind the newest of the node (made by the daemon)
# ---- device: NVML and host, made by the daemon, one series per GPU or host
device.gpu_memory_used_bytes | bytes | gauge | own | used device memory, reserved part excluded
device.gpu_memory_total_bytes | bytes | gauge | own | device memory
device.gpu_utilization_ratio | ratio | gauge | own | share of time a kernel ran
device.gpu_memory_utilization_ratio | ratio | gauge | own | share of time memory was read or written
device.gpu_temperature_celsius | celsius | gauge | own | core temperature
device.gpu_memory_temperature_celsius | celsius | gauge | own | memory temperature
device.gpu_power_watts | watts | gauge | own | power drawn
device.gpu_power_limit_watts | watts | gauge | own | enforced limit
device.gpu_energy_joules | joules | counter | own | energy since driver load
device.gpu_sm_clock_hertz | hertz | gauge | own | streaming-multiprocessor clock
device.gpu_memory_clock_hertz | hertz | gauge | own | memory clock
device.gpu_clock_event_reasons | | gauge | own | bit mask of current clock event (throttle) reasons
device.gpu_hw_slowdown | flag | gauge | own | hardware, thermal or power-brake slowdown is active
device.gpu_ecc_corrected | count | counter | own | corrected ECC errors since driver load
device.gpu_ecc_uncorrected | count | counter | own | uncorrected ECC errors since driver load
device.gpu_remapped_rows_pending | flag | gauge | own | a row remap waits for a reset
device.gpu_remapped_rows_failed | flag | gauge | own | a row remap failed
device.gpu_pcie_replays | count | counter | own | PCIe replays
device.gpu_process_memory_bytes[pid] | bytes | gauge | own | device memory of one process, where the pid namespace shows it
device.gpu_lost | flag | gauge | own | the GPU has fallen off the bus
device.gpu_count | count | gauge | own | GPUs that NVML shows
device.gpu_mig_enabled | flag | gauge | own | MIG mode is on
device.xid_errors | count | counter | own | critical Xid events seen since the daemon started
device.xid_events[xid] | count | counter | own | critical Xid events of one number seen since the daemon started
device.xid_last | | gauge | own | number of the newest Xid event
device.nvml_read_seconds | seconds | gauge | own | time that one reading of all GPUs took
device.memory_limit_bytes | bytes | gauge | own | memory that may be used: the limit of the cgroup where there is one, else host memory
device.memory_used_ratio | ratio | gauge | own | used share of that: the figure that says how near an out-of-memory kill is
device.host_memory_used_ratio | ratio | gauge | own | used share of host memory
device.host_memory_total_bytes | bytes | gauge | own | host memory
device.host_memory_available_bytes | bytes | gauge | own | available host memory
device.host_cpu_ratio | ratio | gauge | own | busy share of all CPUs
device.host_iowait_ratio | ratio | gauge | own | share of time waiting for input and output
device.host_load1 | | gauge | own | load average over one minute
device.cgroup_memory_used_ratio | ratio | gauge | own | cgroup memory (page cache excluded) over its limit
device.cgroup_oom_kills | count | counter | own | out-of-memory kills inside the cgroup
device.shm_used_ratio | ratio | gauge | own | used share of the shared-memory file system
device.disk_free_bytes | bytes | gauge | own | free space where checkpoints or history are written
device.disk_used_ratio | ratio | gauge | own | used share of that file system
device.rank_rss_bytes[rank] | bytes | gauge | own | resident memory of a rank's process, seen from outside: also while the rank hangs
device.rank_cpu_ratio[rank] | ratio | gauge | own | processor time of a rank's process over wall time, 1 = one core
device.rank_processes_dead | count | gauge | own | ranks of this node that died without closing
""")

EVENTS: dict[str, str] = {
    "config": "trainer and agent configuration as seen at attach: algorithm, sizes, epsilon, beta, versions",
    "nonfinite": "parameters with a non-finite gradient or weight, where they were seen, and whether before the reduce",
    "skip": "the gate stopped an update: step, reason, global norm, which ranks flagged it",
    "exception": "an exception left the training step: type, message, traceback",
    "probe_error": "a probe raised and was switched off",
    "vote_error": "the step vote failed and is off",
    "core": "what the handshake at attach found: ranks with and without a core, voting or not, and why",
    "named": "who is behind a signal: tensors of a batch that do not fit, loss inputs with a gradient, the top parameter",
    "sample": "text or ids of a sample that a finding names",
    "live_tensors": "shapes and dtypes of which more tensors are alive than at the first count: name, count, bytes, growth",
    "checkpoint": "the trainer saved a checkpoint: path, step",
    "capture": "evidence taken inside the trainer: what, path of the file, bytes, why",
    "ended": "the run was ended by a signal from outside: its number, by whom, the step",
    "halt": "this rank carries out a request: action, step, request id",
    "note": "anything else worth a line",
}
"""Kinds of event and what their body holds."""


def split_name(name: str) -> tuple[str, str]:
    """Take `base[label]` apart: `("base", "label")`, with "" for a signal without a dimension."""
    if name.endswith("]"):
        base, _, label = name[:-1].partition("[")
        return base, label
    return name, ""


def signal_of(name: str) -> Signal | None:
    """Look a concrete name up; None when the catalogue does not know its base (a user's own signal)."""
    return SIGNALS.get(split_name(name)[0])


def layer_of(name: str) -> str:
    """Layer of a concrete signal name, `sentinel` when its prefix is no layer."""
    layer = name.partition(".")[0]
    return layer if layer in LAYERS else "sentinel"
