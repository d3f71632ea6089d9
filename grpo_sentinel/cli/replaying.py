"""Plays sources through the rules: what `replay`, `rules calibrate` and tests of the two share."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from grpo_sentinel.history.sources import Item, Progress, Source, open_path
from grpo_sentinel.incidents.bundle import open_bundle
from grpo_sentinel.incidents.places import ARCHIVE, MANIFEST
from grpo_sentinel.incidents.replay import items as bundle_items
from grpo_sentinel.records import EventRecord, Finding, FindingState, Frame, Severity
from grpo_sentinel.rules import Engine, RuleSet
from grpo_sentinel.rules.walk import Walk, walk

MAX_FINDINGS = 2000
"""Findings of one run that are kept; what comes after is counted by rule."""
WITH_RANKS = ("history", "incident")
"""Kinds of source whose rows say of which rank they are; a trainer's own log has one row for the whole job."""

_TELL_EVERY = 512  # items between two reports of progress


def sources_of(names: Sequence[str], run_id: str | None = None) -> list[Source]:
    """Find out what every path is; `-` is standard input, any kind but a directory.

    Raises `SentinelError` naming the first that is nothing we can replay.
    """
    out: list[Source] = []
    for name in names:
        if name == "-":
            out.extend(replace(source, name="standard input") for source in open_path(_standard_input(), run_id))
            continue
        path = Path(name)
        if name.endswith(ARCHIVE) or (path.is_dir() and (path / MANIFEST).is_file()):
            out.append(_incident(path))
        else:
            out.extend(open_path(path, run_id))
    return out


def _standard_input() -> Path:
    """Put what comes in on disk until this process ends: to know a kind, its beginning is read first."""
    with tempfile.NamedTemporaryFile(prefix="grpo-sentinel-replay-", delete=False) as file:
        atexit.register(os.unlink, file.name)
        shutil.copyfileobj(sys.stdin.buffer, file)
    return Path(file.name)


def _incident(path: Path) -> Source:
    with open_bundle(path) as bundle:
        found = bundle.source()

    def items(progress: Progress) -> Iterator[Item]:
        with open_bundle(path) as bundle:
            yield from bundle_items(bundle.source())

    return Source(kind="incident", name=str(path), run_id=found.about.run_id, context=dict(found.trainer), items=items)


@dataclass(slots=True)
class Outcome:
    """What the rules said of one run."""

    source: Source
    frames: int = 0
    first_step: int | None = None
    last_step: int | None = None
    signals: int = 0  # most values of one rank and step
    findings: dict[str, Finding] = field(default_factory=dict)  # newest version by id, in the order of firing
    left_out: Counter[str] = field(default_factory=Counter)  # by rule, beyond MAX_FINDINGS
    profiles: tuple[str, ...] = ()
    judging: int = 0  # rules that could judge at the end
    walk: Walk | None = None  # from the symptom back to the data, as things stood at the end
    notes: list[str] = field(default_factory=list)

    def count(self, severity: Severity) -> int:
        """Findings of one severity, also those left out."""
        return sum(one.severity is severity for one in self.findings.values())

    def worst(self) -> Severity | None:
        """The gravest severity found."""
        return max((one.severity for one in self.findings.values()), default=None)

    def take(self, told: Sequence[Finding]) -> None:
        """Keep the newest version of each finding, with the step in which it was told first."""
        for finding in told:
            first = self.findings.get(finding.finding_id)
            if first is not None:
                finding = replace(finding, step=first.step)
            if first is not None or len(self.findings) < MAX_FINDINGS:
                self.findings[finding.finding_id] = finding
            elif finding.state is FindingState.FIRING:
                self.left_out[finding.rule] += 1


def play(source: Source, rules: RuleSet, tell: Callable[[Progress], None] | None = None) -> Outcome:
    """Play one run through a new engine. Memory is that of one step, whatever the length."""
    engine = Engine(rules, run_id=source.run_id, anonymous=source.kind not in WITH_RANKS)
    engine.configure(source.context)
    outcome = Outcome(source)
    progress = Progress()
    waits = 0
    for item in source.items(progress):
        if isinstance(item, Frame):
            told = engine.frame(item)
            outcome.frames += 1
            outcome.last_step = item.step
            if outcome.first_step is None:
                outcome.first_step = item.step
        elif isinstance(item, EventRecord):
            told = engine.event(item)
        else:
            told = engine.sample(item)
        if told:
            outcome.take(told)
        waits += 1
        if tell is not None and waits >= _TELL_EVERY:
            waits = 0
            tell(progress)
    outcome.profiles = engine.profile_names
    abstaining = engine.abstaining()
    outcome.judging = len(rules) - len(abstaining)
    outcome.walk = walk(engine.rules, outcome.findings.values(), abstaining, engine.checkpoints)
    outcome.notes += progress.notes
    return outcome


__all__ = ["MAX_FINDINGS", "Outcome", "play", "sources_of"]
