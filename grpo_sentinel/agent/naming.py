"""Who is behind a signal: tensors of a batch that do not fit, the parameter that carries the gradient.

Names are no numbers, so they go out as an event, and only when they change: a fault that lasts is named once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_RATHER_MUCH = {  # names of a share that is always there, told from this share on ...
    "gradient.top_share": 0.5,
    "policy.activation_range_ratio": 0.5,
    "policy.dead_unit_ratio": 0.5,
    "policy.expert_load_ratio": 5.0,
    "policy.expert_unused_ratio": 0.5,
}
_PAUSE = 16  # ... and at most every so many steps
_LONGEST = 400  # characters


class Naming:
    """Remembers what was told, one string per signal."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, int]] = {}

    def changed(self, subjects: Mapping[str, str], values: Mapping[str, float], step: int) -> list[dict[str, Any]]:
        """Give the bodies of the events to send for `subjects` (signal to names) of a record of `step`."""
        out = []
        for signal, names in subjects.items():
            before, at = self._told.get(signal, ("", -_PAUSE))
            least = _RATHER_MUCH.get(signal)
            if names == before or (least is not None and (values.get(signal, 0.0) <= least or step - at < _PAUSE)):
                continue
            self._told[signal] = (names, step)
            out.append({"signal": signal, "names": names[:_LONGEST]})
        return out
