"""Where things are: the state directory, the roots of rings, the runs under them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo_sentinel.config import Config
from grpo_sentinel.protocol import candidate_roots, list_segments, sanitise_run_id, user_dir


def state_dir(config: Config, environ: Mapping[str, str] = os.environ) -> Path:
    """Directory of history, pinned checkpoints and stacks; not created."""
    if config.state_dir is not None:
        return Path(config.state_dir).expanduser()
    base = environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base else Path.home() / ".local/state") / "grpo-sentinel"


def ring_roots(config: Config, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Directories in which a trainer of this user may have made its run directory."""
    if config.ring_dir is not None:
        return [Path(config.ring_dir).expanduser()]
    return candidate_roots(environ)


def run_directories(roots: Sequence[Path]) -> list[Path]:
    """List the directories of this user's runs that hold at least one segment, the newest first."""
    found: dict[Path, float] = {}
    for root in roots:
        try:
            entries = [Path(entry.path) for entry in os.scandir(user_dir(root)) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        for directory in entries:
            times = [_changed(path) for path in list_segments(directory)]
            if times:
                found[directory] = max(times)
    return sorted(found, key=lambda directory: -found[directory])


def _changed(path: Path) -> float:
    try:
        return path.stat().st_ctime  # of the inode: when the segment was made, or closed
    except OSError:
        return 0.0


def belongs_to(directory: Path, run_id: str) -> bool:
    """Tell whether a run directory is that of `run_id` or of one of its restarts (`<run id>-r2`)."""
    base = sanitise_run_id(run_id)
    return directory.name == base or re.fullmatch(re.escape(base) + r"-r\d+", directory.name) is not None
