"""How the sidecar asks a rank for its collectives: a byte into a pipe, answered with a file.

rank-00003.collectives         the pipe; a thread of the rank waits at it
rank-00003.collectives.json    what torch's flight recorder knows, replaced as a whole at each answer
"""

from __future__ import annotations

import os
from pathlib import Path


def pipe_of(directory: Path, rank: int) -> Path:
    """Name the pipe of a rank."""
    return directory / f"rank-{rank:05d}.collectives"


def answer_of(directory: Path, rank: int) -> Path:
    """Name the file that a rank answers with."""
    return directory / f"rank-{rank:05d}.collectives.json"


def ask(directory: Path, rank: int) -> bool:
    """Ask a rank to write its collectives down; False when nobody waits there. Never blocks."""
    try:
        descriptor = os.open(pipe_of(directory, rank), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        os.write(descriptor, b"?")
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


__all__ = ["answer_of", "ask", "pipe_of"]
