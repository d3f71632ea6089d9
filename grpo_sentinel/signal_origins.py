"""Where every signal of the catalogue is read from, and what that costs the trainer: for documents and their test."""

from __future__ import annotations

ORIGINS: dict[str, tuple[str, str]] = {
    name.strip(): (source.strip(), cost.strip())
    for name, source, cost in (row.split("|") for row in """
data. | tensors of the micro-batch as the loss gets them, before its forward | micro-batch
data.mixed_groups | prompts of a generation batch, on the host | hash
data.duplicate | prompts and completions of a generation batch, on the host | hash
data.duplicate_over_ranks_ratio | texts of all ranks, which TRL gathers for its own log | hash, sampled
data.version_ | versions that the trainer gives with the micro-batch | micro-batch
data.stale_dropped | a count that the trainer gives with the micro-batch | free
data.source | source of each row of a generation batch, on the host | generation
data.sample_age_steps | the trainer's step counter | free
reward. | raw scores of this rank, before the trainer's nan-mean | generation
reward.endpoint_prompt_ratio | combined rewards beside digests of their prompts, on the host | hash
reward.func_latency_seconds | the call of the function | free
reward.func_failures | the call of the function | free
reward.func_sanitized | sanitize_rewards() in the reward function | free
reward.func_twin_mismatch | scores beside digests of the completions they came with, on the host | hash
reward.func_repeated | scores beside digests of the completions they came with, on the host | hash
reward.model_ | modules and parameters of the model, on the host | walk, sampled
reward.model_autograd | what the model's pass returned: its grad_fn | free
reward.model_adapter_mismatch | adapter layers of the model; of the reference, those that are on during its pass | walk
policy. | log-probs of the training forward and the other inputs of the loss | tokens
policy.activation_ | hooks on a few modules, when agent.activations_every asks for it | layers
policy.dead_unit_ratio | hooks on a few activation functions, when agent.activations_every asks for it | layers
policy.expert_ | hooks on a few routers, when agent.activations_every asks for it | layers
policy.kl_reported_nats | the number that the trainer computed for its own log | free
policy.kl_position_share | log-probs of the training forward and of the reference | tokens, sampled
policy.repetition_ratio | token ids of the completions | tokens, sampled
policy.single_token_ratio | token ids of the completions | tokens, sampled
policy.entropy_max_nats | the embedding's size | free
policy.advantage_abs_bound | the trainer's configuration | free
policy.on_policy | the trainer's step counter | free
gradient. | `.grad` of the parameters or the engine's own partitions, between backward and clipping | pass
gradient.norm_preclip | the trainer's or engine's own clipping; else this rank's, where that is the whole | free
gradient.clip | the trainer's own clipping | free
gradient.abs_mean | hashed sample of the gradients | sample, sampled
gradient.std | the exact norm, and the hashed sample | sample, sampled
gradient.abs_p | hashed sample of the gradients | sample, sampled
gradient.norm_before_reduce | hooks on the parameters, before the all-reduce | hooks
gradient.carried_norm | `.grad` of three small parameters, when the step's first gradient arrives | sample
gradient.worst_micro_batch | hooks on the parameters, before the all-reduce | hooks
gradient.local_nonfinite_tensors | hooks on the parameters, before the all-reduce | hooks
optimizer. | groups and state of the innermost optimizer, around its step | free
optimizer.update | hashed sample of the weights, before and after the step | sample, sampled
optimizer.moment | hashed sample of the moments | sample, sampled
optimizer.nonfinite_moments | all moments, every 16th step | pass, sampled
optimizer.unchanged_tensors | hashed sample of the weights, before and after the step | sample, sampled
optimizer.sampled_tensors | hashed sample of the weights | sample, sampled
optimizer.gradient_spike_ratio | hashed sample of gradients and second moments, every 16th step | sample, sampled
optimizer.tensor_std | hashed sample of weights and moments, every 16th step | sample, sampled
optimizer.bf16_image_same_ratio | hashed sample of the weights, before and after the step | sample, sampled
optimizer.bf16_swallowed_ratio | hashed sample of the weights, before and after the step | sample, sampled
optimizer.parameter_digest | bits of a fixed sample of the weights | sample, sampled
optimizer.weight_decay | the first group of the innermost optimizer | free
optimizer.weight | all trained parameters after the step | pass
optimizer.nonfinite_weights | all trained parameters after the step | pass
memory. | /proc and the cgroup of the rank's process | files
memory.cuda_ | the CUDA caching allocator and driver (absent without CUDA) | files
memory.engine_ | the driver, before and after the engine's sleep() (absent without CUDA) | free
memory.live_ | the garbage collector's objects, when agent.live_tensors_every asks for it | objects
time. | stamps of a monotonic clock at the trainer's own calls | free
sentinel. | the agent itself | free
sentinel.rank_deviation | vitals of all ranks, gathered with every 16th step vote (agent.vitals_every) | gather
sentinel.odd_rank | vitals of all ranks, gathered with every 16th step vote (agent.vitals_every) | gather
sentinel.compared_ranks | vitals of all ranks, gathered with every 16th step vote (agent.vitals_every) | gather
sentinel.frame_skew_steps | the rings of the node, read by the sidecar | outside
device. | NVML, /proc and the cgroup, read by the sidecar | outside
""".strip().splitlines())
}
"""Name or beginning of a name -> where the number is read from, and what it costs (a key of `COSTS`)."""

COSTS: dict[str, str] = {
    "free": "a number that the host has anyway",
    "files": "small reads on the host; what changes slowly at most once a second",
    "hash": "one hash on the host per completion of a generation batch",
    "generation": "one copy of a small matrix per generation batch",
    "walk": "a walk over the modules, about a microsecond each, per generation batch",
    "micro-batch": "a few kernels and one copy of some numbers per row, before each forward: the step's one early copy",
    "tokens": "a fixed number of kernels per micro-batch, over its tokens, for a model of any size; no copy of its own",
    "pass": "one fused pass over the tensors per step; no copy of its own",
    "sample": "a fixed number of elements, whatever the model's size; no copy of its own",
    "hooks": "one norm per parameter and micro-batch, only while hooks are armed",
    "gather": "one gather of seven numbers per rank",
    "layers": "hooks on 8 modules of a kind in some steps, a few kernels each; off unless asked for",
    "objects": "a walk over all Python objects, off unless asked for",
    "outside": "nothing in the trainer",
    "sampled": "thinned when the agent's time passes agent.overhead_share",
}
"""What a signal costs the trainer."""


def origin_of(name: str) -> tuple[str, str]:
    """Say where a signal is read from and what that costs, by the longest entry of `ORIGINS` that it begins with."""
    return ORIGINS[max((start for start in ORIGINS if name.startswith(start)), key=len)]
