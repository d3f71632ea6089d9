"""Finds everything that belongs to an incident of a run that goes on or has died: history first, rings for the rest.

history   all that was committed, from `keep_steps` before the onset
rings     what the trainer pushed last and nobody committed: after its death, the black box

[onset - keep, onset + keep]  and  [newest - keep, newest]    of every rank
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from glob import glob
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from grpo_sentinel._version import __version__
from grpo_sentinel.catalog import LAYERS
from grpo_sentinel.config import IncidentsConfig
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.harm import kept_before
from grpo_sentinel.history import HistoryReader
from grpo_sentinel.history.codec import plain
from grpo_sentinel.incidents.evidence import captured, spool_dir
from grpo_sentinel.incidents.membership import why_not_captured
from grpo_sentinel.incidents.model import About, Attached, Source
from grpo_sentinel.protocol import Batch, RankReader, list_segments
from grpo_sentinel.records import EventRecord, Finding, Sample, StepRecord
from grpo_sentinel.scrub import scrub
from grpo_sentinel.views import HaltStatus, Snapshot

_LOG_TAIL_BYTES = 256 << 10
_MOST_LOGS, _MOST_STACKS = 8, 8
_BEFORE_NS = 15 * 60 * 1_000_000_000  # readings of devices and host before the announcement
_LIBRARIES = ("pydantic", "psutil", "nvidia-ml-py", "prometheus-client", "starlette", "uvicorn", "py-spy")
Numbered = TypeVar("Numbered", StepRecord, EventRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the recorder knows of an incident in the daemon's memory."""

    about: About
    members: frozenset[str]
    findings: tuple[Finding, ...]
    transitions: tuple[Finding, ...]
    snapshot: Snapshot
    directory: Path | None  # of the run's rings


@dataclass(frozen=True, slots=True, kw_only=True)
class Gatherer:
    """Makes the `Source` of an incident; used from the thread that writes."""

    state_dir: Path
    config: IncidentsConfig
    history: Path | None
    sentinel: Mapping[str, Any]

    def source(self, known: Known) -> Source:
        """Collect what there is; what cannot be read is named in `missing`, never raised."""
        missing: dict[str, str] = {}
        about, snapshot = known.about, known.snapshot
        told = self._from_history(lambda reader: reader.findings(about.run_id), missing) or []
        changes = self._from_history(lambda reader: reader.transitions(about.run_id), missing) or []
        requests = self._from_history(lambda reader: reader.requests(about.run_id), missing) or []
        events = [*self._events(known)]
        attached = (
            *self._stacks(known, missing), *self._collectives(known, events), *self._logs(missing),
            *self._captured(events, missing),
        )  # fmt: skip
        if "tensors" in missing and (gave_way := why_not_captured([*requests, snapshot.halt])):
            missing["tensors"] = gave_way
        return Source(
            about=about,
            findings=_ordered(_newest([*told, *known.findings], known.members), about.root_id),
            transitions=_once(one for one in [*changes, *known.transitions] if one.finding_id in known.members),
            records=lambda: self._records(known),
            events=lambda: iter(events),
            samples=lambda: self._samples(known),
            run={
                "ranks": {rank: {**plain(status), "values": {}} for rank, status in snapshot.ranks.items()},
                "halt": plain(snapshot.halt), "requests": plain(requests),
                "checkpoints": _checkpoints(known, events, requests),
                "node": _node(), "versions": _versions(), "notes": list(snapshot.notes),
                "abstaining": dict(snapshot.abstaining), "sentinel_health": plain(snapshot.health),
            },
            trainer=dict(snapshot.context),
            sentinel=self.sentinel,
            attached=attached,
            missing=missing,
        )  # fmt: skip

    # ---- history

    def _from_history(self, ask: Callable[[HistoryReader], Any], missing: dict[str, str]) -> Any:
        if self.history is None:
            missing["history"] = "switched off: only what is still in the rings is here"
            return None
        try:
            with HistoryReader(self.history) as reader:
                return ask(reader)
        except SentinelError as error:
            missing["history"] = str(error)
            return None

    def _stored(self, ask: Callable[[HistoryReader], Iterator[Any]]) -> Iterator[Any]:
        """Stream from the history; an error ends the stream (it was noted when the findings were read)."""
        if self.history is None:
            return
        try:
            with HistoryReader(self.history) as reader:
                yield from ask(reader)
        except SentinelError:
            return

    def _records(self, known: Known) -> Iterator[StepRecord]:
        """Stream the records of the two windows, each once."""
        run, spans = known.about.run_id, self._spans(known.about)
        seen: set[tuple[int, int, int]] = set()
        for first, last in spans:
            for record in self._stored(lambda reader, a=first, b=last: reader.records(run, None, a, b)):  # type: ignore[misc]
                seen.add((record.rank, record.sequence, record.wall_ns))
                yield record
        yield from _unseen(
            (record for batch in _rings(known.directory) for record in batch.records),
            seen, lambda record: any(first <= record.step <= last for first, last in spans),
        )  # fmt: skip

    def _spans(self, about: About) -> list[tuple[int, int]]:
        keep = self.config.keep_steps
        newest = max(about.last_step, about.onset_step)
        around = (max(0, about.onset_step - keep), about.onset_step + keep)
        if newest - keep <= around[1]:
            return [(around[0], newest + keep)]  # the ranks may be further by now
        return [around, (newest - keep, newest + keep)]

    def _events(self, known: Known) -> Iterator[EventRecord]:
        """Stream configuration events of any step, and all others of the windows, each once."""
        run, spans = known.about.run_id, self._spans(known.about)
        seen: set[tuple[int, int, int]] = set()

        def wanted(event: EventRecord) -> bool:
            if event.kind in ("config", "checkpoint", "core"):
                return True
            return any(first <= event.step <= last for first, last in spans)

        stored = self._stored(lambda reader: reader.events(run))
        yield from _unseen(stored, seen, wanted)
        yield from _unseen((event for batch in _rings(known.directory) for event in batch.events), seen, wanted)

    def _samples(self, known: Known) -> Iterator[Sample]:
        since = known.about.opened_wall_ns - _BEFORE_NS
        found = False
        for sample in self._stored(lambda reader: reader.samples(known.about.run_id, since_wall_ns=since)):
            found = True
            yield sample
        if not found:
            yield from known.snapshot.samples.values()

    # ---- files

    def _stacks(self, known: Known, missing: dict[str, str]) -> list[Attached]:
        since = known.about.opened_wall_ns - _BEFORE_NS
        files = list((self.state_dir / "stacks" / known.about.run_id).glob("*.txt"))
        if known.directory is not None:
            files += known.directory.glob("rank-*.stacks")
        fresh = [path for path in files if _changed_since(path, since)][-_MOST_STACKS:]
        if not fresh:
            missing["stacks"] = "none were taken"
        return [Attached(name=f"stacks/{path.name}", source=path, what="stacks") for path in fresh]

    def _collectives(self, known: Known, events: Collection[EventRecord]) -> list[Attached]:
        """What the flight recorders said, and what torch itself dumped where the user has it do so: kept unopened."""
        since = known.about.opened_wall_ns - _BEFORE_NS
        files = [] if known.directory is None else sorted(known.directory.glob("rank-*.collectives.json"))
        out = [(path.name.replace(".collectives", ""), path) for path in files]
        for event in events:
            dumped = event.body.get("flight_recorder_files") if event.kind == "core" else None
            if isinstance(dumped, str) and dumped:
                out.append((f"rank-{event.rank:05d}.pickle", Path(f"{dumped}{event.rank}")))
        return [
            Attached(name=f"collectives/{name}", source=path, what="collectives")
            for name, path in dict(out).items() if _changed_since(path, since)
        ]  # fmt: skip

    def _captured(self, events: Collection[EventRecord], missing: dict[str, str]) -> list[Attached]:
        return captured(events, spool_dir(self.state_dir), self.config.samples, missing)

    def _logs(self, missing: dict[str, str]) -> list[Attached]:
        if not self.config.log_files:
            missing["log"] = "no log is known: name it with launch --log, or in incidents.log_files"
            return []
        paths = [Path(name) for pattern in self.config.log_files for name in sorted(glob(pattern))][-_MOST_LOGS:]
        out = []
        for number, path in enumerate(paths):
            try:
                with path.open("rb") as file:
                    file.seek(max(0, path.stat().st_size - _LOG_TAIL_BYTES))
                    tail = scrub(file.read().decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
                out.append(Attached(name=f"logs/{number}-{path.name}", source=tail, what="log"))
            except OSError as error:
                missing[f"log {path}"] = str(error.strerror)
        if not paths:
            missing["log"] = f"no file fits {', '.join(self.config.log_files)}"
        return out


def _rings(directory: Path | None) -> Iterator[Batch]:
    """Read all that is still in every ring; one that cannot be read is passed over."""
    for path in list_segments(directory) if directory is not None else ():
        try:
            reader = RankReader(path)
        except SentinelError:
            continue
        try:
            yield reader.poll(None)
        except SentinelError:
            continue
        finally:
            reader.close()


def _unseen(
    items: Iterator[Numbered], seen: set[tuple[int, int, int]], wanted: Callable[[Numbered], bool]
) -> Iterator[Numbered]:
    for item in items:
        key = (item.rank, item.sequence, item.wall_ns)
        if key not in seen and wanted(item):
            seen.add(key)
            yield item


def _newest(findings: Collection[Finding], members: Collection[str]) -> list[Finding]:
    """Newest version of every member."""
    out: dict[str, Finding] = {}
    for finding in findings:
        if finding.finding_id in members and finding.wall_ns >= getattr(out.get(finding.finding_id), "wall_ns", 0):
            out[finding.finding_id] = finding
    return list(out.values())


def _ordered(findings: list[Finding], root_id: str) -> tuple[Finding, ...]:
    """The root first, then by onset and layer."""
    return tuple(
        sorted(findings, key=lambda f: (f.finding_id != root_id, f.onset_step, _layer(f), f.wall_ns, f.finding_id))
    )


def _layer(finding: Finding) -> int:
    return LAYERS.index(finding.layer) if finding.layer in LAYERS else len(LAYERS)


def _once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    keyed = {(one.finding_id, one.state, one.wall_ns): one for one in findings}
    return tuple(sorted(keyed.values(), key=lambda one: one.wall_ns))


def _checkpoints(known: Known, events: Collection[EventRecord], requests: Collection[HaltStatus]) -> dict[str, Any]:
    """The trainer's own words about what it saved, and what was kept from before the onset."""
    saved = {
        int(event.step): str(event.body.get("path", "")) for event in events if event.kind == "checkpoint"
    }  # fmt: skip
    before = [step for step in saved if step < known.about.onset_step]
    told = [one.pinned_checkpoint for one in (*requests, known.snapshot.halt)]
    return {
        "saved": [{"step": step, "path": path} for step, path in sorted(saved.items())],
        "last_before_onset": saved[max(before)] if before else "",
        "pinned": kept_before(told, known.about.onset_step),
    }


def _changed_since(path: Path, wall_ns: int) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_size > 0 and status.st_mtime_ns >= wall_ns


def _node() -> dict[str, Any]:
    return {"host": platform.node(), "system": platform.platform(), "machine": platform.machine()}


def _versions() -> dict[str, str]:
    found = {"grpo-sentinel": __version__, "python": sys.version.split()[0]}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


__all__ = ["Gatherer", "Known"]
