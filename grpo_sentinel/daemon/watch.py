"""One watched run: rings -> frames -> findings -> control file, in one turn and in this order.

    poll rings ─▶ events, frames, samples through the rules ─▶ request written ─▶ all the rest (pins, sinks, page)

The request comes before anything that may take time: from a record that breaks a rule to a control file that the
trainer can read it is one poll interval.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from grpo_sentinel.clock import Clock
from grpo_sentinel.collectors.ranks import RankCollector
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.claim import Claim
from grpo_sentinel.daemon.health import Health
from grpo_sentinel.daemon.past import Past
from grpo_sentinel.daemon.pins import Pins
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.halting import HaltController
from grpo_sentinel.halting.worth_saving import worth_saving
from grpo_sentinel.records import (
    Action,
    EventRecord,
    Finding,
    FindingState,
    HaltState,
    Liveness,
    Sample,
    Severity,
    StepRecord,
)
from grpo_sentinel.rules.engine import Engine
from grpo_sentinel.rules.walk import Walk, walk
from grpo_sentinel.views import Cursor, HaltStatus, RankBatch, RankStatus, SinkBatch, Snapshot

log = logging.getLogger(__name__)

TICK_NS = 250_000_000  # silence, death and stragglers are judged so often
PUBLISH_NS = 200_000_000  # records are handed on in bundles of so long; findings at once
IDLE_PUBLISH_NS = 1_000_000_000
ABSTAIN_NS = 5_000_000_000  # why rules cannot judge is asked so often: it walks over all of them
_LIVING = (Liveness.ALIVE, Liveness.UNKNOWN)
OVER_POLL_NS = 2_000_000_000  # a run that has ended is looked at so often


class RunWatch:
    """Everything about one run directory, used from the daemon's loop only."""

    def __init__(
        self,
        claim: Claim,
        config: Config,
        clock: Clock,
        engine: Engine,
        halting: HaltController,
        pins: Callable[[Callable[[str], None]], Pins],
        health: Health,
        node: str,
        cursors: Mapping[int, Cursor],
        context: Mapping[str, object],
        past: Past | None = None,
    ) -> None:
        self.claim = claim
        self.past = past  # ended before we came: recorded and shown, not judged
        self.run_id = claim.directory.name
        self.halting = halting
        self.snapshot = Snapshot(run_id=self.run_id, node=node)
        self.seen_alive = False
        self._clock = clock
        self._engine = engine
        self._pins = pins(halting.pinned)
        self._pins.look_in(context.get("output_dir"))
        self._health = health
        self._node = node
        self._context: dict[str, object] = dict(context)
        self._collector = RankCollector(
            claim.directory,
            clock,
            cursors,
            late_rank_seconds=config.rules.late_rank_seconds,
            dead_seconds=config.rank_dead_seconds,
        )
        self._ranks: Mapping[int, RankStatus] = {}
        self._processes: set[tuple[int, int]] = set()  # of all ranks seen so far: pid and its start
        self._told_ended: set[tuple[int, int]] = set()
        self._notes: dict[str, str] = {}
        self._records: list[StepRecord] = []
        self._events: list[EventRecord] = []
        self._samples: list[Sample] = []
        self._newest_samples: dict[str, Sample] = {}
        self._transitions: list[Finding] = []
        self._told: dict[str, str] = {}  # finding that fires -> its line in the log
        self._told_halt = HaltStatus() if past is None else past.halt
        self._passed: list[SinkBatch] = []
        self._ticked_ns = 0
        self._published_ns = 0
        self._polled_ns = 0
        self._abstaining: Mapping[str, str] = {}
        self._abstained_ns = 0
        self._lived_ns = 0
        self.quiet_since_ns = clock.monotonic_ns()

    @property
    def ranks(self) -> Mapping[int, RankStatus]:
        """Newest state of every rank."""
        return self._ranks

    def walked(self) -> Walk:
        """Walk backwards through what fires now; may be called from any thread."""
        shown = self.snapshot
        return walk(self._engine.rules, shown.findings, shown.abstaining, self._engine.checkpoints)

    @property
    def over(self) -> bool:
        """Tell whether every rank has left or died."""
        return bool(self._ranks) and not self._alive()

    def _alive(self) -> bool:
        return any(status.liveness in _LIVING for status in self._ranks.values())

    def turn(self, samples: Sequence[Sample]) -> SinkBatch | None:
        """Take in what is new, judge, act; gives a batch when it is time to hand one on. Never raises."""
        now = self._clock.monotonic_ns()
        if self.past is not None and self._polled_ns:
            return None  # read to its end; ranks that are started again belong to another watch
        if not self.over:
            self._lived_ns = now
        elif now - self._lived_ns > OVER_POLL_NS:  # its end has been judged by now
            if now - self._polled_ns < OVER_POLL_NS:
                return None
            samples = ()  # what the host does now says nothing about a run that has ended
        self._polled_ns = now
        batch = self._collector.poll()
        self._ranks = batch.ranks
        self.seen_alive = self.seen_alive or self._alive()
        if self.past is not None:
            for event in batch.events:
                if event.kind == "config" and (event.rank == 0 or not self._context):
                    self._context.update(event.body)
            self._gather(batch, (), [], now)
            return self._hand_on(now)
        findings = self._judge(batch, samples, now)
        self._act(findings, batch.events)
        self._gather(batch, samples, findings, now)
        return self._hand_on(now)

    # ---- judging

    def _judge(self, batch: RankBatch, samples: Sequence[Sample], now: int) -> list[Finding]:
        findings = self._guard("restart", self._notice_restart)
        for event in batch.events:
            if event.kind == "config" and (event.rank == 0 or not self._context):
                self._context.update(event.body)  # one rank speaks for all, rank 0 where it is on this node
                findings += self._guard("configuration", self._configure)
            findings += self._guard("event", lambda event=event: self._engine.event(event))  # type: ignore[misc]
        for frame in batch.frames:
            findings += self._guard("frame", lambda frame=frame: self._engine.frame(frame))  # type: ignore[misc]
        for sample in samples:
            findings += self._guard("sample", lambda sample=sample: self._engine.sample(sample))  # type: ignore[misc]
        findings += self._guard("ending", self._notice_ending)
        if now - self._ticked_ns >= TICK_NS:
            self._ticked_ns = now
            findings += self._guard("tick", lambda: self._engine.tick(self._clock.wall_ns(), self._ranks))
        return findings

    def _notice_restart(self) -> Iterable[Finding]:
        """Let the rules begin anew when all ranks are new processes: a run resumed under its old name."""
        seen, self._processes = self._processes, self._processes | {*map(_process, self._ranks.values())}
        alive = {_process(status) for status in self._ranks.values() if status.liveness in _LIVING}
        return self._engine.begin_anew() if alive and seen and not alive & seen else ()

    def _notice_ending(self) -> Iterable[Finding]:
        """Tell the rules once that somebody ended the run from outside."""
        said = {rank: one.closed_detail or "" for rank, one in self._ranks.items()}
        ended = {rank: text for rank, text in said.items() if text.startswith("ended by signal")}
        fresh = {rank: text for rank, text in ended.items() if _process(self._ranks[rank]) not in self._told_ended}
        if not fresh:
            return ()
        self._told_ended |= {_process(self._ranks[rank]) for rank in fresh}
        rank, text = min(fresh.items())
        log.info("run %s: %s (ranks %s)", self.run_id, text, ", ".join(map(str, sorted(fresh))))
        event = EventRecord(run_id=self.run_id, rank=rank, sequence=0, step=self._ranks[rank].heartbeat.step,
                            wall_ns=self._clock.wall_ns(), kind="ended", body={"detail": text})  # fmt: skip
        return self._engine.event(event)

    def _guard(self, what: str, judge: Callable[[], Iterable[Finding]]) -> list[Finding]:
        """Run one part of the rules; an error in a rule is counted and said once, the loop goes on."""
        try:
            return list(judge())
        except Exception as error:  # noqa: BLE001 - rules may be a user's
            self._health.counts["rule_errors_total"] += 1
            self._note(f"rules/{what}", f"a rule failed on {what}: {type(error).__name__}: {error}")
            return []

    def _configure(self) -> Iterable[Finding]:
        self._engine.configure(dict(self._context))
        return ()

    # ---- acting

    def _act(self, findings: Sequence[Finding], events: Sequence[EventRecord]) -> None:
        """Write what findings ask for, then follow the request under way."""
        try:
            if self._alive():
                asking = findings if findings else self._still_asking()
                self.halting.consider(worth_saving(asking, self._engine.active))
            self.halting.observe(events)
            self.halting.poll(self._ranks)
            self._notes.pop("halting", None)
        except (SentinelError, OSError) as error:
            self._note("halting", f"the run cannot be asked to halt: {error}")
        self._pins.observe(events)
        self._pins.consider(findings, self._engine.active() if findings else ())

    def _still_asking(self) -> Sequence[Finding]:
        """Findings that fire on may ask after a cooldown; looked at with every tick only."""
        return self._engine.active() if self._ticked_ns == self._polled_ns else ()

    def request(self, action: Action, reason: str, requested_by: str) -> int:
        """Make a person's request; raises `SentinelError` when it cannot be made."""
        if self.over:
            raise SentinelError(f"run {self.run_id} has ended: there is nobody to ask")
        return self.halting.request(action, reason, requested_by)

    # ---- handing on

    def _gather(self, batch: RankBatch, samples: Sequence[Sample], findings: list[Finding], now: int) -> None:
        counts = self._health.counts
        counts["records_total"] += len(batch.records)
        counts["events_total"] += len(batch.events)
        counts["missed_records_total"] += batch.missed_records
        counts["bad_slots_total"] += batch.bad_slots
        if batch.records:
            newest = max(record.wall_ns for record in batch.records)
            self._health.read((self._clock.wall_ns() - newest) / 1e9)
        for name, why in batch.unreadable.items():
            self._note(f"segment/{name}", why)
        self._records += batch.records
        self._events += batch.events
        self._samples += samples
        self._newest_samples.update({sample.entity: sample for sample in samples})
        self._transitions += findings
        for finding in findings:
            self._tell(finding)
        if batch.records or batch.events or findings:
            self.quiet_since_ns = now

    def _tell(self, finding: Finding) -> None:
        """One line per change of a finding that changes the line; notes stay in the history."""
        if finding.severity is Severity.NOTE:
            return
        if finding.state is FindingState.RESOLVED:
            self._told.pop(finding.finding_id, None)
            log.info("resolved: %s (since step %d)", finding.message, finding.onset_step)
            return
        where = f"rank {', '.join(map(str, finding.ranks))}" if finding.ranks else "rank not known"
        line = (
            f"{finding.severity.name.lower()}: {finding.message} "
            f"[{finding.layer}, {where}, since step {finding.onset_step}]"
        )
        if line not in self._told.values():
            log.log(logging.ERROR if finding.severity is Severity.CRITICAL else logging.WARNING, "%s", line)
        self._told[finding.finding_id] = line

    @property
    def problems(self) -> tuple[str, ...]:
        """What of this run cannot be read, judged or asked."""
        return tuple(self._notes.values())

    def _note(self, key: str, text: str) -> None:
        if self._notes.get(key) != text:
            self._notes[key] = text
            log.warning("%s", text)

    def _hand_on(self, now: int) -> SinkBatch | None:
        news = self._records or self._events or self._samples
        urgent = self._transitions or self._halt() != self._told_halt or self._just_left()
        waited = now - self._published_ns
        idle = waited >= IDLE_PUBLISH_NS and (now == self._lived_ns or not self._published_ns)
        if not (urgent or (news and waited >= PUBLISH_NS) or idle):
            return None
        return self.bundle()

    def _just_left(self) -> bool:
        """Tell whether all ranks have left or died since the last batch: one that ends brings no other news."""
        return self.over and any(status.liveness in _LIVING for status in self.snapshot.ranks.values())

    def _halt(self) -> HaltStatus:
        """Give where the newest request stands; that of a past run was told when it was made."""
        return self.halting.status if self.past is None else self._told_halt

    def bundle(self) -> SinkBatch:
        """Make a batch of everything not handed on yet."""
        self._published_ns = self._clock.monotonic_ns()
        self._pass_on()
        halt = self._halt()
        if halt != self._told_halt:
            _tell_halt(halt, self._told_halt)
        self.snapshot = self._snapshot(halt)
        batch = SinkBatch(
            run_id=self.run_id,
            node=self._node,
            wall_ns=self.snapshot.wall_ns,
            records=tuple(self._records),
            samples=tuple(self._samples),
            events=tuple(self._events),
            findings=tuple(self._transitions),
            halt=halt if halt != self._told_halt else None,
            snapshot=self.snapshot,
        )
        self._told_halt = halt
        for kept in (self._records, self._samples, self._events, self._transitions):
            kept.clear()
        return batch

    def passed(self) -> list[SinkBatch]:
        """Give the ends of requests that another has replaced, each a batch of its own; to be published first."""
        out, self._passed = self._passed, []
        return out

    def _pass_on(self) -> None:
        """Make a batch of the end of every request that another has replaced before anyone was told of it."""
        for halt in self.halting.passed():
            if halt == self._told_halt:
                continue
            _tell_halt(halt, self._told_halt)
            self._told_halt = halt
            snapshot = replace(self.snapshot, ranks=self._ranks, wall_ns=self._clock.wall_ns(), halt=halt)
            self._passed.append(
                SinkBatch(run_id=self.run_id, node=self._node, wall_ns=snapshot.wall_ns, halt=halt, snapshot=snapshot)
            )

    def _snapshot(self, halt: HaltStatus) -> Snapshot:
        if self._published_ns >= self._abstained_ns + ABSTAIN_NS or not self._abstaining:
            self._abstained_ns = self._published_ns
            self._abstaining = dict(self._engine.abstaining())
        return Snapshot(
            run_id=self.run_id,
            node=self._node,
            wall_ns=self._clock.wall_ns(),
            ranks=self._ranks,
            samples=dict(self._newest_samples),
            findings=tuple(self._guard("active", self._engine.active)) if self.past is None else self.past.findings,
            abstaining=self._abstaining,
            halt=halt,
            context=dict(self._context),
            health=self._health.numbers(self._clock.monotonic_ns()),
            notes=(*([] if self.past is None else [self.past.note]), *self._notes.values()),
            unjudged="" if self.past is None else self.past.unjudged,
        )

    def close(self, *, release: bool = True) -> None:
        """Unmap the rings and let the run go, unless it is watched on with the same claim."""
        self._collector.close()
        if release:
            self.claim.release()


def _tell_halt(halt: HaltStatus, before: HaltStatus) -> None:
    """Say what has changed; that a checkpoint has been kept meanwhile is said by itself."""
    if (halt.state is HaltState.NONE and not halt.dry_run) or _aside(halt) == _aside(before):
        return
    if halt.dry_run:
        log.warning("%s (%s)", halt.detail, halt.reason)
        return
    at = f" at step {halt.step}" if halt.step else ""
    more = f": {halt.detail}" if halt.detail else ""
    log.warning("request %d (%s, by %s) %s%s%s", halt.request_id, halt.action.name.lower().replace("_", "-"),
                halt.requested_by, halt.state.name.lower(), at, more)  # fmt: skip


def _aside(halt: HaltStatus) -> HaltStatus:
    return replace(halt, pinned_checkpoint="", updated_wall_ns=0)


def _process(status: RankStatus) -> tuple[int, int]:
    return status.identity.pid, status.identity.pid_start_ticks


def unbounded(value: float | None) -> float:
    """Give a bound that stops nothing where none is set."""
    return math.inf if value is None else value


__all__ = ["RunWatch", "unbounded"]
