"""What an incident is made of: the facts at its head, and where the rest is read from while it is written.

history + rings ─▶ Source ─▶ writer ─▶ <state>/incidents/<run>-<id>/ ─▶ Bundle ─▶ Source ─▶ redacted export
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_sentinel.records import EventRecord, Finding, Sample, StepRecord

SCHEMA = "grpo-sentinel/incident"
SCHEMA_VERSION = 1


class State(enum.Enum):
    """Life of an incident."""

    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The facts at the head of a bundle."""

    incident_id: str
    run_id: str
    node: str
    state: State
    opened_wall_ns: int
    updated_wall_ns: int
    title: str  # message of the root finding
    root_id: str  # finding_id of the root
    onset_step: int  # first abnormal step of any of its findings
    last_step: int  # newest step of any rank
    ended: str = ""  # how the run ended, "" while it goes on

    @property
    def name(self) -> str:
        """Name of the bundle's folder."""
        return f"{self.run_id}-{self.incident_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """One file that goes into the bundle as it is."""

    name: str  # path inside the bundle
    source: Path | bytes
    what: str  # stacks | collectives | log | tensors | captured
    link: bool = False  # of a file that nobody changes: a hard link is enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Everything that a bundle is written from. The three iterators may be started more than once."""

    about: About
    findings: tuple[Finding, ...]  # newest state of each, the root first
    transitions: tuple[Finding, ...]
    records: Callable[[], Iterator[StepRecord]]
    events: Callable[[], Iterator[EventRecord]]
    samples: Callable[[], Iterator[Sample]]
    run: Mapping[str, Any] = field(default_factory=dict)  # ranks, requests, checkpoints, node, versions
    trainer: Mapping[str, Any] = field(default_factory=dict)
    sentinel: Mapping[str, Any] = field(default_factory=dict)
    attached: tuple[Attached, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)  # what is not there -> why


__all__ = ["SCHEMA", "SCHEMA_VERSION", "About", "Attached", "Source", "State"]
