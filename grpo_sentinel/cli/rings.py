"""`grpo-sentinel rings`: the rings of runs that lie in memory, what they take, and how to be rid of them."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

import click

from grpo_sentinel.cli.runs import no_such_run, run_choice, settings
from grpo_sentinel.clock import SystemClock
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.past import Stage, stage_of
from grpo_sentinel.daemon.places import belongs_to, ring_roots, run_directories, state_dir
from grpo_sentinel.daemon.tidy import ended_s, remove_rings
from grpo_sentinel.history import history_path
from grpo_sentinel.incidents.places import size_of

_NEXT = {
    Stage.LIVES: "", Stage.STORED: ": --prune removes its rings",
    Stage.UNREAD: ": `run --once --run-id NAME` reads it, NAME --remove removes its rings",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Rings:
    """The rings of one run."""

    run_id: str
    path: Path
    bytes: int
    stage: Stage
    last_wall_s: float


@click.command()
@run_choice
@click.option("--prune", is_flag=True, help="Remove those of runs that ended and are in a history.")
@click.option("--remove", "removing", is_flag=True, help="Remove those of RUN, read or not, unless it lives.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--config", "config_path", metavar="FILE", help="Settings of the sidecar, for its directories.")
@click.option("--root", metavar="DIR", help="Where rings live; default: ring_dir, $GRPO_SENTINEL_DIR, /dev/shm, ...")
def rings(
    run_id: str | None, prune: bool, removing: bool, as_json: bool, config_path: str | None, root: str | None
) -> int:
    """List the rings of this user's runs, the newest first, and remove those of runs that are over.

    `launch` and a permanent `run` remove them a week after the end, sooner where little room is left. What is in the
    history stays there. Exit code 1: of what was to be removed something lives, or is watched.
    """
    from grpo_sentinel.cli.rendering import ago, print_json

    if removing and (run_id is None or prune):
        raise click.UsageError("--remove needs RUN, and not --prune: it removes what is in no history too")
    found = rings_of(settings(config_path, root), run_id)
    going = [one for one in found if removing or (prune and one.stage is Stage.STORED)]
    gone = {one.path for one in going if one.stage is not Stage.LIVES and remove_rings(one.path)}
    left = [one for one in going if one.path not in gone]
    if as_json:
        print_json({"rings": found, "removed": sorted(map(str, gone))})
        return 1 if left else 0
    for one in found:
        now = SystemClock().wall_ns() - round(one.last_wall_s * 1e9)
        state = "removed" if one.path in gone else f"{one.stage.value}{_NEXT[one.stage]}"
        click.echo(f"{one.path}  {one.bytes / 1e6:,.1f} MB  {ago(now)} ago  {state}")
    if not found:
        click.echo("there are no rings")
    return 1 if left else 0


def rings_of(config: Config, run_id: str | None) -> list[Rings]:
    """Find the rings of a run and its restarts, or of every run of this user. Raises `NoRun`."""
    roots = ring_roots(config)
    directories = run_directories(roots)
    chosen = [one for one in directories if run_id is None or belongs_to(one, run_id)]
    if run_id is not None and not chosen:
        raise no_such_run(run_id, directories, roots)
    history, clock = history_path(state_dir(config), socket.gethostname()), SystemClock()
    return [
        Rings(
            run_id=one.name, path=one, bytes=size_of(one), stage=stage_of(one, clock, history), last_wall_s=ended_s(one)
        )
        for one in chosen
    ]  # fmt: skip


__all__ = ["Rings", "rings", "rings_of"]
