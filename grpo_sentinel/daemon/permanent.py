"""The permanent sidecar of a folder: it watches every run of this user there, so that `launch` needs none of its own.

<root>/grpo-sentinel-<uid>/daemon.lock, daemon.json, .history.json     as in the directory of a run, for all of them

A launch that comes later leaves its run to it. One with settings of its own watches its run itself, and the permanent
sidecar leaves it alone, unless that other one does not come.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_sentinel.daemon.claim import Claim, DaemonNote, read_note
from grpo_sentinel.daemon.launches import running
from grpo_sentinel.daemon.places import belongs_to
from grpo_sentinel.daemon.whereabouts import read_whereabouts, write_whereabouts
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.protocol import user_dir
from grpo_sentinel.protocol.places import own_directory, squatted

LEFT_NS = 15_000_000_000  # a run is left to the sidecar of its launch for so long; it starts in a second or two


@dataclass(frozen=True, slots=True, kw_only=True)
class Permanent:
    """The sidecar that watches a folder; `config` is the file of its settings, "" for the defaults."""

    folder: Path
    pid: int
    url: str
    state_dir: str
    config: str


def permanent_of(root: Path) -> Permanent | None:
    """Find the permanent sidecar of this user under `root`; None when there is none."""
    folder = user_dir(root)
    note, there = read_note(folder), read_whereabouts(folder)
    if note is None or there is None:
        return None
    return Permanent(folder=folder, pid=note.pid, url=note.url, state_dir=there.state_dir, config=there.config)


class Folders:
    """What one permanent sidecar holds: a claim on the folder of this user under each of its roots."""

    def __init__(self, roots: Sequence[Path], state_dir: Path, config: Path | None) -> None:
        self._roots = list(roots)
        self._state_dir = state_dir
        self._config = config
        self._held: dict[Path, Claim] = {}
        self._left: dict[Path, int] = {}

    def hold(self, note: DaemonNote) -> None:
        """Claim every folder that is there and nobody's, and make the one where the next trainer looks first.

        Never raises: without a claim launches start sidecars of their own.
        """
        for root in self._roots:
            folder = user_dir(root)
            if folder in self._held or squatted(root) is not None:
                continue
            with contextlib.suppress(OSError, SentinelError):
                if root == self._roots[0]:
                    own_directory(folder)
                claim = Claim.take(folder)
                if claim is not None:
                    self._held[folder] = claim
                    claim.publish(note)
                    write_whereabouts(folder, self._state_dir, self._config)

    def is_anothers(self, directory: Path, now_ns: int) -> bool:
        """Tell whether a run is to be left to the sidecar of the launch that made it."""
        launches = [launch for root in self._roots for launch in running(root)]
        if not any(one.sidecar and belongs_to(directory, one.run_id) for one in launches):
            self._left.pop(directory, None)
            return False
        return now_ns - self._left.setdefault(directory, now_ns) < LEFT_NS

    def release(self) -> None:
        """Let go of all."""
        for claim in self._held.values():
            claim.release()
        self._held.clear()


__all__ = ["Folders", "Permanent", "permanent_of"]
