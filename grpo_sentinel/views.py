"""Frozen data of the daemon side: what collectors, halting, sinks and page hand to each other.

rings -> RankStatus, Frame -> Finding -> HaltStatus -> Snapshot, Batch -> sinks and page
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from grpo_sentinel.catalog import layer_of, split_name
from grpo_sentinel.records import (
    Ack,
    Action,
    EventRecord,
    Finding,
    Frame,
    HaltState,
    Heartbeat,
    Liveness,
    RankIdentity,
    Sample,
    StepRecord,
)


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a reader has come in one segment; `Cursor()` starts at the oldest record still in the ring."""

    record: int = 0
    event: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """One rank as the node sees it now."""

    identity: RankIdentity
    heartbeat: Heartbeat
    liveness: Liveness
    last_step: int  # newest step with a STEP record, 0 = none yet
    values: Mapping[str, float] = field(default_factory=dict)  # newest value of every signal
    updated_wall_ns: int = 0  # newest record
    acknowledgement: Ack | None = None
    cursor: Cursor = Cursor()
    closed_detail: str | None = None
    missed_records: int = 0
    bad_slots: int = 0
    stopped: bool = False  # its process is there and stopped: SIGSTOP, Ctrl-Z, a frozen debugger


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBatch:
    """What one look at all rings of a run gave."""

    records: tuple[StepRecord, ...] = ()
    frames: tuple[Frame, ...] = ()
    events: tuple[EventRecord, ...] = ()
    ranks: Mapping[int, RankStatus] = field(default_factory=dict)
    missed_records: int = 0
    bad_slots: int = 0
    late_records: int = 0  # came after the frame of their step had gone out
    unreadable: Mapping[str, str] = field(default_factory=dict)  # segment file -> one sentence why


@dataclass(frozen=True, slots=True, kw_only=True)
class HaltStatus:
    """The newest request of the run and how far it has come."""

    request_id: int = 0
    state: HaltState = HaltState.NONE
    action: Action = Action.NOTE
    reason: str = ""
    requested_by: str = ""  # rule name or "user"
    step: int = 0  # agreed step
    detail: str = ""  # checkpoint path or reason of failure
    requested_wall_ns: int = 0
    updated_wall_ns: int = 0
    pinned_checkpoint: str = ""
    dry_run: bool = False
    gave_way: str = ""  # what this request ended early: request 1 (capture) gave way to request 2 (checkpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole run at one moment: what the page, /metrics and `status` show."""

    run_id: str = ""
    node: str = ""
    wall_ns: int = 0
    ranks: Mapping[int, RankStatus] = field(default_factory=dict)
    samples: Mapping[str, Sample] = field(default_factory=dict)  # newest by entity
    findings: tuple[Finding, ...] = ()  # firing, roots first
    abstaining: Mapping[str, str] = field(default_factory=dict)  # rule -> why it cannot judge
    halt: HaltStatus = HaltStatus()
    context: Mapping[str, object] = field(default_factory=dict)  # trainer configuration from the config event
    health: Mapping[str, float] = field(default_factory=dict)  # the sentinel about itself, flat names
    notes: tuple[str, ...] = ()  # what is worth saying of the sentinel itself, one sentence each
    problems: tuple[str, ...] = ()  # those notes that tell of a part that is off or broken
    unjudged: str = ""  # why nothing is known of findings; then no layer is ok


_LAYER_OF_PROBE = {
    "groups": "data",
    "reward model": "reward",
    "reward calls": "reward",
    "carried": "gradient",
    "carried gradients": "gradient",
    "local gradients": "gradient",
    "optimizer hooks": "optimizer",
    "live tensors": "memory",
    "parameters": "optimizer",
    "phase": "time",
}
"""Of probes that have not their layer's name."""


def layers_seen(snapshot: Snapshot) -> frozenset[str]:
    """Name the layers of which a view may say "ok" when nothing fires; any other is not watched.

    A layer is seen when one of its signals has arrived, and no probe of it is off on a rank. That of the devices is
    seen only when a GPU has been read: figures of the host alone tell nothing about a device. None is of a run that is
    not judged.
    """
    if snapshot.unjudged:
        return frozenset()
    names = {name for status in snapshot.ranks.values() for name in status.values}
    for sample in snapshot.samples.values():
        names |= {name for name, value in sample.values.items() if (name, value) != ("device.gpu_count", 0)}
    seen = {layer_of(name) for name in names if layer_of(name) != "device" or name.startswith("device.gpu_")}
    off = {probe for base, probe in map(split_name, names) if base == "sentinel.probe_off"}
    return frozenset(seen - {_LAYER_OF_PROBE.get(probe, probe) for probe in off})


def chains(findings: Iterable[Finding]) -> list[tuple[Finding, tuple[Finding, ...]]]:
    """Give every root with what follows from it, both in the order given; each finding occurs once.

    Where a root is not among them, since it is over or only a note, the first that followed from it stands for it.
    """
    known = {finding.finding_id: finding for finding in findings}
    groups: dict[str, list[Finding]] = {}
    for finding in known.values():
        groups.setdefault(_head(finding, known), []).append(finding)
    out = []
    for name, group in groups.items():
        root = known.get(name, group[0])
        out.append((root, tuple(finding for finding in group if finding is not root)))
    return out


def _head(finding: Finding, known: Mapping[str, Finding]) -> str:
    """Name the root above all others that a finding follows from."""
    seen = {finding.finding_id}
    while finding.root_id in known and finding.root_id not in seen:
        finding = known[finding.root_id]
        seen.add(finding.finding_id)
    return finding.root_id or finding.finding_id


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkBatch:
    """What one turn of the daemon's loop hands to every sink; all parts may be empty."""

    run_id: str
    node: str
    wall_ns: int
    records: tuple[StepRecord, ...] = ()
    samples: tuple[Sample, ...] = ()
    events: tuple[EventRecord, ...] = ()
    findings: tuple[Finding, ...] = ()  # transitions: fired or resolved in this turn
    halt: HaltStatus | None = None  # set when it changed
    snapshot: Snapshot = field(default_factory=Snapshot)
