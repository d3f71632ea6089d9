"""`resume-point`: which checkpoint a restart should use: the last one that is whole, finite, and from before the harm.

    runs with this output directory (history) -> critical findings -> step that a checkpoint must be older than
    checkpoints in <output_dir>, pinned copies -> newest first, each checked by `check_checkpoint`, until one is good

Finite is not enough: one step at a learning rate of 10 leaves finite, dead weights. A checkpoint belongs to the run
that was under way when it was written, so what a resumed run saved is not judged by the findings of the run before it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_sentinel.halting.checkpoints import scan_directory
from grpo_sentinel.halting.pin import PINNED_NAME
from grpo_sentinel.harm import first_harm
from grpo_sentinel.history import HistoryReader, RunInfo
from grpo_sentinel.preflight.checkpoint import CheckpointReport, Resumable, check_checkpoint
from grpo_sentinel.records import Finding

SCHEMA = "grpo-sentinel/resume-point"
SCHEMA_VERSION = 1
_MOST_SAVES = 10_000  # of one run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBound:
    """One run in a directory, and the step before which its checkpoints are to be trusted (None: all of them)."""

    run_id: str
    started_wall_ns: int
    before_step: int | None = None
    because: Finding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One checkpoint that is there."""

    path: Path
    step: int
    run_id: str  # "" = no run in the history was under way when it was written
    pinned: bool
    reported: bool  # the trainer said that this save had ended
    bound: RunBound | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A newer checkpoint that must not be used."""

    path: Path
    step: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The checkpoint to use and why; `path` is None when there is none."""

    path: Path | None
    step: int | None
    pinned: bool
    reasons: tuple[str, ...]
    rejected: tuple[Rejected, ...]
    bounds: tuple[RunBound, ...]
    report: CheckpointReport | None = None

    def to_json(self) -> dict[str, object]:
        """Give the answer in its versioned schema."""
        return {
            "schema": SCHEMA, "version": SCHEMA_VERSION, "path": None if self.path is None else str(self.path),
            "step": self.step, "pinned": self.pinned, "reasons": list(self.reasons), "rejected": list(self.rejected),
            "runs": list(self.bounds), "check": None if self.report is None else self.report.to_json(),
        }  # fmt: skip


def runs_in(reader: HistoryReader, directory: Path) -> list[RunInfo]:
    """List the runs that saved into `directory`, by configuration or by report, the one that began last first."""
    wanted = directory.resolve()
    found = []
    for run in reader.runs():
        place = _configured(run)
        saved_here = place is not None and place.resolve() == wanted
        if saved_here or any(path.parent == wanted for path in reported_saves(reader, run.run_id)):
            found.append(run)
    return sorted(found, key=lambda run: -run.started_wall_ns)


def output_directory(reader: HistoryReader, run: RunInfo) -> Path | None:
    """Where the trainer of a run saves: as its configuration says, else where its newest reported checkpoint lies."""
    place = _configured(run)
    if place is not None:
        return place
    saves = reported_saves(reader, run.run_id)
    return saves[-1].parent if saves else None


def _configured(run: RunInfo) -> Path | None:
    place = run.context.get("output_dir")
    return Path(place) if isinstance(place, str) and Path(place).is_absolute() else None


def reported_saves(reader: HistoryReader, run_id: str) -> list[Path]:
    """Give the checkpoints that a run reported as finished, resolved, in the order of its reports."""
    places = (event.body.get("path") for event in reader.newest_events(run_id, kind="checkpoint", limit=_MOST_SAVES))
    return [Path(place).resolve() for place in places if isinstance(place, str) and Path(place).is_absolute()]


def bound_of(run: RunInfo, findings: Iterable[Finding], *, ignore_resolved: bool = False) -> RunBound:
    """Give the step before which a run's checkpoints are to be trusted, as `harm.first_harm` dates it."""
    first = first_harm(findings, ignore_resolved=ignore_resolved)
    return RunBound(
        run_id=run.run_id, started_wall_ns=run.started_wall_ns, because=first,
        before_step=None if first is None else first.onset_step,
    )  # fmt: skip


def candidates(
    directory: Path, bounds: Sequence[RunBound], states: Sequence[Path], reported: Collection[Path] = ()
) -> list[Candidate]:
    """List checkpoints and pinned copies, newest step first, the trainer's own before a copy of the same step."""
    found = [
        Candidate(
            path=one.path,
            step=one.step,
            run_id=bound.run_id if bound else "",
            pinned=False,
            bound=bound,
            reported=one.path.resolve() in reported,
        )
        for one in scan_directory(directory)
        for bound in [_owner(one.path, bounds)]
    ]
    for bound in bounds:
        aside = [state / "pinned" / bound.run_id for state in states]
        for place in (directory.parent / PINNED_NAME / bound.run_id, *aside):
            found += [
                Candidate(path=one.path, step=one.step, run_id=bound.run_id, pinned=True, bound=bound, reported=True)
                for one in scan_directory(place)
            ]
    return sorted(found, key=lambda one: (-one.step, one.pinned))


def _owner(path: Path, bounds: Sequence[RunBound]) -> RunBound | None:
    """The run that was under way when a checkpoint was written; `bounds` has the newest run first."""
    written = 0
    for file in (path / "trainer_state.json", path):
        try:
            written = os.stat(file).st_mtime_ns
            break
        except OSError:
            continue
    return next((bound for bound in bounds if bound.started_wall_ns <= written), bounds[-1] if bounds else None)


def choose(found: Sequence[Candidate], bounds: Sequence[RunBound]) -> ResumePoint:
    """Take the first good candidate. Reads the weights of those it looks at; never raises for a broken one."""
    rejected: list[Rejected] = []
    for one in found:
        why, report = _judge(one)
        if why:
            rejected.append(Rejected(path=one.path, step=one.step, why=why))
            continue
        return ResumePoint(
            path=one.path, step=one.step, pinned=one.pinned, reasons=_reasons(one, report), rejected=tuple(rejected),
            bounds=tuple(bounds), report=report,
        )  # fmt: skip
    why = "there is no checkpoint" if not found else f"none of the {len(found)} checkpoints can be used"
    return ResumePoint(
        path=None, step=None, pinned=False, reasons=(why,), rejected=tuple(rejected), bounds=tuple(bounds)
    )  # fmt: skip


def _judge(one: Candidate) -> tuple[str, CheckpointReport | None]:
    bound = one.bound
    if bound is not None and bound.before_step is not None and one.step >= bound.before_step:
        about = bound.because.message if bound.because is not None else "something critical was found"
        return f"it is of step {one.step}, not from before step {bound.before_step}: {about}", None
    try:
        report = check_checkpoint(one.path, reported=one.reported)
    except Exception as error:  # noqa: BLE001 - one that cannot even be looked at is no resume point
        return f"it cannot be checked: {error}", None
    if report.resumable is Resumable.YES:
        return "", report
    return f"{report.reasons[0]} (resumable: {report.resumable.value})", report


def _reasons(one: Candidate, report: CheckpointReport | None) -> tuple[str, ...]:
    kind = "a copy that the sentinel kept" if one.pinned else "saved by the trainer"
    out = [f"checkpoint of step {one.step}, {kind}: whole, and every number in it is finite"]
    bound = one.bound
    if bound is None:
        out.append("no run in the history saved here: findings could not be considered")
    elif bound.before_step is None:
        out.append(f"run {bound.run_id} has no critical finding that touches weights")
    else:
        about = bound.because.message if bound.because is not None else ""
        out.append(f"from before step {bound.before_step} of run {bound.run_id}, where this began: {about}")
    return (*out, *report.reasons) if report is not None and report.problems else tuple(out)


def resume_point(
    directory: Path, histories: Sequence[tuple[HistoryReader | None, Path]], *, ignore_resolved: bool = False
) -> ResumePoint:
    """Choose the checkpoint in `directory` (an output directory) that a restart should use.

    `histories`: each with the state directory it lies in; a reader of None: there is no history, so only completeness
    and finiteness are judged. Raises `HistoryError` when one cannot be read.
    """
    bounds = []
    reported: set[Path] = set()
    for reader in [reader for reader, _ in histories if reader is not None]:
        for run in runs_in(reader, directory):
            bounds.append(bound_of(run, reader.findings(run.run_id), ignore_resolved=ignore_resolved))
            reported.update(reported_saves(reader, run.run_id))
    bounds.sort(key=lambda bound: -bound.started_wall_ns)
    return choose(candidates(directory, bounds, [state for _, state in histories], reported), bounds)


__all__ = ["ResumePoint", "bound_of", "output_directory", "resume_point", "runs_in"]
