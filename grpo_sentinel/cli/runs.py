"""Finds the run that a command means, and reads it without its daemon: rings first, history for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from grpo_sentinel.cli.salvage import salvage
from grpo_sentinel.clock import SystemClock
from grpo_sentinel.collectors.ranks import RankCollector
from grpo_sentinel.config import Config, load_config
from grpo_sentinel.daemon.places import belongs_to, ring_roots, run_directories
from grpo_sentinel.errors import ConfigError, SentinelError
from grpo_sentinel.records import Liveness
from grpo_sentinel.views import RankStatus


class NoRun(SentinelError):
    """No run fits what the command names."""


def settings(path: str | None, root: str | None = None, *, faulty: bool = False) -> Config:
    """Load the configuration; `root` replaces its ring directory. Raises `ConfigError`, unless it may be `faulty`."""
    config = salvage(path).config if faulty else load_config(path)
    return config if root is None else config.model_copy(update={"ring_dir": root})


def find_run(config: Config, run_id: str | None, *, alive_only: bool = False) -> Path:
    """Find the run directory that is meant: the named one (its newest restart), else the only or newest one.

    Raises `NoRun` naming where was looked; with `alive_only` also when several runs are alive and none is named.
    """
    roots = ring_roots(config)
    found = run_directories(roots)
    looked = ", ".join(map(str, roots))
    if run_id is not None:
        chosen = [directory for directory in found if belongs_to(directory, run_id)]
        if not chosen:
            raise NoRun(f"there is no run {run_id} in {looked}; `grpo-sentinel status` shows the newest one")
        return chosen[0]
    if not found:
        raise NoRun(
            f"there is no run in {looked}; start one with `grpo-sentinel launch -- ...`, or set GRPO_SENTINEL_DIR"
        )
    if not alive_only:
        return next((directory for directory in found if is_alive(read_ranks(directory))), found[0])
    alive = [directory for directory in found if is_alive(read_ranks(directory))]
    if not alive:
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


__all__ = ["ConfigError", "NoRun", "find_run", "is_alive", "read_ranks", "settings"]
