"""`grpo-sentinel resume-point`: the checkpoint that a restart should use on standard output, why on standard error."""

from __future__ import annotations

import socket
from pathlib import Path

import click

from grpo_sentinel.cli.runs import NoRun, settings
from grpo_sentinel.daemon.places import belongs_to, state_dir
from grpo_sentinel.errors import HistoryError
from grpo_sentinel.harm import step_of
from grpo_sentinel.history import HistoryReader, RunInfo, history_path
from grpo_sentinel.preflight.resume import ResumePoint, output_directory, resume_point

NO_CHECKPOINT = 1


@click.command("resume-point")
@click.argument("what", required=False, metavar="[RUN|DIR]")
@click.option("--run-id", metavar="ID", help="The same as RUN, where a directory has that name too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs (schema grpo-sentinel/resume-point).")
@click.option("--ignore-resolved", is_flag=True, help="Let only findings count that still fired at the end.")
@click.option("--config", "config_path", metavar="FILE", help="Settings of the sidecar, for its directories.")
def resume(what: str | None, run_id: str | None, as_json: bool, ignore_resolved: bool, config_path: str | None) -> int:
    """Print the path of the last checkpoint that is whole, finite, and from before the newest critical finding.

    RUN is a run's name, DIR the trainer's output directory; without either, the newest run in the history. Exit code
    1: there is no such checkpoint, 2: usage.
    """
    from grpo_sentinel.cli.rendering import print_json

    if what is not None and run_id not in (None, what):
        raise click.UsageError(f"{what} and --run-id {run_id} are given; give one")
    config = settings(config_path)
    state = state_dir(config)
    reader = _open(history_path(state, socket.gethostname()))
    try:
        directory = _directory(what, run_id, reader, config.halting.checkpoint_dir)
        found = resume_point(directory, reader, state, ignore_resolved=ignore_resolved)
    finally:
        if reader is not None:
            reader.close()
    if as_json:
        print_json(found.to_json())
    else:
        _print(found, directory)
    return NO_CHECKPOINT if found.path is None else 0


def _open(path: Path) -> HistoryReader | None:
    """The history; None when there is none yet. One that is there and cannot be read is an error, not "no findings"."""
    return HistoryReader(path) if path.exists() else None


def _directory(what: str | None, run_id: str | None, reader: HistoryReader | None, fixed: str | None) -> Path:
    """Find the output directory that is meant. Raises `NoRun`."""
    if run_id is None and what is not None and Path(what).exists():
        path = Path(what).resolve()
        return path.parent if step_of(path.name) is not None else path
    what = what or run_id
    runs: list[RunInfo] = reader.runs() if reader is not None else []
    if what is not None:
        runs = [run for run in runs if belongs_to(Path(run.run_id), what)]
        if not runs:
            raise NoRun(f"{what} is neither a directory nor a run in the history; give the trainer's output directory")
    if fixed is not None:
        return Path(fixed)
    if reader is None or not runs:
        raise NoRun(
            "the history holds no run yet; give the trainer's output directory: `grpo-sentinel resume-point DIR`"
        )
    for run in runs if what is not None else runs[:1]:  # never another run's directory for the newest run's
        place = output_directory(reader, run)
        if place is not None:
            return place
    which = f"run {what}" if what is not None else f"the newest run, {runs[0].run_id},"
    raise NoRun(
        f"the output directory of {which} is not known: its configuration names none, and it reported no checkpoint "
        "(checkpoint_saved); give the directory: `grpo-sentinel resume-point DIR`"
    )


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


__all__ = ["HistoryError", "resume"]
