"""The last values of a few signals as lines of blocks."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping

from grpo_sentinel.reporting.sparkline import sparkline
from grpo_sentinel.views import RankStatus

SHOWN = (
    ("reward", "reward.mean"), ("kl", "policy.kl_k3_nats"), ("entropy", "policy.entropy_nats"),
    ("grad norm", "gradient.norm_preclip"), ("step s", "time.step_seconds"),
)  # fmt: skip
_KEPT = 200


class Trends:
    """Newest values of the shown signals; per signal the median rank's, one per step."""

    def __init__(self) -> None:
        self._values: dict[str, deque[float]] = {name: deque(maxlen=_KEPT) for _, name in SHOWN}
        self._step = 0

    def add(self, ranks: Mapping[int, RankStatus]) -> None:
        """Take the ranks as they are now, if a step has ended since the last look."""
        step = max((status.last_step for status in ranks.values()), default=0)
        if step <= self._step:
            return
        self._step = step
        for name, values in self._values.items():
            found = sorted(
                (status.values[name] for status in ranks.values() if name in status.values), key=_not_finite_last
            )
            if found:
                values.append(found[len(found) // 2] if all(map(math.isfinite, found)) else found[-1])

    def fill(self, name: str, values: Iterable[float]) -> None:
        """Begin with what the history knows."""
        self._values[name].extend(values)

    def lines(self, width: int) -> list[tuple[str, float, str]]:
        """Give title, newest value and blocks of every signal that has values."""
        return [
            (title, values[-1], sparkline(list(values)[-width:]))
            for title, name in SHOWN
            if (values := self._values[name])
        ]


def _not_finite_last(value: float) -> tuple[bool, float]:
    return (not math.isfinite(value), value if math.isfinite(value) else 0.0)
