"""Turns findings into incidents and has their bundles written: at once, as they develop, and when the run has ended.

    a grave finding ─▶ incident opens ─▶ bundle written at once (evidence before the crash)
    more findings of its chain, a request, a death ─▶ written anew, at most every 2 s and for 2 % of a core
    all resolved for a minute, or the run has ended ─▶ written for the last time, closed

A storm is one incident: findings join by their root, and what flaps joins the one that it began. The loop only compares
ids; reading and writing happen in the job that `submit` runs elsewhere.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from grpo_sentinel.clock import Clock, SystemClock
from grpo_sentinel.config import IncidentsConfig
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.incidents.bundle import Bundle, pack
from grpo_sentinel.incidents.evidence import clear, spool_dir, sweep
from grpo_sentinel.incidents.gather import Gatherer, Known
from grpo_sentinel.incidents.membership import asked_for, belongs, ending, newest_step, over
from grpo_sentinel.incidents.model import About, State
from grpo_sentinel.incidents.places import ARCHIVE, bundles, enforce, incidents_dir, recover
from grpo_sentinel.incidents.writing import write_bundle
from grpo_sentinel.records import Action, Finding, FindingState, Liveness, RankIdentity, Severity
from grpo_sentinel.views import HaltStatus, Snapshot

log = logging.getLogger(__name__)

Submit = Callable[[str, Callable[[], None]], bool]
"""Runs a job in another thread, in the order of submission; False when too much waits already."""

TakeStacks = Callable[[Path, Sequence[RankIdentity], str], None]
"""Has the stacks of some ranks of a run's directory written where the gatherer finds them. Never blocks."""

REWRITE_NS = 2_000_000_000  # between two writings of one bundle ...
_REWRITE_SHARE = 50  # ... and so many times what the last one took: a storm changes an incident all the time
REFRESH_NS = 60_000_000_000  # an open one is written anew so often while steps go on
QUIET_NS = 60_000_000_000  # all findings resolved for so long: closed
OVER_NS = 2_000_000_000  # all ranks gone for so long: closed
_MOST_TRANSITIONS = 500
_MOST_TOLD = 500


@dataclass(slots=True)
class _Incident:
    """One incident; touched by the daemon's loop only, except for `writing`."""

    about: About
    findings: dict[str, Finding] = field(default_factory=dict)
    transitions: list[Finding] = field(default_factory=list)
    members: set[str] = field(default_factory=set)  # also those known only from an earlier bundle
    dirty: bool = True
    more_comes: bool = False  # stacks are being taken: to be written once more
    changed_ns: int = 0
    written_ns: int | None = None
    written_step: int = 0
    took_ns: int = 0  # CPU time of the newest writing
    writing: bool = False


@dataclass(slots=True)
class _Run:
    """What is known of one run."""

    snapshot: Snapshot
    directory: Path | None = None
    incidents: list[_Incident] = field(default_factory=list)
    told: dict[str, Finding] = field(default_factory=dict)  # newest of the run: a root may be over by now
    opened: int = 0
    halt: HaltStatus = field(default_factory=HaltStatus)
    over_since_ns: int | None = None


class IncidentRecorder:
    """Keeps the incidents of all watched runs. No method raises for the disk's or a bundle's sake."""

    def __init__(
        self,
        state_dir: Path,
        config: IncidentsConfig,
        *,
        node: str,
        submit: Submit,
        history: Path | None = None,
        sentinel: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        stacks: TakeStacks | None = None,
    ) -> None:
        self.root = incidents_dir(state_dir)
        self.trouble = ""  # why the newest writing failed, "" when it did not
        self._config = config
        self._node = node
        self._submit = submit
        self._clock = clock or SystemClock()
        self._stacks = stacks if config.stacks else None
        self._gatherer = Gatherer(state_dir=state_dir, config=config, history=history, sentinel=sentinel or {})
        self._least = Severity[config.severity.upper()]
        self._runs: dict[str, _Run] = {}
        self._counts = dict.fromkeys(
            ("opened_total", "joined_total", "written_total", "errors_total", "deleted_total", "bytes"), 0
        )
        self._lock = threading.Lock()  # of the counts
        self._spool = spool_dir(state_dir)
        if config.enabled:
            recover(self.root)
            sweep(self._spool)

    # ---- from the loop

    def update(
        self,
        snapshot: Snapshot,
        findings: Sequence[Finding] = (),
        directory: Path | None = None,
        *,
        judged: bool = True,
    ) -> None:
        """Take one turn of one run: its snapshot, and the findings that fired, were refined or resolved in it.

        Of a run that is not `judged`, because it ended long ago, what is open is closed and nothing is opened.
        """
        if not self._config.enabled:
            return
        try:
            self._update(snapshot, findings, directory, judged)
        except Exception as error:  # noqa: BLE001 - the loop that halts training runs through here
            self._failed(f"incidents of run {snapshot.run_id}: {type(error).__name__}: {error}")

    def tick(self) -> None:
        """Write and close what is due by the clock, also for a run that says nothing any more; once per turn."""
        now = self._clock.monotonic_ns()
        for run_id, run in list(self._runs.items()):
            self._tend_all(run, now)
            if run.over_since_ns is not None and not run.incidents:
                del self._runs[run_id]

    def complete(self, run_id: str) -> None:
        """Write every open bundle of a run for the last time and forget the run; it has ended or is let go."""
        run = self._runs.pop(run_id, None)
        if run is not None:
            self._close_all(run)

    def close(self) -> None:
        """Write what is not written yet; the run may go on, so its bundles stay open for the next daemon."""
        for run in self._runs.values():
            if over(run.snapshot):
                self._close_all(run)
                continue
            for incident in run.incidents:
                if incident.dirty:
                    self._write(run, incident)
        self._runs.clear()

    def health(self) -> dict[str, float]:
        """Numbers about itself."""
        with self._lock:
            out = {name: float(value) for name, value in self._counts.items()}
        out["open"] = float(sum(len(run.incidents) for run in self._runs.values()))
        return out

    # ---- runs

    def _update(self, snapshot: Snapshot, findings: Sequence[Finding], directory: Path | None, judged: bool) -> None:
        run = self._run(snapshot, directory)
        now = self._clock.monotonic_ns()
        for finding in findings:
            self._take(run, finding, now)
        for finding in asked_for(snapshot, run.halt) if judged else ():
            self._take(run, finding, now)
        if snapshot.halt.request_id and snapshot.halt != run.halt:
            self._changed(run.incidents, now)
        run.halt = snapshot.halt
        self._tend_all(run, now)

    def _tend_all(self, run: _Run, now: int) -> None:
        self._see_end(run, now)
        for incident in list(run.incidents):
            self._tend(run, incident, now)

    def _run(self, snapshot: Snapshot, directory: Path | None) -> _Run:
        run = self._runs.get(snapshot.run_id)
        if run is None:
            run = self._runs[snapshot.run_id] = _Run(snapshot)
            self._carry_on(run)
        run.snapshot = snapshot
        run.directory = directory or run.directory
        return run

    def _carry_on(self, run: _Run) -> None:
        """Take up the bundles that an earlier daemon left open."""
        prefix = f"{run.snapshot.run_id}-"
        for path, manifest in bundles(self.root):
            about = manifest["incident"]
            if not path.name.startswith(prefix) or about.get("run_id") != run.snapshot.run_id:
                continue
            if about.get("node") != self._node:  # a state directory may be shared by nodes
                continue
            run.opened += 1
            if about.get("state") != State.OPEN.value:
                continue
            try:
                source = Bundle(path).source()
            except SentinelError as error:
                log.warning("%s is not carried on: %s", path, error)
                continue
            findings = {finding.finding_id: finding for finding in source.findings}
            run.incidents.append(
                _Incident(source.about, findings, members=set(findings), changed_ns=self._clock.monotonic_ns())
            )

    def _see_end(self, run: _Run, now: int) -> None:
        """Close what is open a moment after the last rank has left or died: late findings still join."""
        if not over(run.snapshot):
            run.over_since_ns = None
        elif run.over_since_ns is None:
            run.over_since_ns = now
        elif now - run.over_since_ns >= OVER_NS and run.incidents:
            self._close_all(run)

    def _close_all(self, run: _Run) -> None:
        for incident in run.incidents:
            self._write(run, incident, closed=True)
        run.incidents.clear()
        self._clear(run)

    def _clear(self, run: _Run) -> None:
        """Take captured files out of the spool once no open bundle may need them; after the writing before it."""
        if not run.incidents:
            self._submit("clearing the spool", partial(clear, self._spool, run.snapshot.run_id))

    # ---- findings

    def _take(self, run: _Run, finding: Finding, now: int) -> None:
        run.told.pop(finding.finding_id, None)
        run.told[finding.finding_id] = finding
        if len(run.told) > _MOST_TOLD:
            del run.told[next(iter(run.told))]
        homes = [one for one in run.incidents if belongs(finding, one.members, one.findings.values())]
        grave = finding.severity >= self._least or finding.action >= Action.CAPTURE
        if not homes:
            if not grave or finding.state is not FindingState.FIRING:
                return
            homes = [self._open(run, finding, now)]
        home = homes[0]
        for other in homes[1:]:  # their common root became known
            self._merge(run, other, home)
        home.findings[finding.finding_id] = finding
        home.members.add(finding.finding_id)
        home.transitions = [*home.transitions[-_MOST_TRANSITIONS:], finding]
        self._adopt(run, home)
        self._changed([home], now)

    def _open(self, run: _Run, finding: Finding, now: int) -> _Incident:
        if run.opened >= self._config.max_incidents and run.incidents:
            self._count("joined_total")
            return run.incidents[-1]
        wall_ns = self._clock.wall_ns()
        seed = f"{self._node}\n{run.snapshot.run_id}\n{finding.finding_id}\n{wall_ns}".encode()
        about = About(
            incident_id=hashlib.sha256(seed).hexdigest()[:8], run_id=run.snapshot.run_id, node=self._node,
            state=State.OPEN, opened_wall_ns=wall_ns, updated_wall_ns=wall_ns, title=finding.message,
            root_id=finding.root_id or finding.finding_id, onset_step=finding.onset_step, last_step=finding.step,
        )  # fmt: skip
        incident = _Incident(about, changed_ns=now)
        run.incidents.append(incident)
        run.opened += 1
        self._count("opened_total")
        if finding.severity >= Severity.CRITICAL:
            self._take_stacks(run, incident, finding.message)
        return incident

    def _take_stacks(self, run: _Run, incident: _Incident, why: str) -> None:
        """Ask for the stacks of the ranks that live: where they stand while it is happening."""
        alive = [one.identity for one in run.snapshot.ranks.values() if one.liveness is Liveness.ALIVE]
        if self._stacks is not None and run.directory is not None and alive:
            self._stacks(run.directory, alive, why)
            incident.more_comes = True

    def _adopt(self, run: _Run, incident: _Incident) -> None:
        """Bring in what belongs to it: what fires now, and the roots that were mere warnings, over or not."""
        roots = {one.root_id for one in incident.findings.values()}
        for finding in (*run.snapshot.findings, *(run.told[name] for name in roots if name in run.told)):
            if finding.finding_id not in incident.members and belongs(
                finding, incident.members, incident.findings.values()
            ):
                incident.findings[finding.finding_id] = finding
                incident.members.add(finding.finding_id)

    def _merge(self, run: _Run, other: _Incident, home: _Incident) -> None:
        home.findings.update(other.findings)
        home.members |= other.members
        home.transitions += other.transitions
        run.incidents.remove(other)
        self._submit(f"removing {other.about.name}, which is part of {home.about.name}", _remover(self.root, other))

    def _changed(self, incidents: Collection[_Incident], now: int) -> None:
        for incident in incidents:
            incident.dirty, incident.changed_ns = True, now

    # ---- writing

    def _tend(self, run: _Run, incident: _Incident, now: int) -> None:
        """Write when it is time to, and close what has been quiet."""
        if not any(one.state is FindingState.FIRING for one in incident.findings.values()) and (
            now - incident.changed_ns >= QUIET_NS
        ):
            self._write(run, incident, closed=True)
            run.incidents.remove(incident)
            self._clear(run)
            return
        since = None if incident.written_ns is None else now - incident.written_ns
        moved = newest_step(run.snapshot) > incident.written_step
        pause_ns = max(REWRITE_NS, _REWRITE_SHARE * incident.took_ns)
        due = since is None or (incident.dirty and since >= pause_ns) or (moved and since >= REFRESH_NS)
        if due and not incident.writing:
            self._write(run, incident)

    def _write(self, run: _Run, incident: _Incident, *, closed: bool = False) -> None:
        """Hand the writing of a bundle on; everything that the job needs is frozen here."""
        incident.about = self._described(run, incident, closed)
        known = Known(
            about=incident.about, members=frozenset(incident.members), findings=tuple(incident.findings.values()),
            transitions=tuple(incident.transitions), snapshot=run.snapshot, directory=run.directory,
        )  # fmt: skip
        active = {one.about.name for other in self._runs.values() for one in other.incidents} | {incident.about.name}
        first = incident.written_ns is None and not closed
        incident.writing = True
        if not self._submit(f"writing incident {known.about.name}", lambda: self._job(incident, known, active, first)):
            incident.writing = False
            self._failed(f"too many jobs wait; incident {known.about.name} is written later")
            return
        incident.dirty, incident.more_comes = incident.more_comes, False
        incident.written_ns = self._clock.monotonic_ns()
        incident.written_step = incident.about.last_step

    def _described(self, run: _Run, incident: _Incident, closed: bool) -> About:
        found = list(incident.findings.values())
        roots = [one for one in found if one.root_id not in incident.findings]
        root = min(roots or found, key=lambda one: (one.onset_step, -int(one.severity), one.wall_ns))
        ended = ending(run.snapshot)
        return replace(
            incident.about, state=State.CLOSED if closed else State.OPEN, updated_wall_ns=self._clock.wall_ns(),
            title=root.message, root_id=root.finding_id, onset_step=min(one.onset_step for one in found),
            last_step=max(newest_step(run.snapshot), incident.about.last_step), ended=ended,
        )  # fmt: skip

    def _job(self, incident: _Incident, known: Known, active: set[str], first: bool) -> None:
        """Runs elsewhere: read, write, pack, keep the budget. Whatever goes wrong is counted and said."""
        target = self.root / known.about.name
        begun_ns = time.thread_time_ns()
        try:
            source = self._gatherer.source(known)
            write_bundle(source, target, self._config.samples, attach_bytes=self._config.max_bytes // 4)
            if known.about.state is State.CLOSED and self._config.archive:
                pack(target, target.with_name(target.name + ARCHIVE))
                _remover(self.root, incident)()
            left, deleted = enforce(self.root, self._config.max_bytes, active | {name + ARCHIVE for name in active})
        except Exception as error:  # noqa: BLE001 - evidence must not cost the daemon anything
            self._failed(f"incident {known.about.name} could not be written: {error}")
        else:
            with self._lock:
                self._counts["written_total"] += 1
                self._counts["deleted_total"] += deleted
                self._counts["bytes"] = left
            if first or self.trouble:
                log.warning("incident written to %s", target)
            self.trouble = ""
        finally:
            incident.took_ns = time.thread_time_ns() - begun_ns
            incident.writing = False

    def _failed(self, why: str) -> None:
        self._count("errors_total")
        if why != self.trouble:
            log.warning("%s", why)
        self.trouble = why

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1


def _remover(root: Path, incident: _Incident) -> Callable[[], None]:
    return lambda: shutil.rmtree(root / incident.about.name, ignore_errors=True)


__all__ = ["IncidentRecorder", "Submit"]
