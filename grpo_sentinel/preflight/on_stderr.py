"""What a user's code prints goes to stderr: `print`, writes to descriptor 1, and processes that it starts."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def on_stderr() -> Iterator[None]:
    """Point standard output at standard error while the block runs, so that nothing stands in a report or its JSON."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            _flush()
            kept = os.dup(1)
        except (OSError, ValueError):  # closed: nothing can be printed there
            yield
            return
        try:
            with contextlib.suppress(OSError):
                os.dup2(2, 1)
            yield
        finally:
            with contextlib.suppress(OSError, ValueError):
                _flush()
            os.dup2(kept, 1)
            os.close(kept)


def _flush() -> None:
    """What was written before belongs to the descriptor as it was then."""
    if sys.__stdout__ is not None:
        sys.__stdout__.flush()


__all__ = ["on_stderr"]
