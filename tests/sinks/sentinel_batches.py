"""Small makers of records, statuses and batches for the tests of history, sinks and web."""

from __future__ import annotations

from typing import Any

from grpo_sentinel.records import (
    Action,
    EventRecord,
    Finding,
    FindingState,
    Heartbeat,
    Kind,
    Liveness,
    Mode,
    Phase,
    RankIdentity,
    Sample,
    Severity,
    StepRecord,
)
from grpo_sentinel.views import Cursor, HaltStatus, RankStatus, SinkBatch, Snapshot

RUN = "run-1"
WALL_NS = 1_700_000_000_000_000_000


def identity(rank: int = 0, **changes: Any) -> RankIdentity:
    given = {
        "run_id": RUN, "rank": rank, "local_rank": rank, "world_size": 2, "host": "node-a", "pid": 100 + rank,
        "pid_start_ticks": 1, "pid_namespace": 2, "boot_id": "b", "created_wall_ns": WALL_NS,
    }  # fmt: skip
    return RankIdentity(**{**given, **changes})


def status(rank: int = 0, *, cursor: Cursor | None = None, **changes: Any) -> RankStatus:
    given: dict[str, Any] = {
        "identity": identity(rank),
        "heartbeat": Heartbeat(step=1, phase=Phase.FORWARD, phase_since_wall_ns=WALL_NS, updated_wall_ns=WALL_NS),
        "liveness": Liveness.ALIVE,
        "last_step": 1,
        "values": {"policy.loss": 0.5},
        "updated_wall_ns": WALL_NS,
        "cursor": cursor or Cursor(),
    }
    return RankStatus(**{**given, **changes})


def record(step: int = 1, rank: int = 0, values: dict[str, float] | None = None, **changes: Any) -> StepRecord:
    given: dict[str, Any] = {
        "run_id": RUN, "rank": rank, "sequence": step, "step": step, "kind": Kind.STEP, "mode": Mode.TRAIN,
        "micro_batch": 0, "generation": 0, "monotonic_ns": step, "wall_ns": WALL_NS + step * 10**9,
        "values": {"policy.loss": float(step)} if values is None else values,
    }  # fmt: skip
    return StepRecord(**{**given, **changes})


def event(sequence: int = 1, kind: str = "note", body: dict[str, Any] | None = None, **changes: Any) -> EventRecord:
    given: dict[str, Any] = {
        "run_id": RUN, "rank": 0, "sequence": sequence, "step": 1, "wall_ns": WALL_NS + sequence, "kind": kind,
        "body": {"text": "hello"} if body is None else body,
    }  # fmt: skip
    return EventRecord(**{**given, **changes})


def finding(rule: str = "nan_gradient", state: FindingState = FindingState.FIRING, **changes: Any) -> Finding:
    given: dict[str, Any] = {
        "finding_id": f"{rule}:1:12", "rule": rule, "layer": "gradient", "severity": Severity.CRITICAL, "state": state,
        "action": Action.ALERT, "run_id": RUN, "step": 13, "onset_step": 12, "ranks": (1,), "subject": "lm_head.weight",
        "signal": "gradient.nonfinite_tensors", "value": 1.0, "limit": 0.0, "message": "a gradient is not finite",
        "why": "it poisons the weights", "remedies": ("look at the loss of rank 1",), "wall_ns": WALL_NS,
    }  # fmt: skip
    return Finding(**{**given, **changes})


def sample(entity: str = "GPU-1", values: dict[str, float] | None = None, **changes: Any) -> Sample:
    given: dict[str, Any] = {
        "source": "nvml", "entity": entity, "wall_ns": WALL_NS, "labels": {"gpu": "0", "uuid": entity},
        "values": {"device.gpu_utilization_ratio": 0.5} if values is None else values,
    }  # fmt: skip
    return Sample(**{**given, **changes})


def batch(*records: StepRecord, cursors: dict[int, Cursor] | None = None, **changes: Any) -> SinkBatch:
    """A batch whose snapshot holds one status per rank that a record or a cursor names."""
    ranks = {r.rank for r in records} | set(cursors or {})
    halt: HaltStatus | None = changes.get("halt")
    snapshot = Snapshot(
        run_id=RUN, node="node-a", wall_ns=WALL_NS,
        ranks={rank: status(rank, cursor=(cursors or {}).get(rank, Cursor())) for rank in sorted(ranks)},
        halt=halt or HaltStatus(),
    )  # fmt: skip
    given: dict[str, Any] = {
        "run_id": RUN,
        "node": "node-a",
        "wall_ns": WALL_NS,
        "records": records,
        "snapshot": snapshot,
    }
    return SinkBatch(**{**given, **changes})
