"""Finds the run that a command means, and reads it without its daemon: rings first, history for the rest."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import click

from grpo_sentinel.cli.launches import waiting, words
from grpo_sentinel.cli.salvage import salvage
from grpo_sentinel.clock import SystemClock
from grpo_sentinel.collectors.ranks import RankCollector
from grpo_sentinel.config import Config, load_config
from grpo_sentinel.daemon.places import belongs_to, ring_roots, run_directories, state_dir
from grpo_sentinel.daemon.whereabouts import listed_state_dirs, read_whereabouts
from grpo_sentinel.errors import ConfigError, HistoryError, SentinelError
from grpo_sentinel.history import HistoryReader, history_path
from grpo_sentinel.protocol import sanitise_run_id
from grpo_sentinel.records import Liveness
from grpo_sentinel.views import RankStatus

_MOST_NAMED = 5
_Command = TypeVar("_Command", bound=Callable[..., int])


class NoRun(SentinelError):
    """No run fits what the command names."""


def run_choice(command: _Command) -> _Command:
    """Let a command take the run it means as `RUN` or as `--run-id ID`, like every other command."""
    option = click.option(
        "--run-id", "named_run", metavar="ID", callback=_one_name, expose_value=False, help="The same as RUN."
    )
    return click.argument("run_id", required=False, metavar="[RUN]", is_eager=True)(option(command))


def _one_name(context: click.Context, _parameter: click.Parameter, given: str | None) -> None:
    if given is None:
        return
    named = context.params.get("run_id")
    if named not in (None, given):
        raise click.UsageError(f"two runs are named, {named} and {given}; give one", context)
    context.params["run_id"] = given


def no_such_run(run_id: str, found: Sequence[Path], roots: Sequence[Path]) -> NoRun:
    """Say that no run is called so, and which there are."""
    names = [directory.name for directory in found]
    there = ", ".join(names[:_MOST_NAMED]) + (f" and {len(names) - _MOST_NAMED} more" if names[_MOST_NAMED:] else "")
    return NoRun(f"there is no run {run_id} in {', '.join(map(str, roots))}; runs there: {there or 'none'}")


def settings(path: str | None, root: str | None = None, *, faulty: bool = False) -> Config:
    """Load the configuration; `root` replaces its ring directory. Raises `ConfigError`, unless it may be `faulty`."""
    config = salvage(path).config if faulty else load_config(path)
    return config if root is None else config.model_copy(update={"ring_dir": root})


def settings_of(path: str | None, run_id: str | None, root: str | None = None) -> Config:
    """Load the configuration; without one, that of the sidecar which watched the run that is meant, as noted there.

    Where its rings are gone it is the one whose history knows the run.
    """
    config = settings(path, root)
    if path is not None:
        return config
    try:
        return noted(config, find_run(config, run_id))
    except NoRun:
        return next((one for one in settings_of_all(None) if run_id is not None and _knows(one, run_id)), config)


def _knows(config: Config, run_id: str) -> bool:
    try:
        with HistoryReader(history_path(state_dir(config), socket.gethostname())) as reader:
            return any(belongs_to(Path(run.run_id), run_id) for run in reader.runs())
    except HistoryError:
        return False


def settings_of_all(path: str | None) -> list[Config]:
    """Load the configuration; without one, also give that of every other sidecar of this user that is known here."""
    config = settings(path)
    found = [config]
    if path is None:
        found += [noted(config, directory) for directory in run_directories(ring_roots(config))]
        others = listed_state_dirs(state_dir(config))
        found += [config.model_copy(update={"state_dir": str(place)}) for place in others if place.is_dir()]
    return list({state_dir(one).absolute(): one for one in reversed(found)}.values())[::-1]


def noted(config: Config, directory: Path) -> Config:
    """Give the configuration by which a run was watched, from the note beside its rings; `config` without one."""
    here = read_whereabouts(directory)
    if here is None:
        return config
    known = salvage(here.config).config if here.config and Path(here.config).is_file() else config
    return known.model_copy(update={"state_dir": here.state_dir, "ring_dir": config.ring_dir})


def find_run(config: Config, run_id: str | None, *, alive_only: bool = False) -> Path:
    """Find the run directory that is meant: the named one, else the only or newest one.

    A name stands for its restarts too: the run of that very name goes first while it lives, else the newest that does.

    Raises `NoRun` naming where was looked; with `alive_only` also when several runs are alive and none is named.
    """
    roots = ring_roots(config)
    found = run_directories(roots)
    looked = ", ".join(map(str, roots))
    if run_id is not None:
        chosen = [directory for directory in found if belongs_to(directory, run_id)]
        if not chosen:
            launched = next((one for one in waiting(roots) if one.run_id == run_id), None)
            raise no_such_run(run_id, found, roots) if launched is None else NoRun(f"run {run_id}: {words(launched)}")
        named = (directory for directory in chosen if directory.name == sanitise_run_id(run_id))
        return next((one for one in (*named, *chosen) if is_alive(read_ranks(one))), chosen[0])
    launched = next(iter(waiting(roots, found)), None)
    if not found and launched is not None:
        raise NoRun(f"run {launched.run_id}: {words(launched)}")
    if not found:
        raise NoRun(
            f"there is no run in {looked}; start one with `grpo-sentinel launch -- ...`, or set GRPO_SENTINEL_DIR"
        )
    if not alive_only:
        return next((directory for directory in found if is_alive(read_ranks(directory))), found[0])
    alive = [directory for directory in found if is_alive(read_ranks(directory))]
    if not alive:
        if launched is not None:
            raise NoRun(f"run {launched.run_id}: {words(launched)}")
        raise NoRun(f"no run in {looked} is alive; the newest was {found[0].name}")
    if len(alive) > 1:
        raise NoRun(f"{len(alive)} runs are alive ({', '.join(one.name for one in alive)}); name the one you mean")
    return alive[0]


def read_ranks(directory: Path) -> Mapping[int, RankStatus]:
    """Read the state of all ranks from their rings."""
    collector = RankCollector(directory, SystemClock())
    try:
        return collector.poll().ranks
    finally:
        collector.close()


def is_alive(ranks: Mapping[int, RankStatus]) -> bool:
    """Tell whether any rank may still act."""
    return any(status.liveness in (Liveness.ALIVE, Liveness.UNKNOWN) for status in ranks.values())


__all__ = [
    "ConfigError", "NoRun", "find_run", "is_alive", "no_such_run", "noted", "read_ranks", "run_choice", "settings",
    "settings_of", "settings_of_all",
]  # fmt: skip
