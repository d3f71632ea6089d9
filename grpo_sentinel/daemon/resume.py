"""Bring a new engine to where the last daemon's stood, by replaying what the history holds through it.

Nothing is acted on: findings that fire in the replay were announced before. What was not committed is still in the
ring, and comes through the collector from the cursors that were committed with the records.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from grpo_sentinel.clock import Clock
from grpo_sentinel.collectors.ranks import RankCollector
from grpo_sentinel.errors import HistoryError
from grpo_sentinel.halting.progress import begun_ns
from grpo_sentinel.history import HistoryReader
from grpo_sentinel.history.replay import frames
from grpo_sentinel.records import EventRecord, Frame
from grpo_sentinel.rules.engine import Engine
from grpo_sentinel.views import Cursor

_TRIES, _PAUSE_SECONDS = 6, 0.05
REPLAY_STEPS = 1000
"""Steps that are replayed: more than any detector's window."""


def resume(
    engine: Engine, history: Path, run_id: str, steps: int = REPLAY_STEPS, *, since_wall_ns: int = 0
) -> tuple[dict[int, Cursor], dict[str, object]]:
    """Replay the last `steps` steps of a run into `engine`; gives the ranks' cursors and the trainer's configuration.

    What was recorded before `since_wall_ns` belongs to earlier processes of the same name and is left out.
    Both are empty when the history does not know the run. Raises `HistoryError` when it cannot be read.
    """
    if not history.exists():
        return {}, {}
    with _opened(history) as reader:
        run = reader.run(run_id)
        if run is None:
            return {}, {}
        if run.context:
            engine.configure(run.context)
        newest = max((status.last_step for status in reader.latest(run_id).ranks.values()), default=0)
        since = max(0, newest - steps)
        for item in _merged(
            (event for event in reader.events(run_id, since_step=since) if event.wall_ns >= since_wall_ns),
            _whole(frames((r for r in reader.records(run_id, since_step=since) if r.wall_ns >= since_wall_ns), run_id)),
        ):
            if isinstance(item, Frame):
                engine.frame(item)
            else:
                engine.event(item)
        return reader.cursors(run_id), dict(run.context)


def is_unjudged(history: Path, run_id: str) -> bool:
    """Tell whether a run was recorded and not judged. Raises `HistoryError` when the history cannot be read."""
    if not history.exists():
        return False
    with _opened(history) as reader:
        return bool(reader.unjudged(run_id))


def inherit(engine: Engine, history: Path, parent_run_id: str, steps: int = REPLAY_STEPS) -> bool:
    """Give `engine` the baselines of the run that its own was resumed from; tells whether the history knows that run.

    What fired there stays there. Raises `HistoryError` when the history cannot be read.
    """
    if not parent_run_id or not history.exists():
        return False
    with _opened(history) as reader:
        known = reader.run(parent_run_id) is not None
    if known:
        resume(engine, history, parent_run_id, steps)
        engine.keep_baselines()
    return known


def parent_of(directory: Path, clock: Clock) -> str:
    """Give the run that the ranks of a run say they were resumed from; "" when none says so."""
    collector = RankCollector(directory, clock)
    try:
        named = (status.identity.parent_run_id for status in collector.poll().ranks.values())
        return next((name for name in named if name and name != directory.name), "")
    finally:
        collector.close()


def begun(directory: Path, clock: Clock) -> int:
    """Give when the ranks of a run that live now attached, in wall ns; 0 when none lives."""
    collector = RankCollector(directory, clock)
    try:
        return begun_ns(collector.poll().ranks)
    finally:
        collector.close()


def _opened(history: Path) -> HistoryReader:
    """Open the history; one that the sink is making just now is given a moment."""
    for _ in range(_TRIES - 1):
        try:
            return HistoryReader(history)
        except HistoryError:
            time.sleep(_PAUSE_SECONDS)
    return HistoryReader(history)


def _whole(stored: Iterable[Frame]) -> Iterator[Frame]:
    """Leave out the steps at the end that not all ranks had closed: the collector completes those from the rings."""
    held: deque[Frame] = deque()
    for frame in stored:
        if frame.missing:
            held.append(frame)
            continue
        yield from held
        held.clear()
        yield frame


def _merged(events: Iterable[EventRecord], whole: Iterable[Frame]) -> Iterator[EventRecord | Frame]:
    """Order events before the frame of their step."""
    waiting = deque(sorted(events, key=lambda event: event.step))
    for frame in whole:
        while waiting and waiting[0].step <= frame.step:
            yield waiting.popleft()
        yield frame
    yield from waiting


__all__ = ["REPLAY_STEPS", "HistoryError", "begun", "inherit", "is_unjudged", "parent_of", "resume"]
