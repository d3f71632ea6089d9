"""The faults themselves, as they act inside the rank that they hit."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from chaos_plan import DISK, HANG, KILL, MEMORY, NAN, RAISE, REWARD, STOP, Case

FOREVER = 900.0


class Fault:
    """One fault in one rank: `at(moment, step)` is called wherever it could act."""

    def __init__(self, case: Case, rank: int, folder: Path) -> None:
        self.case, self.folder = case, folder
        self.here = rank == case.rank
        self.poisoned = False
        self._done = False
        # made by both ranks while all is well: the lone rank's collective
        self._lonely: Any = dist.new_group([0, 1], backend="gloo") if case.fault == HANG else None

    def at(self, moment: str, step: int, half_done: Callable[[], None] | None = None) -> None:
        """Act if this is the moment; `half_done` leaves what a save would leave when it stops in the middle."""
        case = self.case
        if case.halting and moment == "generate" and step == case.step - case.number % 2:
            (self.folder / "ask").touch()
        if not self.here or self._done or moment != case.moment or step < case.step:
            return
        self._done = True
        (self.folder / "fault.json").write_text(f'{{"step": {step}, "wall_ns": {time.time_ns()}}}')
        if half_done is not None:
            half_done()
        if case.fault == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif case.fault == STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif case.fault == HANG:
            dist.all_reduce(torch.ones(1), group=self._lonely)
        elif case.fault == REWARD:
            time.sleep(FOREVER)
        elif case.fault == RAISE:
            raise RuntimeError("chaos: this step raises on purpose")
        elif case.fault == MEMORY:
            _exhaust_memory()
        elif case.fault == NAN:
            self.poisoned = True

    def fill_the_disk(self, place: Path, step: int) -> None:
        """Leave no room in the file system of `place`: the save that follows stops in the middle."""
        if self.case.fault != DISK or not self.here or self._done or step < self.case.step:
            return
        self._done = True
        (self.folder / "fault.json").write_text(f'{{"step": {step}, "wall_ns": {time.time_ns()}}}')
        if os.stat(place).st_dev != os.stat(place.parent).st_dev:  # a small file system of its own
            with contextlib.suppress(OSError), (place / "filler").open("wb") as filler:
                while True:
                    filler.write(bytes(4096))
                    filler.flush()
        else:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))


def _exhaust_memory() -> None:
    """Allocate under a limit of the address space, as a container's limit would bite."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20), resource.RLIM_INFINITY))
    kept = []
    try:
        for _ in range(64):
            kept.append(torch.ones(4 << 20))
    finally:
        kept.clear()
