"""Finds the process to ask when the ranks do not answer: the launcher, never a rank that a launcher would restart.

torchrun (SIGTERM ends all ranks)         bash -> torchrun -> ranks: the nearest common parent counts
  ├─ rank 0   (SIGTERM here makes torchrun start all ranks again)
  └─ rank 1
python train.py alone: the rank is its own launcher
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from grpo_sentinel.halting.processes import ProcessMark, command_of, is_running, mark_of_rank, parent_of, why_not
from grpo_sentinel.records import RankIdentity
from grpo_sentinel.views import RankStatus

_KNOWN = ("torchrun", "torch.distributed", "torch/distributed", "accelerate", "deepspeed", "mpirun", "srun")


class LauncherHandle(Protocol):
    """Names the process that ends the whole job when it gets SIGTERM."""

    def find(self, ranks: Mapping[int, RankStatus]) -> ProcessMark | None:
        """Give the launcher, None when it is not known or gone."""
        ...


class NodeLauncher:
    """The launcher of the ranks of one run on this node: the nearest one above them, else the command given."""

    def __init__(self, command: ProcessMark | None = None) -> None:
        self._command = command

    def find(self, ranks: Mapping[int, RankStatus]) -> ProcessMark | None:
        """Give the nearest launcher above the ranks that still runs and may be signalled."""
        above = launcher_above(status.identity for status in ranks.values())
        if above is not None or self._command is None:
            return above
        return self._command if is_running(self._command) else None


def launcher_above(identities: Iterable[RankIdentity]) -> ProcessMark | None:
    """Find the launcher of some ranks by their parents.

    The parent counts when two ranks share it or when its command names a known launcher. A lone rank without either
    is its own launcher. None when no rank's process can be identified.
    """
    marks = [mark for mark in map(mark_of_rank, identities) if not why_not(mark)]
    parents = [parent for parent in map(parent_of, marks) if parent is not None and not why_not(parent)]
    for parent in parents:
        if parents.count(parent) > 1 or _is_launcher(parent):
            return parent
    return marks[0] if len(marks) == 1 else None


def _is_launcher(mark: ProcessMark) -> bool:
    words = command_of(mark.pid)[:4]
    return any(known in word for word in words for known in _KNOWN)
