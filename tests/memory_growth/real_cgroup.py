"""A memory cgroup of one's own with a limit, version 1 or 2; needs root and a cgroup file system that may be written."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


class Cgroup:
    """Made on entering, removed on leaving, when all that ran in it has ended."""

    def __init__(self, limit_bytes: int) -> None:
        first = (_ROOT / "memory" / "memory.limit_in_bytes").is_file()
        self.path = (_ROOT / "memory" if first else _ROOT) / f"sentinel-test-{os.getpid()}-{time.monotonic_ns()}"
        self._limit = ("memory.limit_in_bytes" if first else "memory.max", limit_bytes)
        self._kills = "memory.oom_control" if first else "memory.events"

    def __enter__(self) -> Cgroup:
        self.path.mkdir()
        try:
            (self.path / self._limit[0]).write_text(str(self._limit[1]))
        except OSError:
            self.path.rmdir()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        limit = time.monotonic() + 10
        while time.monotonic() < limit:
            with contextlib.suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.1)

    def prefix(self) -> list[str]:
        """Words before a command that let it run inside."""
        return ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs; exec "$@"', "sh"]

    def kills(self) -> int:
        """How often the kernel has killed here."""
        lines = dict(line.split() for line in (self.path / self._kills).read_text().splitlines())
        return int(lines.get("oom_kill", "0"))


def usable() -> str:
    """Say why no cgroup can be made here; "" when one can."""
    try:
        with Cgroup(1 << 30):
            return ""
    except OSError as error:
        return f"no memory cgroup can be made here: {error}"
