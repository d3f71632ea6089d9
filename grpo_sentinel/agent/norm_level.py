"""The running level of the gradient norm: is this step's norm several times what it has been lately?

    spike   norm > 5 x median of the last 32 finite norms, of which there are 8 or more

Fed with the norm that the vote has merged, every rank comes to the same. A level that stays becomes the new median
after half a window.
"""

from __future__ import annotations

import math
from collections import deque

_WINDOW = 32
_LEAST = 8
_TIMES = 5.0


class NormLevel:
    """Remembers the last norms. Constant memory; a few microseconds a step."""

    def __init__(self) -> None:
        self._norms: deque[float] = deque(maxlen=_WINDOW)

    def spikes(self, norm: float | None) -> bool:
        """Judge one step's norm by those before it, then remember it; None or not finite is neither."""
        if norm is None or not math.isfinite(norm):
            return False
        ordered = sorted(self._norms)
        self._norms.append(norm)
        return len(ordered) >= _LEAST and norm > _TIMES * ordered[len(ordered) // 2] > 0
