"""Wrapping methods of one instance, and putting everything back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MISSING = object()


class Patches:
    """Sets attributes on instances and remembers what stood there; `undo` restores the newest first.

    Instances, not classes: a user's subclass may override any of these methods, and an instance attribute wins.
    """

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set one attribute."""
        self._done.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def wrap(self, owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
        """Replace a method by `wrapper(method)`; False when the owner has no such method (another version)."""
        method = getattr(owner, name, None)
        if not callable(method):
            return False
        self.set(owner, name, wrapper(method))
        return True

    def undo(self) -> None:
        """Put everything back."""
        for owner, name, value in reversed(self._done):
            if value is _MISSING:
                vars(owner).pop(name, None)
            else:
                setattr(owner, name, value)
        self._done.clear()
