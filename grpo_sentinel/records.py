"""The frozen data that crosses module borders. Trainer side and daemon side both speak only these.

    tensors -> statistics -> StepRecord / EventRecord -> Frame -> Finding -> ControlWord -> Ack

Standard library only: the trainer process imports this module.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Mode(enum.IntEnum):
    """What the model was doing; training and evaluation are never compared with each other."""

    TRAIN = 0
    EVALUATION = 1


class Kind(enum.IntEnum):
    """Why a record was pushed. All records of one step and rank merge into one row of a frame."""

    DATA = 1  # before the forward: the evidence when a bad token id kills the process in it
    STEP = 2  # everything else of one optimizer step; closes the step
    GENERATION = 3  # a rollout batch was generated and scored (may serve several steps)
    MEMORY = 4  # process and allocator figures between steps


class Phase(enum.IntEnum):
    """Where the training thread is; stamped by the training thread itself, so it means progress."""

    IDLE = 0
    GENERATE = 1
    REWARD = 2
    LOGPROBS = 3
    FORWARD = 4
    BACKWARD = 5
    VOTE = 6
    OPTIMIZER = 7
    WEIGHT_SYNC = 8
    CHECKPOINT = 9
    EVALUATION = 10
    DATA = 11
    FINISHED = 12
    COMPILE = 13


class Action(enum.IntEnum):
    """What a finding or a person asks for, mildest first."""

    NOTE = 0
    ALERT = 1
    CAPTURE = 2
    STACKS = 3
    MEMORY_SNAPSHOT = 4
    ANOMALY_TRACE = 5
    CHECKPOINT = 6
    CHECKPOINT_AND_HALT = 7
    HALT_NOW = 8


class HaltState(enum.IntEnum):
    """Life of one request: each side writes only what it knows."""

    NONE = 0
    REQUESTED = 1  # written by the daemon
    VOTED = 2  # all ranks agreed on a step
    CHECKPOINTING = 3
    DONE = 4  # detail = checkpoint path ("" when the action saves nothing)
    FAILED = 5  # detail = reason
    FINISHED = 6  # the run ended before the request could act
    REFUSED = 7  # a rank has no core, or halting is off: detail says which


LEFT = "left to rank 0"
"""Detail of a rank that holds what rank 0 holds, and did not save the checkpoint that was asked for."""


class Liveness(enum.Enum):
    """Is the writer of a segment still there?"""

    ALIVE = "alive"
    CLOSED = "closed"  # left on purpose: finished or halted
    DEAD = "dead"  # gone without closing, corroborated by a second sign
    UNKNOWN = "unknown"


class Severity(enum.IntEnum):
    """How much a finding matters; only CRITICAL may halt."""

    NOTE = 0
    WARNING = 1
    CRITICAL = 2


class FindingState(enum.Enum):
    """A finding is announced once when it fires and once when it resolves."""

    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankIdentity:
    """Who writes a segment; constant for the life of the process."""

    run_id: str
    parent_run_id: str = ""
    rank: int
    local_rank: int
    world_size: int
    role: str = "trainer"
    host: str
    pid: int
    pid_start_ticks: int  # field 22 of /proc/<pid>/stat: tells a re-used pid apart
    pid_namespace: int  # inode of /proc/self/ns/pid
    boot_id: str
    created_wall_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One push of one rank: named float64 values of one step. `values` may hold NaN and infinities."""

    run_id: str
    rank: int
    sequence: int
    step: int  # optimizer step, 1-based; the step being worked on
    kind: Kind
    mode: Mode
    micro_batch: int
    generation: int
    monotonic_ns: int
    wall_ns: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """Something that is not a number: exception, configuration, non-finite parameter names, a sample."""

    run_id: str
    rank: int
    sequence: int
    step: int
    wall_ns: int
    kind: str  # see catalog.EVENTS
    body: Mapping[str, Any]
    truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Last sign of progress of the training thread."""

    step: int
    phase: Phase
    phase_since_wall_ns: int
    updated_wall_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reading of something that has no step: a GPU, the host, a process."""

    source: str  # "nvml" | "host"
    entity: str  # GPU uuid, host name
    wall_ns: int
    values: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)
    unsupported: tuple[str, ...] = ()  # asked for and not offered by this device: not zero
    failed: Mapping[str, str] = field(default_factory=dict)  # asked for and failed: reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """All ranks of this node at one step: `ranks[r][signal]`, all kinds of record merged."""

    run_id: str
    step: int
    mode: Mode
    wall_ns: int  # newest record in it
    ranks: Mapping[int, Mapping[str, float]]
    missing: tuple[int, ...] = ()  # ranks known on this node that sent nothing for this step in time


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, with where, since when, why it matters and what to try."""

    finding_id: str  # unique in the run: "<rule>:<subject or ranks>:<onset step>"
    rule: str
    layer: str
    severity: Severity
    state: FindingState
    action: Action
    run_id: str
    step: int  # step at which it was announced
    onset_step: int  # first abnormal step, dated back
    ranks: tuple[int, ...]  # empty: rank not known
    subject: str = ""  # parameter, reward function, GPU, phase
    signal: str = ""
    value: float | None = None
    limit: float | None = None
    message: str
    why: str = ""
    remedies: tuple[str, ...] = ()
    reference: str = ""
    wall_ns: int
    root_id: str = ""  # finding_id of the root cause that this one follows from; "" = is itself a root


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlWord:
    """What the sidecar asks of the trainer: one request at a time, and the bounds of the gate."""

    request_id: int  # 0 = nothing asked; increases
    action: Action = Action.NOTE
    deadline_wall_ns: int = 0
    reason: str = ""
    requested_by: str = ""  # rule name, or "user"
    made_wall_ns: int = 0  # 0 = not known; a process that began later was not meant
    skip_above_norm: float = float("inf")  # gate: skip updates whose global pre-clip norm exceeds it


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """What a rank has done about a request."""

    request_id: int
    state: HaltState
    step: int
    wall_ns: int
    detail: str = ""  # checkpoint path or reason
