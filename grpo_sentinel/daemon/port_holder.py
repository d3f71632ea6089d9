"""Names who listens on a port of this machine, as far as this user may see it: another sidecar by its run.

/proc/net/tcp: local port, state 0A ─▶ inode ─▶ /proc/<pid>/fd/N -> socket:[inode] ─▶ /proc/<pid>/cmdline
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_LISTENS = "0A"


def holder_of(port: int) -> str:
    """Say who holds a TCP port: "the sidecar of run x (pid 71)", or a process; "" where it cannot be seen."""
    tables = [_read(_PROC / "net" / name) for name in ("tcp", "tcp6")]
    sockets = {f"socket:[{inode}]" for table in tables for inode in _listening(table, port)}
    for process in _PROC.glob("[0-9]*") if sockets else ():
        if any(link in sockets for link in _links(process / "fd")):
            return _words(process)
    return ""


def _listening(table: str, port: int) -> Iterator[str]:
    """Give the inodes of the sockets of a /proc/net/tcp table that listen on `port`."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
            yield fields[9]


def _links(folder: Path) -> Iterator[str]:
    try:
        names = os.listdir(folder)
    except OSError:  # of another user, or gone
        return
    for name in names:
        try:
            yield os.readlink(folder / name)
        except OSError:
            continue


def _words(process: Path) -> str:
    words = _read(process / "cmdline").split("\0")
    name = _read(process / "comm").strip() or "a process"
    if any(word.startswith("grpo_sentinel") or word.endswith("/grpo-sentinel") for word in words) and "run" in words:
        run = words[words.index("--run-id") + 1] if "--run-id" in words[:-1] else ""
        name = f"the sidecar of run {run}" if run else "another sidecar"
    return f"{name} (pid {process.name})"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


__all__ = ["holder_of"]
