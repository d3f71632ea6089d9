"""Who looks at a frame: trackers of one mode, and for every layout of frames (which rank sends which signals) a plan.

    frame ─▶ layout ─▶ plan ─┬─ blind: its signals are not in such a frame; asked once, when the plan is made
                             ├─ calm: without memory; looks only when a value leaves its range, or while it is not idle
                             └─ the rest: looks at every frame

Most rules have nothing to say about most steps. That they need not be asked is what makes a step cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from grpo_sentinel.rules.tracker import Tracker
from grpo_sentinel.rules.view import Get

Layout: TypeAlias = "tuple[tuple[int, tuple[str, ...]], ...]"

_MAX_PLANS = 256  # layouts kept; a run has a handful, by what is sampled every n-th step
_NOBODY: tuple[Tracker, ...] = ()


class Stage:
    """The trackers that are asked together: bounds first, the others after them."""

    __slots__ = ("_blind", "_calm", "_order", "_ranges", "_rest", "_watched", "_zeros")

    def __init__(self, trackers: Sequence[Tracker], present: Mapping[int | None, frozenset[str]], ranks: int) -> None:
        self._order = {id(tracker): place for place, tracker in enumerate(trackers)}
        self._blind: list[tuple[Tracker, str]] = []
        self._calm: list[Tracker] = []
        self._ranges: list[tuple[str, float, float, Tracker]] = []
        self._zeros: dict[str, list[Tracker]] = {}
        self._watched: Sequence[Tracker] = _NOBODY  # calm or blind, but not idle
        rest = []
        for tracker in trackers:
            names = present.get(tracker.rank)
            if names is None:
                continue  # this rank sends nothing in such a frame
            if tracker.idle and tracker.blind(names, ranks):
                self._blind.append((tracker, tracker.last_unable))
            elif tracker.rank is None and (limits := tracker.calm()):
                self._calm.append(tracker)
                self._screen(tracker, [limit for limit in limits if limit[0] in names])
            else:
                rest.append(tracker)
        self._rest = tuple(rest)

    def _screen(self, tracker: Tracker, limits: Iterable[tuple[str, float, float]]) -> None:
        for name, low, high in limits:
            if low == high == 0:
                self._zeros.setdefault(name, []).append(tracker)
            else:
                self._ranges.append((name, low, high, tracker))

    def due(self, get: Get, rows: Iterable[Mapping[str, float]]) -> Sequence[Tracker]:
        """Give the trackers that must look at this frame, in the order of the rules."""
        hot: list[Tracker] = []
        for row in rows:
            if any(map(row.get, self._zeros)):  # 0 and None are false, NaN is true
                for name, trackers in self._zeros.items():
                    if row.get(name):
                        hot += trackers
        for name, low, high, tracker in self._ranges:
            value = get(name)
            if value is None or not low <= value <= high:
                hot.append(tracker)
        if not hot and not self._watched:
            return self._rest
        asked = {id(tracker): tracker for tracker in (*self._rest, *hot, *self._watched)}
        return sorted(asked.values(), key=lambda tracker: self._order[id(tracker)])

    def after(self, asked: Sequence[Tracker]) -> None:
        """Watch those that are not idle any more; nothing to do when only the rest was asked."""
        if asked is not self._rest:
            self.enter()

    def enter(self) -> None:
        """Begin to use the plan: what came to life under another one is watched here."""
        known = (*self._calm, *(tracker for tracker, _ in self._blind))
        self._watched = [tracker for tracker in known if not tracker.idle]

    def settle(self, looks: int) -> None:
        """Note for the trackers that were not asked what a look would have noted."""
        for tracker in self._calm:
            if tracker.idle and tracker.looks < looks:
                tracker.looks = tracker.judged = looks
                tracker.last_unable = ""
        for tracker, reason in self._blind:
            if tracker.idle and tracker.looks < looks:
                tracker.looks = looks
                tracker.last_unable = reason


@dataclass(slots=True)
class Plan:
    """Both stages for one layout."""

    bounds: Stage
    others: Stage
    by_rank: bool  # some tracker looks at the row of one rank

    def enter(self) -> None:
        self.bounds.enter()
        self.others.enter()

    def settle(self, looks: int) -> None:
        self.bounds.settle(looks)
        self.others.settle(looks)


@dataclass(slots=True)
class Board:
    """Trackers of one mode (training or evaluation) and the plans for its frames."""

    known: set[str] = field(default_factory=set)  # signal names seen so far
    ranks: frozenset[int] = frozenset()
    bounds: list[Tracker] = field(default_factory=list)
    others: list[Tracker] = field(default_factory=list)
    looks: int = 0  # frames so far
    plans: dict[Layout, Plan] = field(default_factory=dict)
    layout: Layout = ()
    plan: Plan | None = None  # of the newest frame

    def grow(self, rows: Mapping[int, Mapping[str, float]]) -> bool:
        """Take note of names and ranks; tells whether one of them is new."""
        grown = not rows.keys() <= self.ranks
        for row in rows.values():
            if not row.keys() <= self.known:
                self.known |= row.keys()
                grown = True
        if grown:
            self.ranks = self.ranks | rows.keys()
            self.settle()
            self.plans.clear()
            self.plan = None
        return grown

    def planned(self, layout: Layout) -> Plan | None:
        """Switch to the plan of a layout, if there is one already."""
        if self.plan is not None and layout == self.layout:
            return self.plan
        self.settle()
        self.layout = layout
        self.plan = self.plans.get(layout)
        if self.plan is not None:
            self.plan.enter()
        return self.plan

    def make_plan(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Plan for the layout of a frame that all trackers have just looked at."""
        present: dict[int | None, frozenset[str]] = {rank: frozenset(row) for rank, row in rows.items()}
        present[None] = frozenset().union(*rows.values())
        if len(self.plans) >= _MAX_PLANS:
            self.plans.clear()
        made = Plan(
            Stage(self.bounds, present, len(rows)),
            Stage(self.others, present, len(rows)),
            any(tracker.rank is not None for tracker in (*self.bounds, *self.others)),
        )
        self.plan = self.plans[self.layout] = made
        made.enter()

    def clear(self) -> None:
        """Forget who looks at what, since the rules have changed; frames are counted on."""
        self.settle()
        self.known = set()
        self.ranks = frozenset()
        self.bounds, self.others = [], []
        self.plans.clear()
        self.plan = None

    def settle(self) -> None:
        """Bring the books of all trackers up to date."""
        if self.plan is not None:
            self.plan.settle(self.looks)


def layout_of(rows: Mapping[int, Mapping[str, float]]) -> Layout:
    """What tells one kind of frame from another."""
    return tuple([(rank, tuple(row)) for rank, row in rows.items()])


__all__ = ["Board", "Layout", "Plan", "Stage", "layout_of"]
