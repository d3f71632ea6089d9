"""What a check that runs in a process of its own (`apart`) says to the one that waits for it; else nobody hears it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Listener = Callable[[Mapping[str, Any]], None]
_listener: Listener | None = None
_careful = False


def listen(listener: Listener, *, careful: bool = False) -> None:
    """Hand everything told to `listener`; `careful` asks for one input at a time, so that the last one is known."""
    global _listener, _careful
    _listener, _careful = listener, careful


def tell(kind: str, **what: object) -> None:
    """Tell what is about to be done (`doing`), or what is known so far (`known`)."""
    if _listener is not None:
        _listener({"kind": kind, **what})


def is_heard() -> bool:
    """Whether anybody waits: a report so far is made for nobody else."""
    return _listener is not None


def is_careful() -> bool:
    """Whether each input is to be tried by itself."""
    return _careful


__all__ = ["Listener", "is_careful", "is_heard", "listen", "tell"]
