"""Free space of file systems, each asked in a thread of its own: a dead network mount hangs whoever asks."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from grpo_sentinel.clock import Clock
from grpo_sentinel.records import Sample

_SIGNALS = ("device.disk_free_bytes", "device.disk_used_ratio")


def space_of(path: Path) -> tuple[float, float]:
    """Return free bytes for this user and used share of the file system of `path`. Raises `OSError`."""
    found = os.statvfs(path)
    free, reserved = found.f_bavail, found.f_bfree - found.f_bavail
    usable = found.f_blocks - reserved
    return float(free * found.f_frsize), 1.0 - free / usable if usable > 0 else 0.0


class DiskProbe:
    """Watches the file system of one path; `start` and `take` return at once."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._answer: tuple[float, float] | OSError | None = None
        self._started_ns = 0

    def start(self) -> Sample | None:
        """Ask anew. While the last question is still open, say so instead and ask nobody."""
        if self._thread is not None:
            waited = (self._clock.monotonic_ns() - self._started_ns) / 1e9
            return self._failed(f"{self._path} has not answered for {waited:.0f} s: is its server gone?")
        self._started_ns = self._clock.monotonic_ns()
        self._thread = threading.Thread(target=self._ask, name=f"disk {self._path}", daemon=True)
        self._thread.start()
        return None

    def _ask(self) -> None:
        path = self._path
        try:
            while not path.exists() and path != path.parent:
                path = path.parent  # not made yet: it will lie on the file system of its parent
            self._answer = space_of(path)
        except OSError as error:
            self._answer = error

    def take(self, wait_seconds: float = 0.0) -> Sample | None:
        """Return the answer once it is there."""
        if self._thread is None:
            return None
        self._thread.join(wait_seconds)
        if self._answer is None:
            return None
        answer, self._answer, self._thread = self._answer, None, None
        if isinstance(answer, OSError):
            return self._failed(f"{self._path}: {answer.strerror}")
        return self._sample(dict(zip(_SIGNALS, answer, strict=True)), {})

    def _failed(self, reason: str) -> Sample:
        return self._sample({}, dict.fromkeys(_SIGNALS, reason))

    def _sample(self, values: dict[str, float], failed: dict[str, str]) -> Sample:
        return Sample(
            source="host",
            entity=str(self._path),
            wall_ns=self._clock.wall_ns(),
            values=values,
            labels={"path": str(self._path)},
            failed=failed,
        )
