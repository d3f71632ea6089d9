"""Time in which the processor ran something else is not the agent's own: a noisy neighbour must not thin the probes.

    /proc/<pid>/task/<tid>/schedstat: nanoseconds on a processor, nanoseconds ready and not on one, times it was put on

    own time = wall time - min(wall time - CPU time, time ready and not on a processor)

So time in which the thread waits for a device stays the agent's own. The CPU time of each part is asked for only in
steps after one in which others ran: that takes half a microsecond, twice for every part.
"""

from __future__ import annotations

import contextlib
import os
import threading

_PATH = "/proc/self/task/{}/schedstat"
_FEW = 0.05


class Processor:
    """Reads what the kernel says of the training thread; where it says nothing, all time counts as the agent's own."""

    def __init__(self) -> None:
        self.held_up_seconds = 0.0  # time of the last step in which the thread could have run and another did
        self.contended = False  # that was more than a few percent of the step's CPU time
        self._descriptor = -1
        self._before = 0, 0

    def start(self, path: str = "") -> None:
        """Look at the thread that calls this, from now on."""
        with contextlib.suppress(OSError):
            self._descriptor = os.open(path or _PATH.format(threading.get_native_id()), os.O_RDONLY | os.O_CLOEXEC)
        self._before = self._read()

    def next_step(self) -> None:
        """Take what has gone by since the last call as one step."""
        before, self._before = self._before, self._read()
        on, ready = self._before[0] - before[0], self._before[1] - before[1]
        self.held_up_seconds = max(0, ready) / 1e9
        self.contended = ready > _FEW * on

    def close(self) -> None:
        """Let the file go; from then on all time counts."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _read(self) -> tuple[int, int]:
        if self._descriptor < 0:
            return 0, 0
        try:
            on, ready, _ = os.pread(self._descriptor, 96, 0).split()
            return int(on), int(ready)
        except (OSError, ValueError):  # switched off in this kernel, or the thread is gone
            self.close()
            return 0, 0


__all__ = ["Processor"]
