"""What the probes hand over in one step, until its record goes out: one copy to the host for all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grpo_sentinel.agent.guard import Guard
from grpo_sentinel.agent.probes.pack import Harvest, Pack, merge
from grpo_sentinel.agent.readback import Readback

_MOST = 4096  # a loop that never ends its steps must not grow


class StepPacks:
    """The packs of one step: one copy for all; when finishing one of them fails, each is finished on its own."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._readback = Readback()
        self._added: list[Pack | Mapping[str, float]] = []

    def add(self, pack: Pack | Mapping[str, float] | None) -> None:
        """Take a pack, or numbers the host knows."""
        if pack is not None and len(self._added) >= _MOST:
            self._guard.refuse("end_step", f"{_MOST} observations in one step: call end_step() after every update")
        elif pack is not None:
            self._added.append(pack)
            self._readback.add(pack)

    def start(self) -> None:
        """Start the copy."""
        self._guard.essential("readback", self._readback.start)

    def harvest(self) -> Harvest:
        """Give all signals; a probe whose part cannot be finished is switched off, and the others are kept."""
        added, self._added = self._added, []
        harvest = self._guard.essential("readback", self._readback.harvest)
        if harvest is not None:
            return harvest
        self._readback = Readback()
        by_probe: dict[str, list[Pack | Mapping[str, float]]] = {}
        for pack in added:
            by_probe.setdefault(pack.probe if isinstance(pack, Pack) else "", []).append(pack)
        parts = [self._guard.run(probe or "host", alone, packs) for probe, packs in by_probe.items()]
        return merge([part for part in parts if part is not None])


def alone(packs: Sequence[Pack | Mapping[str, float]]) -> Harvest:
    """Read some packs back by themselves. Synchronises."""
    readback = Readback()
    for pack in packs:
        readback.add(pack)
    return readback.harvest()
