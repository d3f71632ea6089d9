"""A run with real rings and a real history, and a recorder whose jobs run when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import sentinel_batches as made

from grpo_sentinel.clock import ManualClock
from grpo_sentinel.config import IncidentsConfig
from grpo_sentinel.history import HistoryStore
from grpo_sentinel.incidents.bundle import Bundle
from grpo_sentinel.incidents.recorder import IncidentRecorder
from grpo_sentinel.protocol import RankWriter
from grpo_sentinel.records import EventRecord, Finding, Liveness, Sample
from grpo_sentinel.views import Snapshot

RUN = made.RUN


class World:
    """Two ranks that train; `step` pushes into the rings and, unless told otherwise, into the history."""

    def __init__(self, state: Path, ring: Path, **config: Any) -> None:
        self.state, self.ring = state, ring
        self.clock = ManualClock(wall_ns=made.WALL_NS)
        self.config = IncidentsConfig(**config)
        self.store = HistoryStore(state / "history.sqlite", clock=self.clock)
        ring.mkdir(parents=True, exist_ok=True)
        self.writers = [RankWriter(ring, made.identity(rank)) for rank in (0, 1)]
        self.jobs: list[Callable[[], None]] = []
        self.step_now = 0
        self.firing: dict[str, Finding] = {}
        self.liveness = Liveness.ALIVE
        self.context: dict[str, Any] = {}
        self.recorder = self.new_recorder()

    def new_recorder(self, **sentinel: Any) -> IncidentRecorder:
        self.recorder = IncidentRecorder(
            self.state, self.config, node="node-a", submit=self.submit, history=self.store.path,
            sentinel=sentinel, clock=self.clock,
        )  # fmt: skip
        return self.recorder

    def submit(self, what: str, job: Callable[[], None]) -> bool:
        self.jobs.append(job)
        return True

    def work(self) -> int:
        done = 0
        while self.jobs:
            self.jobs.pop(0)()
            done += 1
        return done

    def step(self, values: dict[str, float] | None = None, *, stored: bool = True, **by_rank: dict[str, float]) -> None:
        self.step_now += 1
        records = []
        for rank, writer in enumerate(self.writers):
            mine = {"policy.loss": 0.1, **(values or {}), **by_rank.get(f"rank_{rank}", {})}
            writer.push(mine, step=self.step_now)
            records.append(
                made.record(self.step_now, rank, mine, sequence=10_000 + self.step_now, wall_ns=self.clock.wall_ns())
            )
        if stored:
            self.store.write(made.batch(*records))
            self.store.flush()
        self.clock.advance(1.0)

    def store_event(self, kind: str, body: dict[str, Any], step: int = 1, rank: int = 0) -> None:
        event = made.event(self.clock.wall_ns() % 10**9, kind, body, step=step, rank=rank)
        self.store.write(made.batch(events=(event,)))
        self.store.flush()

    def store_samples(self, *samples: Sample) -> None:
        self.store.write(made.batch(samples=samples))
        self.store.flush()

    def snapshot(self, **changes: Any) -> Snapshot:
        ranks = {rank: made.status(rank, last_step=self.step_now, liveness=self.liveness, values={}) for rank in (0, 1)}
        base = Snapshot(
            run_id=RUN, node="node-a", wall_ns=self.clock.wall_ns(), ranks=ranks, context=self.context,
            findings=tuple(self.firing.values()),
        )  # fmt: skip
        return replace(base, **changes)

    def find(self, *findings: Finding, **changes: Any) -> None:
        """One turn of the daemon with these findings; the history has them before the recorder does."""
        for finding in findings:
            if finding.state.value == "firing":
                self.firing[finding.finding_id] = finding
            else:
                self.firing.pop(finding.finding_id, None)
        if findings:
            self.store.write(made.batch(findings=findings))
            self.store.flush()
        self.recorder.update(self.snapshot(**changes), findings, self.ring)

    def bundle(self) -> Bundle:
        (path,) = self.folders()
        return Bundle(path)

    def folders(self) -> list[Path]:
        return sorted(path for path in self.recorder.root.iterdir() if not path.name.startswith("."))

    def close(self) -> None:
        for writer in self.writers:
            writer.close()
        self.store.close()


def event_of(bundle: Bundle, kind: str) -> EventRecord:
    return next(event for event in bundle.events() if event.kind == kind)
