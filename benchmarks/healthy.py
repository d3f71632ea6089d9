"""Synthetic healthy runs: what about 170 signals look like in a run where nothing is wrong.

Sources: `gaussian` and `student` (4 degrees of freedom: heavy tails) around constant levels, `drifting` (reward and
length up, entropy, spread and gradient slowly down, KL up), `seasonal` (a wave of 40 steps, evaluation and checkpoint
stops, every fourth step a new rollout).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from statistics import median

from grpo_sentinel.records import FindingState, Frame, Mode
from grpo_sentinel.rules import Engine, RuleSet, load_rules

SOURCES = ("gaussian", "student", "drifting", "seasonal")
CONTEXT = {"beta": 0.001, "num_generations": 8, "loss_type": "grpo", "num_iterations": 1}
_START_NS = 1_700_000_000_000_000_000

# level and relative spread of one step's value; a spread above 0.3 is what small batches really show
_LEVELS: dict[str, tuple[float, float]] = {
    "data.pad_ratio": (0.2, 0.1), "data.eos_ratio": (0.85, 0.05), "data.unk_ratio": (0.001, 0.3),
    "data.prompt_length_mean": (90, 0.1), "data.prompt_length_max": (160, 0.1), "data.prompt_clip_ratio": (0.01, 0.3),
    "data.completion_length_mean": (120, 0.15), "data.completion_length_min": (12, 0.3),
    "data.completion_length_max": (250, 0.05), "data.truncated_ratio": (0.15, 0.25),
    "data.masked_completion_ratio": (0.0, 0.0), "data.duplicate_prompt_ratio": (0.0, 0.0),
    "data.duplicate_completion_ratio": (0.05, 0.3), "data.sequence_length_imbalance": (1.1, 0.2),
    "reward.mean": (0.45, 0.15), "reward.std": (0.35, 0.15), "reward.group_std_mean": (0.3, 0.15),
    "reward.zero_std_ratio": (0.45, 0.2), "reward.all_right_ratio": (0.2, 0.3), "reward.all_wrong_ratio": (0.25, 0.3),
    "reward.length_correlation": (0.1, 1.0), "reward.at_ceiling_ratio": (0.3, 0.2),
    "reward.func_mean[accuracy]": (0.4, 0.15), "reward.func_std[accuracy]": (0.45, 0.1),
    "reward.func_mean[format]": (0.8, 0.05), "reward.func_std[format]": (0.2, 0.2),
    "reward.func_variance_share[accuracy]": (0.8, 0.05), "reward.func_variance_share[format]": (0.2, 0.2),
    "reward.func_latency_seconds[accuracy]": (0.4, 0.3), "reward.func_latency_seconds[format]": (0.01, 0.3),
    "policy.kl_loss": (0.002, 0.2), "policy.entropy_nats": (0.8, 0.08), "policy.logp_mean_nats": (-0.8, 0.1),
    "policy.logp_min_nats": (-9, 0.15), "policy.advantage_std": (0.9, 0.05), "policy.advantage_abs_max": (2.2, 0.03),
    "policy.advantage_zero_ratio": (0.45, 0.2), "policy.ratio_max": (1.4, 0.1), "policy.log_ratio_abs_max": (0.3, 0.2),
    "policy.clip_low_ratio": (0.002, 0.4), "policy.clip_high_ratio": (0.003, 0.4), "policy.clip_ratio": (0.005, 0.4),
    "policy.approx_kl_nats": (0.003, 0.3), "policy.kl_k2_nats": (0.04, 0.3), "policy.kl_k3_nats": (0.04, 0.3),
    "policy.kl_k3_max_nats": (2.0, 0.4), "policy.ess_ratio": (0.96, 0.01), "policy.sampling_gap_mean_nats": (0.01, 0.2),
    "policy.sampling_gap_max_nats": (0.5, 0.3), "policy.sampling_mult_error": (1.01, 0.002),
    "policy.sampling_k3_nats": (0.0008, 0.3), "policy.entropy_first_nats": (1.0, 0.08),
    "policy.entropy_last_nats": (0.6, 0.1), "policy.repetition_ratio": (0.08, 0.25),
    "gradient.norm_preclip": (0.6, 0.35), "gradient.norm_local": (0.6, 0.35), "gradient.abs_max": (0.05, 0.4),
    "gradient.abs_mean": (1e-5, 0.3), "gradient.std": (1e-4, 0.3), "gradient.abs_p50": (5e-6, 0.3),
    "gradient.abs_p95": (5e-5, 0.3), "gradient.abs_p99": (1e-4, 0.3), "gradient.top_share": (0.3, 0.2),
    "gradient.group_norm[model.layers.0]": (0.3, 0.4), "gradient.group_norm[model.layers.1]": (0.25, 0.4),
    "gradient.group_norm[model.layers.2]": (0.2, 0.4), "gradient.group_norm[lm_head]": (0.3, 0.4),
    "optimizer.update_norm": (0.02, 0.15), "optimizer.update_ratio": (0.0004, 0.15),
    "optimizer.moment1_norm": (0.2, 0.2),
    "optimizer.moment2_norm": (0.01, 0.005),  # an average over 1,000 steps (beta2 0.999) cannot jump
    "memory.rss_bytes": (4e9, 0.01), "memory.cgroup_used_bytes": (6e9, 0.02),
    "memory.cuda_allocated_bytes": (3e10, 0.08),
    "memory.cuda_reserved_bytes": (5e10, 0.01), "memory.cuda_peak_bytes": (4.5e10, 0.05),
    "memory.open_files": (90, 0.05),
    "memory.threads": (40, 0.02), "memory.host_available_bytes": (6e10, 0.02),
    "time.step_seconds": (12, 0.15), "time.data_wait_seconds": (0.05, 0.5),
    "time.before_collective_seconds": (10, 0.08),
    "time.vote_wait_seconds": (0.5, 0.5), "time.tokens_per_second": (3000, 0.15), "sentinel.agent_seconds": (0.02, 0.2),
    "sentinel.agent_share": (0.002, 0.2), "sentinel.vote_seconds": (0.001, 0.5),
    "reward.max": (1.2, 0.1), "policy.single_token_ratio": (0.01, 0.5), "gradient.norm_before_reduce": (1.2, 0.4),
    "optimizer.weight_norm": (500, 1e-5), "memory.cuda_outside_bytes": (5e9, 0.02),
    "memory.cuda_free_bytes": (2e10, 0.1),
    "memory.cuda_inactive_bytes": (4e9, 0.2), "memory.shm_used_ratio": (0.2, 0.1),
    "memory.live_tensor_growth_bytes": (2e7, 0.8),
}  # fmt: skip
_CONSTANT: dict[str, float] = {
    "data.samples": 64, "data.vocab_size": 151936, "data.token_id_min": 0, "data.token_id_max": 151645,
    "data.out_of_vocabulary": 0, "data.empty_rows": 0, "data.empty_prompt_rows": 0, "data.nonbinary_mask": 0,
    "data.shape_mismatch": 0, "data.mixed_groups": 0, "reward.nonfinite": 0, "reward.func_nonfinite[accuracy]": 0,
    "policy.loss_nonfinite": 0, "policy.logp_nonfinite": 0, "policy.advantage_nonfinite": 0, "policy.ratio_mean": 1.0,
    "policy.entropy_max_nats": 11.93, "policy.advantage_abs_bound": 2.4749, "policy.kl_reported_nats": 0.05,
    "gradient.nonfinite_tensors": 0, "gradient.tensors": 310, "gradient.clip_limit": 1.0, "optimizer.step_applied": 1,
    "optimizer.step_skipped": 0, "optimizer.nonfinite_weights": 0, "optimizer.skipped_updates": 0,
    "memory.cgroup_limit_bytes": 6.4e10, "memory.cuda_total_bytes": 8.5e10, "memory.open_files_limit": 1024,
    "sentinel.probe_errors": 0, "sentinel.core_active": 1, "sentinel.replica_mismatch": 0,
    "data.completion_tokens": 7680, "data.device_mismatch": 0, "data.dtype_mismatch": 0, "data.right_padded_prompts": 0,
    "data.duplicate_over_ranks_ratio": 0, "reward.func_infinite[accuracy]": 0, "reward.func_failures[accuracy]": 0,
    "reward.func_samples[accuracy]": 64, "policy.old_logp_nonfinite": 0, "policy.sampling_logp_nonfinite": 0,
    "policy.ref_logp_nonfinite": 0, "policy.kl_k3_overflow": 0, "policy.on_policy": 1, "policy.logp_positive": 0,
    "policy.input_grad_leaks": 0, "policy.loss_dtype_mismatch": 0, "policy.loss_device_mismatch": 0,
    "policy.sampling_confident_disagreements": 0, "gradient.norm_overflow": 0, "gradient.zero_tensors": 2,
    "optimizer.unheld_parameters": 0, "optimizer.stale_parameters": 0, "optimizer.state_shape_mismatch": 0,
    "memory.cuda_alloc_retries": 0, "memory.cuda_ooms": 0, "sentinel.probes_off": 0, "sentinel.names_overflow": 0,
    "optimizer.beta1": 0.9, "optimizer.beta2": 0.999, "optimizer.weight_decay": 0.01, "gradient.carried_norm": 0,
    "reward.func_twin_mismatch[accuracy]": 0, "reward.func_twin_mismatch[format]": 0,
    "reward.func_repeated[accuracy]": 0,
}  # fmt: skip
_RATIOS = ("_ratio", "ess_ratio", "top_share", "_share[accuracy]", "_share[format]", "correlation")
# level at the end of the run over the level at its start, in the source `drifting`
_DRIFTS = {
    "reward.mean": 1.9, "reward.func_mean[accuracy]": 2.0, "reward.func_mean[format]": 1.2, "reward.std": 0.6,
    "reward.group_std_mean": 0.5, "data.completion_length_mean": 2.2, "data.completion_length_max": 1.9,
    "policy.entropy_nats": 0.25, "policy.entropy_first_nats": 0.3, "policy.entropy_last_nats": 0.25,
    "policy.logp_mean_nats": 0.25, "policy.kl_k3_nats": 6.0, "policy.kl_k2_nats": 6.0, "gradient.norm_preclip": 0.5,
    "gradient.norm_local": 0.5, "reward.zero_std_ratio": 1.5, "reward.all_right_ratio": 2.5, "time.step_seconds": 1.7,
    "time.before_collective_seconds": 1.7, "memory.rss_bytes": 1.15, "policy.repetition_ratio": 1.4,
}  # fmt: skip


def run(source: str, steps: int, *, ranks: int = 1, seed: int = 0) -> Iterator[Frame]:
    """Give the frames of a healthy run of `steps` steps."""
    draw = random.Random(f"{source} {seed}")
    noise = _student(draw) if source == "student" else lambda: draw.gauss(0.0, 1.0)
    wall_ns = _START_NS
    for step in range(1, steps + 1):
        shared = _row(source, step, steps, noise)
        rows = {0: shared}
        for rank in range(1, ranks):
            own = _row(source, step, steps, noise)
            # replicas hold the same gradients, weights and schedule
            rows[rank] = own | {
                key: value for key, value in shared.items() if key.startswith(("gradient.n", "optimizer."))
            }
        wall_ns += round(shared["time.step_seconds"] * 1e9)
        yield Frame(run_id="healthy", step=step, mode=Mode.TRAIN, wall_ns=wall_ns, ranks=rows)


def _row(source: str, step: int, steps: int, noise: Callable[[], float]) -> dict[str, float]:
    row = dict(_CONSTANT)
    done = step / steps
    wave = 1 + 0.3 * math.sin(2 * math.pi * step / 40) if source == "seasonal" else 1.0
    for name, (level, spread) in _LEVELS.items():
        if source == "drifting":
            level *= _DRIFTS.get(name, 1.0) ** done
        value = level * (1 + spread * noise())
        if name.startswith(("reward.mean", "data.completion", "time.step", "gradient.norm", "policy.entropy")):
            value *= wave
        row[name] = _inside(name, value, level)
    warm = min(1.0, (step - 1) / 20)
    rate = 1e-6 * warm * (1 - done if step < steps else 0.0)
    row["optimizer.learning_rate"] = row["optimizer.learning_rate_expected"] = rate
    row["optimizer.update_norm"] *= warm
    row["optimizer.update_ratio"] *= warm
    row["optimizer.parameter_digest"] = float(step * 7919 % 1_000_003)
    row["policy.advantage_mean"] = 0.05 * noise()
    row["policy.loss"] = 0.01 * noise()
    row["policy.kl_k1_nats"] = 0.05 * noise()
    if step % 16 == 0:
        row |= _vitals(noise)
    if step == 1:
        row["policy.kl_k3_nats"] = 1e-4
    if source == "seasonal":
        if step % 100 == 0:
            row["time.step_seconds"] += 240.0  # evaluation and a checkpoint
        if step % 4 != 1:
            row = {name: value for name, value in row.items() if not name.startswith("reward.")}
    return row


def _vitals(noise: Callable[[], float], ranks: int = 4) -> dict[str, float]:
    """How far this rank is from the median of few ranks, whose spread is as uncertain as it gets."""
    row = {}
    for vital in ("before_collective", "loss", "gradient_norm", "reward_mean", "memory"):
        values = [noise() for _ in range(ranks)]
        centre = median(values)
        deviations = [(value - centre) / (1.4826 * median(abs(v - centre) for v in values)) for value in values]
        furthest = max(range(ranks), key=lambda rank: abs(deviations[rank]))
        row[f"sentinel.rank_deviation[{vital}]"] = deviations[0]
        row[f"sentinel.odd_rank_deviation[{vital}]"] = deviations[furthest]
        row[f"sentinel.odd_rank[{vital}]"] = float(furthest)
        row[f"sentinel.compared_ranks[{vital}]"] = float(ranks)
    return row


def _inside(name: str, value: float, level: float) -> float:
    """Keep a value where its kind must be: ratios in [0, 1], sizes above zero."""
    if name == "policy.advantage_abs_max":
        return min(2.4748, abs(value))
    if name.endswith(_RATIOS):
        return max(-1.0 if "correlation" in name else 0.0, min(1.0, value))
    return max(0.02 * level, value) if level > 0 else value


def _student(draw: random.Random, freedom: int = 4) -> Callable[[], float]:
    def value() -> float:
        chi = sum(draw.gauss(0.0, 1.0) ** 2 for _ in range(freedom))
        return draw.gauss(0.0, 1.0) / math.sqrt(chi / freedom)

    return value


def main(record: Callable[..., None] | None = None, steps: int = 50_000) -> None:
    """Play every source through all rules; stores criticals and warnings per 1,000 steps. Raises when one is loud."""
    from benchmarks.record import record as store

    record = record or store
    rules = load_rules()
    loud = []
    for source in SOURCES:
        told = alarms(source, steps, rules)
        counts = {name: sum(severity == name for severity, _ in told) for name in ("CRITICAL", "WARNING", "NOTE")}
        record(f"healthy_{source}_criticals", counts["CRITICAL"], "", peer=f"in {steps} steps, limit 0")
        record(f"healthy_{source}_warnings_per_1000", 1000 * counts["WARNING"] / steps, "", peer="limit 0.2")
        record(f"healthy_{source}_notes_per_1000", 1000 * counts["NOTE"] / steps, "")
        for rule, times in Counter(rule for severity, rule in told if severity != "NOTE").most_common():
            print(f"  {source}: {rule} {times} times")
        if counts["CRITICAL"] or counts["WARNING"] > 0.2 * steps / 1000:
            loud.append(source)
    if loud:
        raise AssertionError(f"too many alarms in healthy runs: {', '.join(loud)}")


def alarms(source: str, steps: int, rules: RuleSet, *, ranks: int = 1) -> list[tuple[str, str]]:
    """Severity and rule of everything that fires in a healthy run."""
    engine = Engine(rules, run_id="healthy")
    engine.configure(CONTEXT)
    return [
        (finding.severity.name, finding.rule)
        for frame in run(source, steps, ranks=ranks)
        for finding in engine.frame(frame)
        if finding.state is FindingState.FIRING
    ]


if __name__ == "__main__":
    main()
