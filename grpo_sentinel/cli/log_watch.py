"""A run without an agent: its log, line by line, through the same rules, sinks and page as a run with one.

    line ─▶ LogReader ─▶ record, event ─▶ frame once its step is over ─▶ engine ─▶ findings ─▶ batch ─▶ sinks

One rank stands for the run: its heartbeat is the arrival of metric rows. It counts only from the time at which the log
has been read up to its end, since what was there before came at no pace of its own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace

from grpo_sentinel.clock import Clock
from grpo_sentinel.history.logs.lines import Line
from grpo_sentinel.history.replay import frames
from grpo_sentinel.history.sources.text import LogReader
from grpo_sentinel.records import EventRecord, Finding, Heartbeat, Liveness, Phase, RankIdentity, StepRecord
from grpo_sentinel.rules import Engine
from grpo_sentinel.views import RankStatus, SinkBatch, Snapshot

CLOSE_NS = 1_000_000_000  # a step is over when its rows have not grown for so long, or another step begins
PUBLISH_NS = 1_000_000_000
_MOST_RECORDS = 500  # of one batch: reading a long log from its start must not gather it in memory


class LogWatch:
    """Judges one growing log. Single thread; constant memory."""

    def __init__(self, run_id: str, engine: Engine, clock: Clock, publish: Callable[[SinkBatch], None]) -> None:
        self.run_id = run_id
        self.node = socket.gethostname()
        self.snapshot = Snapshot(run_id=run_id, node=self.node)
        self.steps = 0
        self._engine = engine
        self._clock = clock
        self._publish = publish
        self._reader = LogReader(run_id)
        self._held: list[StepRecord] = []
        self._records: list[StepRecord] = []
        self._events: list[EventRecord] = []
        self._findings: list[Finding] = []
        self._rank = RankStatus(
            identity=_identity(run_id, self.node, clock.wall_ns()),
            heartbeat=Heartbeat(step=0, phase=Phase.IDLE, phase_since_wall_ns=0, updated_wall_ns=0),
            liveness=Liveness.ALIVE,
            last_step=0,
        )
        self._live = False
        self._grew_ns = self._published_ns = clock.monotonic_ns()

    def take(self, line: Line) -> list[Finding]:
        """Take one line; gives what the rules say of what it completes."""
        out: list[Finding] = []
        for found in self._reader.feed(line):
            if isinstance(found, StepRecord):
                if self._held and found.step != self._held[-1].step:
                    out += self._close()
                self._hold(found)
            else:
                out += self._close()
                event = replace(found, wall_ns=self._clock.wall_ns())
                self._events.append(event)
                out += self._tell(self._engine.event(event))
        if len(self._records) >= _MOST_RECORDS:
            self.publish()
        return out

    def idle(self) -> list[Finding]:
        """Nothing new for now: close the step that has come to rest, look for silence, hand on what is due."""
        now = self._clock.monotonic_ns()
        out = self._close() if self._held and now - self._grew_ns >= CLOSE_NS else []
        self._live = True
        if self._rank.heartbeat.phase_since_wall_ns:
            out += self._tell(self._engine.tick(self._clock.wall_ns(), {0: self._rank}))
        if out or now - self._published_ns >= PUBLISH_NS:
            self.publish()
        return out

    def finish(self) -> list[Finding]:
        """The log is over: judge what is still held."""
        for record in self._reader.close():
            self._hold(record)
        out = self._close()
        self._rank = replace(self._rank, liveness=Liveness.CLOSED, closed_detail="the log ended")
        self.publish()
        return out

    def publish(self) -> None:
        """Hand everything new to the sinks."""
        self._published_ns = self._clock.monotonic_ns()
        wall_ns = self._clock.wall_ns()
        self.snapshot = Snapshot(
            run_id=self.run_id, node=self.node, wall_ns=wall_ns, ranks={0: self._rank},
            findings=self._engine.active(), abstaining=self._engine.abstaining(),
            context={"source": "log", "formats": sorted(self._reader.formats)},
            notes=("read from a log: there is no agent, so nothing can be asked of this run",),
        )  # fmt: skip
        batch = SinkBatch(
            run_id=self.run_id, node=self.node, wall_ns=wall_ns, records=tuple(self._records),
            events=tuple(self._events), findings=tuple(self._findings), snapshot=self.snapshot,
        )  # fmt: skip
        self._publish(batch)
        self._records.clear()
        self._events.clear()
        self._findings.clear()

    # ---- inside

    def _hold(self, record: StepRecord) -> None:
        """Keep a record until its step is over; it is stamped with the time at which it was seen."""
        wall_ns = self._clock.wall_ns()
        self._grew_ns = self._clock.monotonic_ns()
        seen = replace(record, wall_ns=wall_ns, monotonic_ns=self._grew_ns, rank=0) if self._live else record
        self._held.append(seen)
        if self._live:
            beat = Heartbeat(
                step=record.step, phase=Phase.FORWARD, phase_since_wall_ns=wall_ns, updated_wall_ns=wall_ns
            )
            self._rank = replace(self._rank, heartbeat=beat)

    def _close(self) -> list[Finding]:
        out: list[Finding] = []
        for frame in frames(self._held, self.run_id):
            self.steps += 1
            out += self._engine.frame(frame)
        if self._held:
            values = {name: value for record in self._held for name, value in record.values.items()}
            self._rank = replace(
                self._rank, last_step=self._held[-1].step, values=values, updated_wall_ns=self._held[-1].wall_ns
            )
        self._records += self._held
        self._held = []
        return self._tell(out)

    def _tell(self, found: list[Finding]) -> list[Finding]:
        self._findings += found
        return found


def _identity(run_id: str, host: str, wall_ns: int) -> RankIdentity:
    """The one rank that stands for the run; its process is not known."""
    return RankIdentity(
        run_id=run_id, rank=0, local_rank=0, world_size=1, role="log", host=host, pid=os.getpid(),
        pid_start_ticks=0, pid_namespace=0, boot_id="", created_wall_ns=wall_ns,
    )  # fmt: skip


__all__ = ["LogWatch"]
