"""What a detector looks at: one step (or sample, or tick) with its signals, merged over ranks or of one rank.

Frame --+--> View of one rank            (scope: rank)
        +--> View merged by the catalogue (scope: merged)
Sample ----> View of one GPU or host      (scope: sample)
tick ------> View of one rank's heartbeat (scope: tick)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from grpo_sentinel.catalog import signal_of
from grpo_sentinel.records import Heartbeat, Liveness, Phase
from grpo_sentinel.rules.robust import SortedWindow

Get = Callable[[str], "float | None"]


class RankState(Protocol):
    """The part of `views.RankStatus` that rules over time read."""

    @property
    def heartbeat(self) -> Heartbeat: ...
    @property
    def liveness(self) -> Liveness: ...
    @property
    def stopped(self) -> bool: ...


@dataclass(slots=True)
class View:
    """One look: `get(name)` gives a value or None when nobody sent it; never raises, keeps no history."""

    step: int
    wall_ns: int
    get: Get
    ranks: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    rank: int | None = None  # set in scope rank and tick
    missing: tuple[int, ...] = ()
    tainted: bool = False  # a bound is broken in this very step: baselines must not learn from it
    states: Mapping[int, RankState] = field(default_factory=dict)
    past: Mapping[Phase, SortedWindow] = field(default_factory=dict)  # scope tick: seconds of this rank's phases
    left_alone: Set[int] = frozenset()  # ranks whose own exception says that another rank had gone
    event: Mapping[str, Any] = field(default_factory=dict)
    event_kind: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a detector thinks of one view. `unable` says why it cannot judge; then `bad` means nothing."""

    bad: bool = False
    clear: bool = True  # False between the limit and the limit less hysteresis: neither fires nor resolves
    value: float | None = None
    limit: float | None = None
    ranks: tuple[int, ...] = ()
    subject: str = ""
    signal: str = ""
    onset: int | None = None  # when the detector knows the first abnormal step better than the tracker
    detail: str = ""
    unable: str = ""


FINE = Verdict()
NEAR = Verdict(clear=False)


@lru_cache(maxsize=1024)
def unable(reason: str) -> Verdict:
    """A verdict of abstention."""
    return Verdict(unable=reason)


class Detector(Protocol):
    """Mathematics of a rule for one subject: state from view to view, constant cost, no clock, no I/O."""

    def update(self, view: View) -> Verdict: ...


def merge(name: str, values: list[float]) -> float:
    """Merge one signal over ranks by the catalogue's rule; one NaN makes the result NaN (never dropped)."""
    if len(values) == 1:
        return values[0]
    known = signal_of(name)
    how = known.merge if known is not None else "mean"
    if any(value != value for value in values):
        return math.nan
    if how == "sum":
        return sum(values)
    if how == "max":
        return max(values)
    if how == "min":
        return min(values)
    if how == "same":
        return next((value for value in values if math.isinf(value)), values[0])
    return sum(values) / len(values)


def merged_get(ranks: Mapping[int, Mapping[str, float]]) -> Get:
    """Build a lazy, cached lookup over all ranks of a frame; signals merged `own` are not offered."""
    if len(ranks) == 1:
        return next(iter(ranks.values())).get
    rows = tuple(ranks.values())
    cache: dict[str, float | None] = {}

    def get(name: str) -> float | None:
        if name in cache:
            return cache[name]
        values = [row[name] for row in rows if name in row]
        result = merge(name, values) if values else None
        cache[name] = result
        return result

    return get
