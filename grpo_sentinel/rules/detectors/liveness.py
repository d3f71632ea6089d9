"""Ranks over time: dead, gone quietly, silent beyond what their phase usually takes, late for the others.

These run per rank at every tick. What a rank waits for decides who is blamed: a rank that stands in a collective
is innocent as long as another one has not arrived; where several stand at one place, none of them is picked out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from grpo_sentinel.records import Heartbeat, Liveness, Phase
from grpo_sentinel.rules.phase_past import TURNS
from grpo_sentinel.rules.robust import SortedWindow
from grpo_sentinel.rules.view import FINE, RankState, Verdict, View, unable

_NO_STATE = unable("no heartbeat of this rank")
_AT_REST = (Phase.FINISHED,)
_EXCUSED = (Phase.CHECKPOINT, Phase.EVALUATION, Phase.COMPILE, Phase.FINISHED)
_ROLLOUT = (Phase.DATA, Phase.GENERATE, Phase.REWARD, Phase.LOGPROBS, Phase.WEIGHT_SYNC)  # in any order, nested too
_STAGES = {**dict.fromkeys(_ROLLOUT, 0), Phase.FORWARD: 1, Phase.BACKWARD: 2, Phase.VOTE: 3, Phase.OPTIMIZER: 4}


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
    """Bad when the rank's process is gone without having closed its segment.

    Ranks that one look finds dead together have one finding: who went first and who followed cannot be told, unless
    the exception of a follower says so.
    """

    def __post_init__(self) -> None:
        self._before: frozenset[int] = frozenset()  # ranks that were dead at the look before
        self._among: tuple[int, ...] = ()  # this one, and those that were found dead with it

    def update(self, view: View) -> Verdict:
        state = _own(view)
        if state is None:
            return _NO_STATE
        dead = frozenset(rank for rank, other in view.states.items() if other.liveness is Liveness.DEAD)
        if view.rank in dead and view.rank not in self._before:
            new = dead - self._before - view.left_alone
            self._among = (view.rank,) if view.rank in view.left_alone else tuple(sorted(new))
        self._before = dead
        if view.rank not in dead or view.rank != self._among[0]:
            return FINE
        verdict = _verdict(view, state.heartbeat, 1.0, 0.0)
        if len(self._among) == 1:
            return verdict
        detail = f"{verdict.detail}; found dead together, so who went first is not known"
        return replace(verdict, ranks=self._among, detail=detail)


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
    """Bad when a phase lasts longer than max(factor x the 90th percentile of its own past, twice its longest turn
    lately, floor_seconds).

    The past comes from heartbeats, as far as they are seen, and from the records of whole steps; the longer counts.

    Until `min_points` turns of the phase are known, `first_seconds` counts (loading, compilation, first rollout). Time
    in no phase is what a loop does not declare, an evaluation or a save now and then too: it has `idle_seconds`. A
    process that is stopped (SIGSTOP, a debugger) is silent after `floor_seconds` whatever its phase.
    Not judged: a rank that waits for another (see `suspects`), and all ranks once one is dead.
    """

    factor: float = 5.0
    floor_seconds: float = 30.0
    first_seconds: float = 1200.0
    idle_seconds: float = 300.0
    min_points: int = 3

    def __post_init__(self) -> None:
        if self.factor < 1 or self.floor_seconds <= 0:
            raise ValueError("expected factor >= 1 and floor_seconds > 0")
        self._past: dict[Phase, SortedWindow] = {}
        self._last: Heartbeat | None = None
        self._stopped_ns: int | None = None

    def update(self, view: View) -> Verdict:
        state = _own(view)
        if state is None:
            return _NO_STATE
        beat = state.heartbeat
        self._learn(beat)
        self._stopped_ns = (self._stopped_ns or view.wall_ns) if state.stopped else None
        if state.liveness is not Liveness.ALIVE or beat.phase in _AT_REST:
            return FINE
        among = suspects(view.states)
        if view.rank not in among:
            return FINE
        if self._stopped_ns is not None:
            seconds, limit = (view.wall_ns - self._stopped_ns) / 1e9, self.floor_seconds
        else:
            seconds, limit = (view.wall_ns - beat.phase_since_wall_ns) / 1e9, self._limit(beat.phase, view)
        if seconds <= limit or view.rank != among[0]:
            return FINE  # of several that cannot be told apart the first speaks for all
        verdict = _verdict(view, beat, seconds, limit)
        if self._stopped_ns is not None:
            return replace(verdict, detail=f"{verdict.detail}, its process is stopped (SIGSTOP or a debugger)")
        if len(among) > 1:
            detail = f"{verdict.detail}; any of them may be the one that the others wait for"
            return replace(verdict, ranks=among, detail=detail)
        return verdict

    def _limit(self, phase: Phase, view: View) -> float:
        pasts = (self._past.get(phase), view.past.get(phase))
        usual = [past.quantile(0.9) for past in pasts if past is not None and len(past) >= self.min_points]
        if not usual or phase is Phase.COMPILE:  # every compilation may be the first of its kind
            return self.first_seconds
        longest = max(past.largest() for past in pasts if past is not None and len(past))
        usual.append(2.0 * longest / self.factor)  # what lasted long once may last so long again
        return max(self.factor * max(usual), self.idle_seconds if phase is Phase.IDLE else self.floor_seconds)

    def _learn(self, beat: Heartbeat) -> None:
        last = self._last
        if last is not None and beat.phase_since_wall_ns > last.phase_since_wall_ns:
            # phases between two looks are missed, so a duration is only ever over-estimated: never a false alarm
            seconds = (beat.phase_since_wall_ns - last.phase_since_wall_ns) / 1e9
            self._past.setdefault(last.phase, SortedWindow(TURNS)).push(seconds)
        self._last = beat


def suspects(states: Mapping[int, RankState]) -> tuple[int, ...]:
    """Name the ranks of which one may be what all others wait for, in order; () once a rank is dead.

    a stopped process                                        it, whatever the others do
    the ranks of the lowest step that are not in its vote    the others have come further
    of those the phase that was entered first                whoever came later went past it ...
                                                             ... unless that phase comes after another's: a quick
                                                             rank waits in backward for one still in forward
    all in one phase, or phase and time disagree             all of them: nobody can tell from outside
    """
    alive = {rank: state for rank, state in sorted(states.items()) if state.liveness is Liveness.ALIVE}
    if not alive or any(state.liveness is Liveness.DEAD for state in states.values()):
        return ()
    stopped = tuple(rank for rank, state in alive.items() if state.stopped)
    if stopped:
        return stopped
    lowest = min(_position(state.heartbeat) for state in alive.values())
    behind = {rank: state.heartbeat for rank, state in alive.items() if _position(state.heartbeat) == lowest}
    oldest = min(behind.values(), key=lambda beat: beat.phase_since_wall_ns)
    group = tuple(rank for rank, beat in behind.items() if beat.phase is oldest.phase)
    stages = [_STAGES[beat.phase] for beat in behind.values() if beat.phase in _STAGES]
    contradicted = oldest.phase in _STAGES and _STAGES[oldest.phase] > min(stages)
    return tuple(behind) if contradicted else group


def _position(beat: Heartbeat) -> tuple[int, bool]:
    return beat.step, beat.phase is Phase.VOTE


@dataclass
class Late:
    """Bad when every other rank stands in the step vote for longer than max(floor_seconds, factor x a usual step)
    and this one has not arrived. It gets its name while it is still late, before any time-out.

    A rank that saves, evaluates or compiles is excused: the others wait for it by design, also while it then goes
    through the step that they have gone through before. Until a step's duration is known `first_seconds` count.
    """

    factor: float = 1.0
    floor_seconds: float = 10.0
    first_seconds: float = 120.0

    def __post_init__(self) -> None:
        if self.factor < 0 or self.floor_seconds <= 0:
            raise ValueError("expected factor >= 0 and floor_seconds > 0")
        self._steps = SortedWindow(32)
        self._step = 0
        self._step_wall_ns = 0
        self._excused_ns = 0  # when it was excused last

    def update(self, view: View) -> Verdict:
        own = _own(view)
        if own is None:
            return _NO_STATE
        beat = own.heartbeat
        self._learn(beat.step, view.wall_ns)
        if beat.phase in _EXCUSED:
            self._excused_ns = view.wall_ns
        others = [s for rank, s in view.states.items() if rank != view.rank and s.liveness is Liveness.ALIVE]
        if own.liveness is not Liveness.ALIVE or not others or beat.phase in _EXCUSED:
            return FINE
        waiting = [s.heartbeat for s in others if s.heartbeat.phase is Phase.VOTE]
        if len(waiting) < len(others) or _position(beat) >= min(map(_position, waiting)):
            return FINE
        since = max(self._excused_ns, *(other.phase_since_wall_ns for other in waiting))
        seconds = (view.wall_ns - since) / 1e9
        usual = self.factor * self._steps.median() if len(self._steps) else self.first_seconds
        limit = max(self.floor_seconds, usual)
        return _verdict(view, beat, seconds, limit) if seconds > limit else FINE

    def _learn(self, step: int, wall_ns: int) -> None:
        if step == self._step:
            return
        if step == self._step + 1 and self._step_wall_ns:
            self._steps.push((wall_ns - self._step_wall_ns) / 1e9)
        self._step, self._step_wall_ns = step, wall_ns
