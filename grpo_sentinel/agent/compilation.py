"""Tells compiling from hanging: a phase of its own while torch compiles in the training thread.

    torch._dynamo's callbacks ─▶ enter(COMPILE) … leave(COMPILE)    only where the job has imported it

A recompilation late in a run takes minutes, now and then; the phase it happens in must neither look hung nor learn it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from grpo_sentinel.records import Phase

_MODULE = "torch._dynamo.callback"


class CompileWatch:
    """Registers with the compiler once the job has imported it; a compilation in another thread is left alone."""

    def __init__(self, enter: Callable[[Phase], None], leave: Callable[[Phase], None]) -> None:
        self._enter, self._leave = enter, leave
        self._thread = threading.get_ident()
        self._handler: Any = None

    def look(self) -> None:
        """Register when the compiler is there; costs a dictionary look-up. May raise on a torch without callbacks."""
        module = sys.modules.get(_MODULE)
        if module is None or self._handler is not None:
            return
        handler = module.callback_handler
        handler.register_start_callback(self._begin)
        handler.register_end_callback(self._end)
        self._handler = handler

    def close(self) -> None:
        """Take the callbacks out again."""
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.remove_start_callback(self._begin)
            handler.remove_end_callback(self._end)

    def _begin(self, *_: object) -> None:
        if threading.get_ident() == self._thread:
            self._enter(Phase.COMPILE)

    def _end(self, *_: object) -> None:
        if threading.get_ident() == self._thread:
            self._leave(Phase.COMPILE)
