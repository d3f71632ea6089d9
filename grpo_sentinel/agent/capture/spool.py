"""Where captured files wait for the sidecar: a folder per run and rank, bounded in number and bytes.

<spool>/<run>/rank-00003/step-812-gradient.safetensors
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from grpo_sentinel.protocol import sanitise_run_id


def spool_dir(given: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Give the folder of all runs: the setting, else beside the sidecar's history."""
    if given:
        return Path(given).expanduser()
    base = environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base else Path.home() / ".local/state") / "grpo-sentinel" / "spool"


class Spool:
    """The files of one rank. What exceeds the number or the bytes is refused before anything is copied."""

    def __init__(self, root: Path, run_id: str, rank: int, *, most_files: int, most_bytes: int) -> None:
        """`most_files` of at most `most_bytes` each, over the life of the process."""
        self._folder = root / sanitise_run_id(run_id) / f"rank-{rank:05d}"
        self._left = most_files
        self.file_bytes = most_bytes

    @property
    def full(self) -> bool:
        """Tell whether no further file may be written."""
        return self._left <= 0

    def place(self, step: int, reason: str, ending: str) -> Path:
        """Name the next file and charge it; the folder is made. Raises `OSError` when it cannot be."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._left -= 1
        return self._folder / f"step-{step}-{reason}{ending}"

    def room(self) -> int:
        """Bytes that a file may have: the budget, and never more than half of what the disk has left."""
        folder = next((path for path in (self._folder, *self._folder.parents) if path.exists()), Path("/"))
        free = os.statvfs(folder)
        return min(self.file_bytes, free.f_bavail * free.f_frsize // 2)
