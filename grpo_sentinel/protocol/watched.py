"""Whether a sidecar watches a run: it holds a lock in the run's directory, which dies with its holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCK_NAME = "daemon.lock"


def is_watched(directory: Path) -> bool:
    """Tell whether a sidecar watches the run in `directory` now. Never raises, never waits."""
    try:
        descriptor = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


__all__ = ["LOCK_NAME", "is_watched"]
