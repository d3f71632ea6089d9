"""How long each phase of each rank took lately, from the records of its steps: what silence is measured against.

Learned from frames, hence also from those that a restarted sidecar replays from the history: a hang that began before
the restart is judged as it would have been without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from grpo_sentinel.records import Frame, Mode, Phase
from grpo_sentinel.rules.robust import SortedWindow

TURNS = 32
_SECONDS = {phase: f"time.phase_seconds[{phase.name.lower()}]" for phase in Phase}
_NOTHING: Mapping[Phase, SortedWindow] = MappingProxyType({})


class PhasePast:
    """Seconds per step of each rank's last turns of each phase; several turns in one step count together."""

    def __init__(self) -> None:
        self._ranks: dict[int, dict[Phase, SortedWindow]] = {}

    def frame(self, frame: Frame) -> None:
        """Take one step of all ranks."""
        if frame.mode is not Mode.TRAIN:
            return
        for rank, row in frame.ranks.items():
            past = self._ranks.setdefault(rank, {})
            for phase, name in _SECONDS.items():
                seconds = row.get(name, 0.0)
                if seconds > 0:
                    past.setdefault(phase, SortedWindow(TURNS)).push(seconds)

    def of(self, rank: int | None) -> Mapping[Phase, SortedWindow]:
        """Give what is known of a rank."""
        return _NOTHING if rank is None else self._ranks.get(rank, _NOTHING)
