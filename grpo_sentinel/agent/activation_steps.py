"""In which steps activations are looked at: arms the hooks before such a step and takes them off after it.

The first step of a run is looked at, then every n-th. With 0, the default, there is never a hook.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from grpo_sentinel.agent.guard import Guard
from grpo_sentinel.agent.probes.activations import ActivationWatch
from grpo_sentinel.agent.probes.layers_to_watch import find, is_compiled
from grpo_sentinel.agent.probes.pack import Pack

_MOST = 8  # modules of a kind
_PROBE = "activations"


class ActivationSteps:
    """Keeps count; what it costs is asked for, and is no reason to thin the other probes."""

    def __init__(self, every: int, guard: Guard) -> None:
        self._every = every
        self._guard = guard
        self._steps = 0
        self._watch = ActivationWatch(self._exempt)

    def begin(self, model: torch.nn.Module | None, tell: Callable[[str, dict[str, Any]], None]) -> None:
        """Look at the step that comes, if it is due: to be called before its forward."""
        if not self._every or self._steps % self._every or model is None or self._watch.armed:
            return
        if is_compiled(model):
            self._every = 0
            tell(
                "note", {"what": _PROBE, "text": "activations of a compiled model are not watched: hooks recompile it"}
            )
            return
        self._exempt(self._arm, model)

    def take(self) -> Pack | None:
        """Give what the hooks saw in the step that is over, and take them off."""
        self._steps += 1
        if not self._watch.armed:
            return None
        pack: Pack | None = self._exempt(self._watch.pack)
        self._watch.disarm()
        return pack

    def close(self) -> None:
        """Take the hooks off."""
        self._watch.disarm()

    def _arm(self, model: torch.nn.Module) -> None:
        self._watch.arm(find(model, _MOST))

    def _exempt(self, function: Callable[..., Any], *given: Any) -> Any:
        started = time.perf_counter()
        try:
            return self._guard.run(_PROBE, function, *given)
        finally:
            self._guard.exempt(time.perf_counter() - started)
