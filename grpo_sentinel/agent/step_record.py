"""The record of one optimizer step: what the host knows at its end, joined with what the probes read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from grpo_sentinel.agent.core import Outcome
from grpo_sentinel.records import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What the agent itself knows of a step that has just ended."""

    outcome: Outcome
    norm: float | None  # global, before clipping
    applied: bool  # an update was made
    mismatched: bool | None  # replicas differ; None where there are none to compare
    elapsed: float
    arrival: float
    phases: Mapping[Phase, float]
    self_seconds: float
    sampling_every: int
    allowed_seconds: float  # of self time in a step
    plain_seconds: float | None  # self time of a step without the costly probes
    core_active: bool
    skipped_updates: int
    scaler_skips: int
    probe_errors: int
    calls_left_out: int
    probes_off: tuple[str, ...]  # by name
    names_overflow: int
    completion_tokens: float


def complete(read: Mapping[str, float], known: Mapping[str, float]) -> dict[str, float]:
    """Join what the probes read with what the host knows, and fill in what needs both.

    Gradients are read before clipping, so a global norm that the trainer computes then is known only here.
    """
    values = {**read, **known}
    # An overflow that no vote saw shows in the scaler's own scale.
    values["optimizer.scaler_skips"] = max(read.get("optimizer.scaler_skips", 0.0), known["optimizer.scaler_skips"])
    norm, limit = values.get("gradient.norm_preclip"), values.get("gradient.clip_limit")
    if norm is not None and limit is not None:
        values["gradient.clip_coefficient"] = norm if math.isnan(norm) else min(1.0, limit / (norm + 1e-6))
    return values


def host_values(facts: StepFacts) -> dict[str, float]:
    """Name what the host knows; see the catalogue for each signal's meaning."""
    outcome, elapsed = facts.outcome, facts.elapsed
    values = {
        "time.step_seconds": elapsed,
        "time.before_collective_seconds": facts.arrival,
        "time.vote_wait_seconds": outcome.wait_seconds,
        "sentinel.vote_seconds": outcome.wait_seconds,
        "sentinel.agent_seconds": facts.self_seconds,
        "sentinel.agent_share": facts.self_seconds / elapsed if elapsed > 0 else 0.0,
        "sentinel.agent_allowed_seconds": facts.allowed_seconds,
        "sentinel.probe_errors": float(facts.probe_errors),
        "sentinel.calls_left_out": float(facts.calls_left_out),
        "sentinel.probes_off": float(len(facts.probes_off)),
        **{f"sentinel.probe_off[{probe}]": 1.0 for probe in facts.probes_off},
        "sentinel.names_overflow": float(facts.names_overflow),
        "sentinel.core_active": float(facts.core_active),
        "sentinel.sampling_every": float(facts.sampling_every),
        "optimizer.skipped_updates": float(facts.skipped_updates),
        "optimizer.scaler_skips": float(facts.scaler_skips),
        "optimizer.step_skipped": float(outcome.skip),
        "optimizer.step_applied": float(facts.applied),
        **{f"time.phase_seconds[{phase.name.lower()}]": spent for phase, spent in facts.phases.items()},
    }
    if facts.plain_seconds is not None:
        values["sentinel.agent_plain_seconds"] = facts.plain_seconds
    if Phase.DATA in facts.phases:
        values["time.data_wait_seconds"] = facts.phases[Phase.DATA]
    if facts.norm is not None:
        values["gradient.norm_preclip"] = facts.norm
    if facts.mismatched is not None:
        values["sentinel.replica_mismatch"] = float(facts.mismatched)
    if facts.completion_tokens and elapsed > 0:
        values["time.tokens_per_second"] = facts.completion_tokens / elapsed
    return values
