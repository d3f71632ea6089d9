"""The running level of the gradient norm: does this step's norm stand out from what it has been lately?

    spike   norm > 5 x median and ln(norm / median) > 9 x 1.4826 MAD of ln, over the last 32 positive norms (at least 8)

Norms of small batches vary by factors: in healthy runs of TRL five times the median comes every 20 to 300 steps, both
together less than once in 1000. Fed with the norm that the vote has merged, every rank comes to the same. A level that
stays becomes the new median after half a window.
"""

from __future__ import annotations

import math
from collections import deque

_WINDOW = 32
_LEAST = 8
_FACTOR = 5.0
_SIGMAS = 9.0 * 1.4826


class NormLevel:
    """Remembers the logarithms of the last norms. Constant memory; a few microseconds a step."""

    def __init__(self) -> None:
        self._logs: deque[float] = deque(maxlen=_WINDOW)

    def spikes(self, norm: float | None) -> bool:
        """Judge one step's norm by those before it, then remember it; None, 0 and what is not finite is neither."""
        if norm is None or not math.isfinite(norm) or norm <= 0:
            return False
        now, ordered = math.log(norm), sorted(self._logs)
        self._logs.append(now)
        if len(ordered) < _LEAST:
            return False
        middle = ordered[len(ordered) // 2]
        if now - middle <= math.log(_FACTOR):
            return False
        spread = sorted(abs(one - middle) for one in ordered)[len(ordered) // 2]
        return now - middle > _SIGMAS * spread
