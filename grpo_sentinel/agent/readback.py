"""One copy from device to host per step: packs are joined on the device, copied without blocking, finished on the host.

    add(pack) ... add(pack) -> start() -> (the step goes on) -> harvest()

On CUDA the copy goes to pinned memory behind an event, so only `harvest` may wait, and by then it seldom has to. On the
CPU there is nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from grpo_sentinel.agent.probes.pack import Finish, Harvest, Pack, Part, merge, wide_dtype

Runner = Callable[..., Harvest | None]
"""Calls `runner(probe, function, *arguments)` and gives None when that probe is off or failed: `Guard.run`."""


class Readback:
    """Collects the packs of one step. Not thread-safe; used by the training thread only."""

    def __init__(self) -> None:
        self._packs: list[Pack] = []
        self._ready: list[Mapping[str, float]] = []
        self._flights: list[_Flight] = []
        self._pinned: dict[torch.device, torch.Tensor] = {}

    def __len__(self) -> int:
        """Count what was added and not yet harvested."""
        return len(self._packs) + len(self._ready) + sum(len(flight.packs) for flight in self._flights)

    def add(self, pack: Pack | Mapping[str, float] | None) -> None:
        """Take a pack, or numbers that the host already knows. None is ignored. Never blocks."""
        if isinstance(pack, Pack):
            self._packs.append(pack)
        elif pack is not None:
            self._ready.append(pack)

    def start(self) -> None:
        """Join the packs into one vector per device and start its copy to the host. Never blocks."""
        by_device: dict[torch.device, list[Pack]] = {}
        for pack in self._packs:
            by_device.setdefault(pack.values.device, []).append(pack)
        self._packs = []
        for device, packs in by_device.items():
            joined = torch.cat([pack.values.to(wide_dtype(device)) for pack in packs])
            self._flights.append(_Flight(joined, packs, _buffer(joined, self._pinned)))

    def done(self) -> bool:
        """Tell whether `harvest` would not have to wait."""
        return not self._packs and all(flight.event is None or flight.event.query() for flight in self._flights)

    def harvest(self, run: Runner | None = None) -> Harvest:
        """Wait for the copy and finish every pack; starts the copy first when nobody did.

        Synchronises at most once per device, and the readback is empty afterwards. `run` (the guard's) calls each
        `finish` under its probe's name, so that one broken probe does not take the others' numbers with it.
        """
        if self._packs:
            self.start()
        flights, self._flights = self._flights, []
        ready, self._ready = self._ready, []
        by_probe: dict[tuple[str, Finish], list[Part]] = {}
        for flight in flights:
            for pack, values in flight.land():
                by_probe.setdefault((pack.probe, pack.finish), []).append(Part(values, pack.meta))
            if flight.buffer is not None:
                self._pinned[flight.device] = flight.buffer
        call = _call if run is None else run
        finished = [call(probe, finish, parts) for (probe, finish), parts in by_probe.items()]
        return merge([*ready, *(harvest for harvest in finished if harvest is not None)])


def _call(_probe: str, finish: Finish, parts: list[Part]) -> Harvest:
    return finish(parts)


class _Flight:
    """One joined vector on its way to the host."""

    __slots__ = ("buffer", "device", "event", "host", "packs")

    def __init__(self, joined: torch.Tensor, packs: list[Pack], buffer: torch.Tensor | None) -> None:
        self.packs = packs
        self.device = joined.device
        self.buffer = buffer
        self.event: Any = None
        if buffer is None:
            self.host = joined.cpu()
            return
        self.host = buffer[: joined.numel()]
        with torch.cuda.device(joined.device):
            self.host.copy_(joined, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()

    def land(self) -> list[tuple[Pack, torch.Tensor]]:
        """Wait for the copy, then cut the vector apart again."""
        if self.event is not None:
            self.event.synchronize()
        # A pinned buffer serves the next step: what is handed out must not change under its reader.
        host = self.host.to(torch.float64, copy=self.buffer is not None)
        pieces = host.split([pack.values.numel() for pack in self.packs])
        return list(zip(self.packs, pieces, strict=True))


def _buffer(joined: torch.Tensor, pinned: dict[torch.device, torch.Tensor]) -> torch.Tensor | None:
    """Take pinned memory for a CUDA vector; out of the pool, since an earlier copy may still be writing to its own."""
    if joined.device.type != "cuda":
        return None
    buffer = pinned.pop(joined.device, None)
    if buffer is None or buffer.numel() < joined.numel():
        buffer = torch.empty(max(2 * joined.numel(), 4096), dtype=joined.dtype, pin_memory=True)
    return buffer
