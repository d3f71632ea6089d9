"""Launched commands whose trainer has not recorded anything yet, in words."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from grpo_sentinel.daemon.launches import Launch, running
from grpo_sentinel.daemon.permanent import permanent_of


def waiting(roots: Sequence[Path], known: Sequence[Path] = ()) -> list[Launch]:
    """List the launched commands that run and have no directory among `known` written since, the newest first.

    `sidecar` says of these whether any sidecar will watch them, their own or a permanent one.
    """
    found = []
    for root in roots:
        launches = running(root)
        if launches and permanent_of(root) is not None:
            launches = [replace(launch, sidecar=True) for launch in launches]
        found += launches
    fresh = [launch for launch in found if not any(_recorded(launch, directory) for directory in known)]
    return sorted(fresh, key=lambda launch: -launch.started_wall_ns)


def words(launch: Launch) -> str:
    """Say what runs, since when, and what is waited for."""
    from grpo_sentinel.cli.rendering import ago

    since = ago(time.time_ns() - launch.started_wall_ns)
    watched = "" if launch.sidecar else "; it has no sidecar (--no-daemon)"
    return (
        f"`{launch.command}` (pid {launch.pid}) runs since {since} and waits for its "
        f"trainer's first record: neither train() nor grpo_sentinel.attach() has been reached{watched}"
    )


def _recorded(launch: Launch, directory: Path) -> bool:
    from grpo_sentinel.cli.summary import written_since
    from grpo_sentinel.daemon.places import belongs_to

    return belongs_to(directory, launch.run_id) and written_since(directory, launch.started_wall_ns)


__all__ = ["Launch", "waiting", "words"]
