"""Ranks over time: dead, gone quietly, silent beyond what their phase usually takes, late for the others.

These run per rank at every tick. What a rank waits for decides who is blamed: a rank that stands in a collective
is innocent as long as another one has not arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

from grpo_sentinel.records import Heartbeat, Liveness, Phase
from grpo_sentinel.rules.robust import SortedWindow
from grpo_sentinel.rules.view import FINE, RankState, Verdict, View, unable

_NO_STATE = unable("no heartbeat of this rank")
_AT_REST = (Phase.FINISHED,)
_EXCUSED = (Phase.CHECKPOINT, Phase.EVALUATION, Phase.FINISHED)


def describe(beat: Heartbeat, wall_ns: int) -> str:
    """Say where a rank is and for how long."""
    seconds = max(0.0, (wall_ns - beat.phase_since_wall_ns) / 1e9)
    return f"step {beat.step}, phase {beat.phase.name.lower().replace('_', '-')} for {seconds:.1f} s"


def _own(view: View) -> RankState | None:
    return None if view.rank is None else view.states.get(view.rank)


def _verdict(view: View, beat: Heartbeat, value: float, limit: float) -> Verdict:
    assert view.rank is not None
    return Verdict(
        bad=True,
        clear=False,
        value=value,
        limit=limit,
        ranks=(view.rank,),
        subject=beat.phase.name.lower().replace("_", "-"),
        onset=beat.step,
        detail=describe(beat, view.wall_ns),
    )


@dataclass
class Dead:
    """Bad when the rank's process is gone without having closed its segment."""

    def update(self, view: View) -> Verdict:
        state = _own(view)
        if state is None:
            return _NO_STATE
        if state.liveness is not Liveness.DEAD:
            return FINE
        return _verdict(view, state.heartbeat, 1.0, 0.0)


@dataclass
class Left:
    """Bad when the rank has left in good order while others still train, for `after_seconds`."""

    after_seconds: float = 60.0

    def __post_init__(self) -> None:
        self._since: int | None = None

    def update(self, view: View) -> Verdict:
        state = _own(view)
        if state is None:
            return _NO_STATE
        others = any(other.liveness is Liveness.ALIVE for rank, other in view.states.items() if rank != view.rank)
        if state.liveness is not Liveness.CLOSED or not others:
            self._since = None
            return FINE
        self._since = view.wall_ns if self._since is None else self._since
        seconds = (view.wall_ns - self._since) / 1e9
        return _verdict(view, state.heartbeat, seconds, self.after_seconds) if seconds > self.after_seconds else FINE


@dataclass
class Silence:
    """Bad when a phase lasts longer than max(factor x the 90th percentile of its own past, floor_seconds).

    Until `min_points` turns of the phase are known, `first_seconds` counts (loading, compilation, first rollout).
    Not judged: a rank that waits for another (it stands further than the slowest), and all ranks once one is dead.
    """

    factor: float = 5.0
    floor_seconds: float = 30.0
    first_seconds: float = 1200.0
    min_points: int = 3

    def __post_init__(self) -> None:
        if self.factor < 1 or self.floor_seconds <= 0:
            raise ValueError("expected factor >= 1 and floor_seconds > 0")
        self._past: dict[Phase, SortedWindow] = {}
        self._last: Heartbeat | None = None

    def update(self, view: View) -> Verdict:
        state = _own(view)
        if state is None:
            return _NO_STATE
        beat = state.heartbeat
        self._learn(beat)
        if state.liveness is not Liveness.ALIVE or beat.phase in _AT_REST or _waits(view):
            return FINE
        seconds = (view.wall_ns - beat.phase_since_wall_ns) / 1e9
        limit = self._limit(beat.phase)
        return _verdict(view, beat, seconds, limit) if seconds > limit else FINE

    def _limit(self, phase: Phase) -> float:
        past = self._past.get(phase)
        if past is None or len(past) < self.min_points:
            return self.first_seconds
        return max(self.factor * past.quantile(0.9), self.floor_seconds)

    def _learn(self, beat: Heartbeat) -> None:
        last = self._last
        if last is not None and beat.phase_since_wall_ns > last.phase_since_wall_ns:
            # phases between two looks are missed, so a duration is only ever over-estimated: never a false alarm
            seconds = (beat.phase_since_wall_ns - last.phase_since_wall_ns) / 1e9
            self._past.setdefault(last.phase, SortedWindow(32)).push(seconds)
        self._last = beat


def _waits(view: View) -> bool:
    """Does this rank stand in a collective (or further than another), or is one dead already?"""
    own = _own(view)
    assert own is not None
    alive = [state for state in view.states.values() if state.liveness is Liveness.ALIVE]
    if any(state.liveness is Liveness.DEAD for state in view.states.values()):
        return True
    return any(_position(other.heartbeat) < _position(own.heartbeat) for other in alive)


def _position(beat: Heartbeat) -> tuple[int, bool]:
    return beat.step, beat.phase is Phase.VOTE


@dataclass
class Late:
    """Bad when every other rank stands in the step vote for longer than max(floor_seconds, factor x a usual step)
    and this one has not arrived. It gets its name while it is still late, before any time-out.

    A rank that saves or evaluates is excused: the others wait for it by design.
    """

    factor: float = 1.0
    floor_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.factor < 0 or self.floor_seconds <= 0:
            raise ValueError("expected factor >= 0 and floor_seconds > 0")
        self._steps = SortedWindow(32)
        self._step = 0
        self._step_wall_ns = 0

    def update(self, view: View) -> Verdict:
        own = _own(view)
        if own is None:
            return _NO_STATE
        beat = own.heartbeat
        self._learn(beat.step, view.wall_ns)
        others = [s for rank, s in view.states.items() if rank != view.rank and s.liveness is Liveness.ALIVE]
        if own.liveness is not Liveness.ALIVE or not others or beat.phase in _EXCUSED:
            return FINE
        waiting = [s.heartbeat for s in others if s.heartbeat.phase is Phase.VOTE]
        if len(waiting) < len(others) or _position(beat) >= min(map(_position, waiting)):
            return FINE
        seconds = (view.wall_ns - max(other.phase_since_wall_ns for other in waiting)) / 1e9
        usual = self._steps.median() if len(self._steps) else 0.0
        limit = max(self.floor_seconds, self.factor * usual)
        return _verdict(view, beat, seconds, limit) if seconds > limit else FINE

    def _learn(self, step: int, wall_ns: int) -> None:
        if step == self._step:
            return
        if step == self._step + 1 and self._step_wall_ns:
            self._steps.push((wall_ns - self._step_wall_ns) / 1e9)
        self._step, self._step_wall_ns = step, wall_ns
