"""The daemon about itself, as flat numbers in base units."""

from __future__ import annotations

import resource
from collections import Counter, deque

_KEPT = 512


class Health:
    """Counts what the loop did and how long it took; `numbers` is exported like any other figure."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._turns: deque[float] = deque(maxlen=_KEPT)
        self._lags: deque[float] = deque(maxlen=_KEPT)
        self._costly: dict[str, float] = {}
        self._due_ns = 0

    def turn(self, seconds: float, *, late: bool) -> None:
        """Note one turn of the loop."""
        self._turns.append(seconds)
        self.counts["loop_turns_total"] += 1
        self.counts["loop_late_total"] += late

    def read(self, lag_seconds: float) -> None:
        """Note how old the newest record was when it was read."""
        self._lags.append(max(0.0, lag_seconds))

    def numbers(self, now_ns: int) -> dict[str, float]:
        """Give all figures; those that cost something are at most a second old."""
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + 1_000_000_000
            self._costly = self._measure()
        return {**{name: float(count) for name, count in self.counts.items()}, **self._costly}

    def _measure(self) -> dict[str, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        out = {"cpu_seconds_total": usage.ru_utime + usage.ru_stime, "rss_bytes": _rss_bytes()}
        for name, values in (("loop_seconds", self._turns), ("read_lag_seconds", self._lags)):
            if values:
                ordered = sorted(values)
                out[f"{name}_median"] = ordered[len(ordered) // 2]
                out[f"{name}_p99"] = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
                out[f"{name}_max"] = ordered[-1]
        return out


def _rss_bytes() -> float:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return float(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0.0
