"""Notes of commands that `launch` runs: `status` tells of them, and a permanent sidecar leaves their runs to their own.

<root>/grpo-sentinel-<uid>/.launches/<run id>.json     0600, there while the command runs
{"run_id": "run", "pid": 71, "pid_start_ticks": 9, "started_wall_ns": ..., "command": "torchrun t.py", "sidecar": true}
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.halting.processes import ProcessMark, is_running, mark_of
from grpo_sentinel.protocol import user_dir
from grpo_sentinel.protocol.identity import pid_namespace
from grpo_sentinel.protocol.places import own_directory
from grpo_sentinel.scrub import scrub

_FOLDER = ".launches"  # no run is called so: a run's name does not begin with a dot
_LONGEST = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command that runs under `launch`; `sidecar` says whether it has one of its own."""

    run_id: str
    pid: int
    pid_start_ticks: int
    started_wall_ns: int
    command: str
    sidecar: bool


@contextlib.contextmanager
def noted(root: Path | None, run_id: str, pid: int, command: Sequence[str], *, sidecar: bool) -> Iterator[None]:
    """Keep the note of a command while it runs; one that cannot be written costs nothing but itself."""
    path = _write(root, run_id, pid, command, sidecar) if root is not None else None
    try:
        yield
    finally:
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()


def running(root: Path) -> list[Launch]:
    """List the launched commands under `root` that run now."""
    return [launch for launch in _read(user_dir(root) / _FOLDER) if _runs(launch)]


def _write(root: Path, run_id: str, pid: int, command: Sequence[str], sidecar: bool) -> Path | None:
    mark = mark_of(pid)
    if mark is None:
        return None
    text = " ".join(scrub(shlex.join(command)).split())
    launch = Launch(
        run_id=run_id, pid=pid, pid_start_ticks=mark.start_ticks, started_wall_ns=time.time_ns(), sidecar=sidecar,
        command=text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…",
    )  # fmt: skip
    try:
        own_directory(user_dir(root))
        folder = own_directory(user_dir(root) / _FOLDER)
        _forget_ended(folder)
        path = folder / f"{run_id}.json"
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(launch), file)
    except (OSError, SentinelError):
        return None
    return path


def _forget_ended(folder: Path) -> None:
    """Remove what launchers that were killed left behind."""
    for launch in _read(folder):
        if not _runs(launch):
            with contextlib.suppress(OSError):
                (folder / f"{launch.run_id}.json").unlink()


def _read(folder: Path) -> Iterator[Launch]:
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):  # just being written, or of another version
            yield Launch(**json.loads(path.read_text(encoding="utf-8")))


def _runs(launch: Launch) -> bool:
    """Tell whether its process is there; a note outlives a launcher that was killed."""
    return is_running(ProcessMark(pid=launch.pid, start_ticks=launch.pid_start_ticks, pid_namespace=pid_namespace()))


__all__ = ["Launch", "noted", "running"]
