"""`grpo-sentinel pins`: the checkpoints that were kept aside, what they cost, and how to be rid of them."""

from __future__ import annotations

import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import click

from grpo_sentinel.cli.runs import NoRun, is_alive, read_ranks, run_choice, settings_of, settings_of_all
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.places import belongs_to, ring_roots, run_directories, state_dir
from grpo_sentinel.halting.pin import PINNED_NAME, remove
from grpo_sentinel.history import HistoryReader, RunInfo, history_path
from grpo_sentinel.incidents.places import size_of
from grpo_sentinel.preflight.resume import output_directory
from grpo_sentinel.records import HaltState, Liveness, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One kept checkpoint."""

    run_id: str
    path: Path
    bytes: int
    written_wall_s: float
    needed: str  # why it may still be needed; "" when the run went on well and ended so


@click.command()
@run_choice
@click.option("--remove", "removing", is_flag=True, help="Remove those of RUN, needed or not.")
@click.option("--prune", is_flag=True, help="Remove those of runs that ended well with nothing left firing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--config", "config_path", metavar="FILE", help="Settings of the sidecar, for its directories.")
def pins(run_id: str | None, removing: bool, prune: bool, as_json: bool, config_path: str | None) -> int:
    """List the checkpoints kept out of rotation, of RUN and its restarts or of all runs in the history.

    They lie in `sentinel-pinned/` beside the trainer's output directory, at most `halting.max_pins` of a run and its
    restarts. `resume-point` may choose one, so nothing removes them by itself once a run is over.
    """
    from grpo_sentinel.cli.rendering import print_json

    if removing and (run_id is None or prune):
        raise click.UsageError("--remove needs RUN, and not --prune: it removes what may still be needed")
    if run_id is None:
        of_each = [one for config in settings_of_all(config_path) for one in pins_of(config, None)]
        found = list({one.path: one for one in of_each}.values())
    else:
        found = pins_of(settings_of(config_path, run_id), run_id)
    going = [one for one in found if removing or (prune and not one.needed)]
    for one in going:
        remove(one.path)
        _remove_empty(one.path.parent)
    if as_json:
        print_json({"pins": found, "removed": [str(one.path) for one in going]})
        return 0
    for one in found:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.written_wall_s))
        state = "removed" if one in going else one.needed or "no longer needed: --prune removes it"
        click.echo(f"{one.path}  {one.bytes / 1e6:,.1f} MB  {when}  {state}")
    if not found:
        click.echo("no checkpoint is kept" + (f" of run {run_id}" if run_id is not None else ""))
    return 0


def pins_of(config: Config, run_id: str | None) -> list[Pin]:
    """Find what is kept of a run and its restarts, or of every run, the newest run first. Raises `NoRun`."""
    state = state_dir(config)
    path = history_path(state, socket.gethostname())
    if not path.exists():
        if run_id is not None:
            raise NoRun(f"there is no run {run_id}: there is no history in {state} yet")
        return []
    out: dict[Path, Pin] = {}
    with HistoryReader(path) as reader:
        runs = [run for run in reader.runs() if run_id is None or belongs_to(Path(run.run_id), run_id)]
        if run_id is not None and not runs:
            raise NoRun(f"there is no run {run_id} in the history {path}")
        for run in runs:
            kept = [one for place in _places(reader, run, state) for one in _kept_in(place)]
            needed = _needed(config, reader, run) if kept else ""
            for one in kept:
                out.setdefault(one, Pin(run_id=run.run_id, path=one, bytes=size_of(one),
                                        written_wall_s=one.stat().st_mtime, needed=needed))  # fmt: skip
    return list(out.values())


def _places(reader: HistoryReader, run: RunInfo, state: Path) -> list[Path]:
    place = output_directory(reader, run)
    beside = [place.parent / PINNED_NAME / run.run_id] if place is not None else []
    return [*beside, state / "pinned" / run.run_id]


def _kept_in(place: Path) -> list[Path]:
    try:
        return sorted(path for path in place.iterdir() if not path.name.startswith("."))
    except OSError:
        return []


def _needed(config: Config, reader: HistoryReader, run: RunInfo) -> str:
    """Say why a run's kept checkpoints may still be needed; "" when it ended by itself and nothing was left firing."""
    latest = reader.latest(run.run_id)
    rings = next((one for one in run_directories(ring_roots(config)) if one.name == run.run_id), None)
    ranks = latest.ranks if rings is None else read_ranks(rings)
    if is_alive(ranks):
        return "how its run ended is not known" if rings is None else "its run is under way"
    if any(status.liveness is Liveness.DEAD for status in ranks.values()):
        return "its run died"
    if latest.halt.state is HaltState.DONE and any(
        (one.closed_detail or "").startswith("halted") for one in ranks.values()
    ):
        return "its run was halted"
    grave = [one for one in latest.findings if one.severity > Severity.NOTE]
    return f"still wrong at the end: {grave[0].rule}" if grave else ""


def _remove_empty(folder: Path) -> None:
    """Remove the folder of a run that is left empty, with what a broken copy left there, and the one above."""
    if _kept_in(folder):
        return
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.rmdir()
    except OSError:  # of other runs, or not there
        return


__all__ = ["Pin", "pins", "pins_of"]
