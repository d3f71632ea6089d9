"""`grpo-sentinel resume-point`: the checkpoint that a restart should use on standard output, why on standard error."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import click

from grpo_sentinel.cli.runs import NoRun, settings_of_all
from grpo_sentinel.clock import SystemClock
from grpo_sentinel.collectors.ranks import RankCollector
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.places import belongs_to, ring_roots, run_directories, state_dir
from grpo_sentinel.daemon.whereabouts import read_whereabouts
from grpo_sentinel.errors import HistoryError
from grpo_sentinel.halting.pin import PINNED_NAME
from grpo_sentinel.harm import step_of
from grpo_sentinel.history import HistoryReader, RunInfo, history_path
from grpo_sentinel.preflight.resume import ResumePoint, output_directory, resume_point

NO_CHECKPOINT = 1
CANNOT_TELL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One history that may tell of the runs in question; `reader` is None where there is none yet."""

    config: Config
    state: Path
    reader: HistoryReader | None

    def runs(self) -> list[RunInfo]:
        """List its runs, the newest first."""
        return [] if self.reader is None else self.reader.runs()


@click.command("resume-point")
@click.argument("what", required=False, metavar="[RUN|DIR]")
@click.option("--run-id", metavar="ID", help="The same as RUN, where a directory has that name too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs (schema grpo-sentinel/resume-point).")
@click.option("--ignore-resolved", is_flag=True, help="Let only findings count that still fired at the end.")
@click.option("--config", "config_path", metavar="FILE", help="Settings of the sidecar, for its directories.")
def resume(what: str | None, run_id: str | None, as_json: bool, ignore_resolved: bool, config_path: str | None) -> int:
    """Print the path of the last checkpoint that is whole, finite, and from before the newest critical finding.

    RUN is a run's name, DIR the trainer's output directory; without either, the newest run in the history. Exit code
    1: there is no such checkpoint, 2: usage, 3: a sidecar watched what was saved there and its history cannot be found,
    so that nothing is printed.
    """
    from grpo_sentinel.cli.rendering import print_json

    if what is not None and run_id not in (None, what):
        raise click.UsageError(f"{what} and --run-id {run_id} are given; give one")
    configs = settings_of_all(config_path)
    if config_path is None and run_id is None and what is not None:
        configs += _beside(Path(what).resolve(), configs)
    with ExitStack() as opened:
        known = [_open(config, opened) for config in configs]
        directory = _directory(what, run_id, known)
        found = resume_point(directory, [(one.reader, one.state) for one in known], ignore_resolved=ignore_resolved)
        unknown = _unknown(directory, known, found)
    if unknown:
        found = replace(found, path=None, step=None, pinned=False, reasons=(unknown,), report=None)
    if as_json:
        print_json(found.to_json())
    else:
        _print(found, directory)
    return CANNOT_TELL if unknown else NO_CHECKPOINT if found.path is None else 0


def _open(config: Config, opened: ExitStack) -> Known:
    """Open a history. One that is there and cannot be read is an error, not "no findings". Raises `HistoryError`."""
    state = state_dir(config)
    path = history_path(state, socket.gethostname())
    reader = HistoryReader(path) if path.exists() else None
    if reader is not None:
        opened.callback(reader.close)
    return Known(config=config, state=state, reader=reader)


def _beside(directory: Path, configs: Sequence[Config]) -> list[Config]:
    """Give the settings noted beside the kept checkpoints of a directory: they outlive the rings."""
    known = {state_dir(config).absolute() for config in configs}
    notes = map(read_whereabouts, sorted((directory.parent / PINNED_NAME).glob("*/")))
    places = {Path(one.state_dir) for one in notes if one is not None} - known
    return [configs[0].model_copy(update={"state_dir": str(place)}) for place in sorted(places)]


def _directory(what: str | None, run_id: str | None, known: Sequence[Known]) -> Path:
    """Find the output directory that is meant. Raises `NoRun`."""
    if run_id is None and what is not None and Path(what).exists():
        path = Path(what).resolve()
        return path.parent if step_of(path.name) is not None else path
    what = what or run_id
    runs = sorted(((run, one) for one in known for run in one.runs()), key=lambda pair: -pair[0].started_wall_ns)
    if what is not None:
        runs = [pair for pair in runs if belongs_to(Path(pair[0].run_id), what)]
        if not runs:
            raise NoRun(f"{what} is neither a directory nor a run in the history; give the trainer's output directory")
    else:
        newest = next(iter(run_directories(ring_roots(known[0].config))), None)
        if runs and newest is not None and newest.name not in {run.run_id for run, _ in runs}:
            raise NoRun(
                f"the newest run, {newest.name}, is in no history found: give --config FILE of its sidecar, or "
                "the trainer's output directory"
            )
    fixed = (runs[0][1] if runs else known[0]).config.halting.checkpoint_dir
    if fixed is not None:
        return Path(fixed)
    if not runs:
        raise NoRun(
            "the history holds no run yet; give the trainer's output directory: `grpo-sentinel resume-point DIR`"
        )
    for run, one in runs if what is not None else runs[:1]:  # never another run's directory for the newest run's
        place = output_directory(one.reader, run) if one.reader is not None else None
        if place is not None:
            return place
    which = f"run {what}" if what is not None else f"the newest run, {runs[0][0].run_id},"
    raise NoRun(
        f"the output directory of {which} is not known: its configuration names none, and it reported no checkpoint "
        "(checkpoint_saved); give the directory: `grpo-sentinel resume-point DIR`"
    )


def _unknown(directory: Path, known: Sequence[Known], found: ResumePoint) -> str:
    """Say which watched run saved into `directory` and has no history here; "" when none.

    It has rings that name the directory, or, where no run at all is known to have saved there, kept checkpoints.
    """
    named = {run.run_id for one in known for run in one.runs()}
    watched = [one for one in run_directories(ring_roots(known[0].config)) if one.name not in named]
    lost = next((one.name for one in watched if _saved_into(one, directory)), None)
    if lost is None and not found.bounds:
        kept = sorted((directory.parent / PINNED_NAME).glob("*/"))
        lost = next((one.name for one in kept if one.name not in named), None)
    if lost is None:
        return ""
    return (
        f"run {lost} was watched and is in none of the histories found ({', '.join(str(one.state) for one in known)}): "
        "what was saved may be from after the harm; give --config FILE of its sidecar, or look with "
        "`grpo-sentinel check checkpoint`"
    )


def _saved_into(run: Path, directory: Path) -> bool:
    """Tell whether a run says, in its rings, that it saves into `directory`."""
    collector = RankCollector(run, SystemClock())
    try:
        events = collector.poll().events
    finally:
        collector.close()
    told = [str(event.body.get("output_dir") or "") for event in events if event.kind == "config"]
    told += [str(Path(str(event.body.get("path"))).parent) for event in events if event.kind == "checkpoint"]
    return any(Path(place).is_absolute() and Path(place).resolve() == directory for place in told)


def _print(found: ResumePoint, directory: Path) -> None:
    for one in found.rejected:
        click.echo(f"not {one.path}: {one.why}", err=True)
    if found.path is None:
        click.echo(f"no resume point in {directory}: {'; '.join(found.reasons)}", err=True)
        return
    for reason in found.reasons:
        click.echo(reason, err=True)
    if found.pinned:
        click.echo("it stays until `grpo-sentinel pins` is asked to remove it", err=True)
    click.echo(str(found.path))


__all__ = ["CANNOT_TELL", "NO_CHECKPOINT", "HistoryError", "resume"]
