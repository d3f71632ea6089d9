"""Growth that will run into a limit: Theil-Sen slope over a bounded window, projected to the room that is left."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from grpo_sentinel.rules.expression import Expression
from grpo_sentinel.rules.quantities import quantity
from grpo_sentinel.rules.robust import median, theil_sen
from grpo_sentinel.rules.view import FINE, NEAR, Verdict, View, unable


@dataclass
class Drift:
    """Bad when the signal grows steadily and the smallest known `room` is used up within the horizon.

    A point is the median of `block` steps. Steadily: at least `steady` of the points in the window rise, the newest
    third grows at least `linear` x as fast as the whole (warm-up growth flattens out, a leak does not), the growth has
    lasted `lasting` points, and it is at least `min_growth` x the value at the window's start. The slope is Theil-Sen's
    of the growth alone, flat points before its onset left out. `room` lists expressions of what is left (limit - used);
    the smallest counts. Either horizon is enough: `horizon_steps`, or `horizon_minutes` by the wall clock of the
    window. Up to a level from which it has fallen back twice it is no growth to be projected: garbage that is collected
    now and then, batches sorted by length. With `reserve` it is bad only while the room is at most that share of the
    value. Names the ranks that grew at least half as much as the one that grew most, and the step in which the growth
    began, also where that lies before the window.
    """

    signal: Expression
    room: tuple[Expression, ...]
    window: int = 24
    min_points: int = 12
    skip: int = 5
    steady: float = 0.8
    linear: float = 0.7
    min_growth: float = 0.02
    horizon_steps: float = 300.0
    horizon_minutes: float = 30.0
    block: int = 1
    lasting: int = 4
    reserve: float = 0.0

    def __post_init__(self) -> None:
        if not self.room:
            raise ValueError("drift needs at least one room expression")
        if not 6 <= self.min_points <= self.window <= 64:
            raise ValueError("expected 6 <= min_points <= window <= 64")
        if not 0 < self.steady <= 1:
            raise ValueError(f"steady is a share of steps, got {self.steady}")
        if self.block < 1 or self.reserve < 0 or self.lasting < 2:
            raise ValueError("expected block >= 1, reserve >= 0 and lasting >= 2")
        self._points: deque[tuple[int, int, float]] = deque(maxlen=self.window)
        self._rows: deque[dict[int, float]] = deque(maxlen=self.window)
        self._block: list[float] = []
        self._since: int | None = None  # step in which the growth that fills the window began
        self._skipped = 0
        self._room_known = False
        self._high = -math.inf  # highest point since the newest fall
        self._peaks = (-math.inf, -math.inf)  # the two highest points that were followed by a fall
        rooms = ", ".join(expression.text for expression in self.room)
        self._no_room = unable(f"no limit known: no value of {rooms}")
        steps = f" of {self.block} steps each" if self.block > 1 else ""
        self._learning = unable(f"needs {self.min_points} points of {self.signal.text}{steps}")
        self._verdict = self._learning

    def update(self, view: View) -> Verdict:
        value = self.signal(view.get)
        if value is None:
            return unable(self.signal.missing(view.get))
        if not math.isfinite(value):
            return unable(f"{self.signal.text} is not finite")
        if self._skipped < self.skip:
            self._skipped += 1
            return self._learning
        if self.block > 1:
            self._block.append(value)
            if len(self._block) < self.block:
                return self._verdict
            value = median(self._block)
            self._block.clear()
        self._points.append((view.step, view.wall_ns, value))
        self._rows.append(self._by_rank(view, value))
        self._watch_falls(value)
        self._verdict = self._judge(view, value)
        return self._verdict

    def _judge(self, view: View, value: float) -> Verdict:
        first_step, _, first = self._points[0]
        if value - first <= self.min_growth * abs(first):
            self._since = None
            if self._room_known and len(self._points) >= self.min_points:
                return FINE  # nearly always
        if len(self._points) < self.min_points:
            return self._learning
        if self._since is None and self._steady():
            self._since = self._onset((value - first) / max(1, view.step - first_step))
        if value <= self._peaks[1]:
            return FINE
        rooms = [room for room in (expression(view.get) for expression in self.room) if room is not None]
        self._room_known = bool(rooms)
        if not rooms:
            return self._no_room
        return self._project(value, min(rooms))

    def _watch_falls(self, value: float) -> None:
        if value < self._high - self.min_growth * abs(self._high):
            highest, second = self._peaks
            self._peaks = (max(highest, self._high), max(second, min(highest, self._high)))
            self._high = value
        self._high = max(self._high, value)

    def _project(self, value: float, room: float) -> Verdict:
        first_step, first_ns, first = self._points[0]
        last_step, last_ns, _ = self._points[-1]
        grown, steps = value - first, last_step - first_step
        if steps <= 0 or grown <= self.min_growth * abs(first):
            return FINE
        seconds_per_step = max(0, last_ns - first_ns) / 1e9 / steps
        # cheap screen with end points, a factor 2 wide; Theil-Sen only for what passes it
        rough = room * steps / grown
        minutes = rough * seconds_per_step / 60
        if rough > 2 * self.horizon_steps and (minutes > 2 * self.horizon_minutes or seconds_per_step == 0):
            return FINE
        if not self._steady():
            return NEAR
        points = list(self._points)
        slope, newest = _slope(points), _slope(points[-max(4, len(points) // 3) :])
        if slope <= 0 or newest < self.linear * slope:
            return NEAR
        onset = self._onset(newest)
        grew = [point for point in points if point[0] >= onset]
        if len(grew) < self.lasting:
            return NEAR
        slope = max(slope, _slope(grew))
        left = max(0.0, room / slope)
        minutes = left * seconds_per_step / 60
        if left > self.horizon_steps and (minutes > self.horizon_minutes or seconds_per_step == 0):
            return NEAR
        if self.reserve and room > self.reserve * abs(value):
            return NEAR
        amount = quantity(slope, "bytes" if "_bytes" in self.signal.text else "")
        distance = f"{left:.0f} step{'' if round(left) == 1 else 's'}"
        text = f"{amount} a step, {distance} or {minutes:.1f} minutes to the limit"
        return Verdict(
            bad=True,
            clear=False,
            ranks=self._growing(),
            value=value,
            limit=value + room,
            signal=self.signal.text,
            onset=onset if self._since is None else min(onset, self._since),
            detail=text,
        )

    def _steady(self) -> bool:
        values = [point[2] for point in self._points]
        rises = sum(b > a for a, b in pairwise(values))
        return rises >= self.steady * (len(values) - 1)

    def _onset(self, slope: float) -> int:
        """Walk back from the newest point to where the growth began: two slow steps in a row end it."""
        points = list(self._points)
        onset, slow = points[-1][0], 0
        for before, after in zip(points[-2::-1], points[:0:-1], strict=True):
            grows = after[2] - before[2] >= 0.3 * slope * (after[0] - before[0])
            slow = 0 if grows else slow + 1
            if slow == 2:
                break
            if grows:
                onset = after[0]
        return onset

    def _by_rank(self, view: View, value: float) -> dict[int, float]:
        if len(view.ranks) == 1:
            return dict.fromkeys(view.ranks, value)
        values = ((rank, self.signal(row.get)) for rank, row in view.ranks.items())
        return {rank: own for rank, own in values if own is not None}

    def _growing(self) -> tuple[int, ...]:
        first, last = self._rows[0], self._rows[-1]
        grown = {rank: last[rank] - first[rank] for rank in last if rank in first}
        most = max(grown.values(), default=0.0)
        return tuple(sorted(rank for rank, growth in grown.items() if growth >= 0.5 * most > 0))


def _slope(points: list[tuple[int, int, float]]) -> float:
    return theil_sen([point[0] for point in points], [point[2] for point in points])
