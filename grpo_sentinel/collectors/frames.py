"""Aligns the records of all ranks of a node by step: pure, time comes in as an argument.

    rank 0:  DATA 7  STEP 7  DATA 8  ........        step 7: all have closed it    -> frame 7
    rank 1:  DATA 7  STEP 7  DATA 8  STEP 8          step 8: rank 0 is late        -> frame 8 after `late_seconds`
    rank 2:  DATA 7  STEP 7  DATA 8  (dies)          step 8: evidence of rank 2    -> frame 8 at once

A rank closes a step with its STEP record. Within a row the newest value of a signal counts: a DATA record speaks for
all micro-batches of its step so far. Training and evaluation have a lane each and never meet.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from grpo_sentinel.records import Frame, Kind, Mode, StepRecord

MAX_PENDING_STEPS = 64
"""Steps a lane keeps open; beyond it the oldest goes out as it is, so that memory stays bounded."""


class FrameAligner:
    """Turns records into frames, in the order of their steps, each step once."""

    def __init__(self, late_seconds: float, max_pending: int = MAX_PENDING_STEPS) -> None:
        self._lanes = {mode: _Lane(round(late_seconds * 1e9), max_pending) for mode in Mode}

    @property
    def late_records(self) -> int:
        """Records that came after the frame of their step had gone out."""
        return sum(lane.late_records for lane in self._lanes.values())

    def add(self, record: StepRecord, now_ns: int) -> None:
        """Take in one record; those of all ranks come in the order of their wall time."""
        self._lanes[record.mode].add(record, now_ns)

    def leave(self, rank: int, *, died: bool, now_ns: int) -> None:
        """Stop waiting for a rank. What it left unfinished is emitted: at once if it died, else after the wait."""
        for lane in self._lanes.values():
            lane.leave(rank, died, now_ns)

    def take(self, now_ns: int, alive: Collection[int], expected: Collection[int]) -> list[Frame]:
        """Return the frames that are complete or overdue.

        `alive` are the ranks worth waiting for, `expected` those named as missing when they sent nothing.
        """
        frames: list[Frame] = []
        for mode, lane in self._lanes.items():
            frames.extend(lane.take(mode, now_ns, alive, expected))
        return frames


@dataclass(slots=True)
class _Step:
    """One step that has not gone out yet."""

    run_id: str
    rows: dict[int, dict[str, float]] = field(default_factory=dict)
    wall_ns: int = 0
    due_ns: int | None = None  # from then on nobody is waited for; None until a first rank has closed or left it


class _Lane:
    """The open steps of one mode."""

    def __init__(self, late_ns: int, max_pending: int) -> None:
        self._late_ns = late_ns
        self._max_pending = max_pending
        self._pending: dict[int, _Step] = {}
        self._closed: dict[int, int] = {}  # rank -> newest step it has closed
        self._emitted = -1
        self._rewound: list[tuple[int, _Step]] = []  # steps left over from before a rewind
        self.late_records = 0

    def add(self, record: StepRecord, now_ns: int) -> None:
        if self._goes_back(record):
            self._rewind(record.step)
        if record.step <= self._emitted:
            self.late_records += 1
            return
        step = self._pending.setdefault(record.step, _Step(record.run_id))
        step.wall_ns = max(step.wall_ns, record.wall_ns)
        step.rows.setdefault(record.rank, {}).update(record.values)
        if record.kind is Kind.STEP:
            self._closed[record.rank] = max(record.step, self._closed.get(record.rank, -1))
            if step.due_ns is None:
                step.due_ns = now_ns + self._late_ns

    def _goes_back(self, record: StepRecord) -> bool:
        """A rank whose steps go back has started again, from a checkpoint or with a second `train()`.

        MEMORY records are taken between steps and may name the step before.
        """
        return record.kind is not Kind.MEMORY and record.step < self._closed.get(record.rank, -1)

    def _rewind(self, step: int) -> None:
        self._rewound.extend(sorted(self._pending.items()))
        self._pending.clear()
        self._closed.clear()
        self._emitted = step - 1

    def leave(self, rank: int, died: bool, now_ns: int) -> None:
        left_open = [step for step, row in self._pending.items() if rank in row.rows]
        due_ns = now_ns if died else now_ns + self._late_ns
        for step, row in self._pending.items():
            if left_open and step <= max(left_open):
                row.due_ns = due_ns if row.due_ns is None else min(due_ns, row.due_ns)

    def take(self, mode: Mode, now_ns: int, alive: Collection[int], expected: Collection[int]) -> list[Frame]:
        taken, self._rewound = self._rewound, []
        newest = max((step for step in self._pending if self._ready(step, now_ns, alive)), default=-1)
        for step in sorted(self._pending):
            if step > newest and len(self._pending) <= self._max_pending:
                break
            taken.append((step, self._pending.pop(step)))
            self._emitted = step
        return [_frame(mode, step, row, expected) for step, row in taken]

    def _ready(self, step: int, now_ns: int, alive: Collection[int]) -> bool:
        due_ns = self._pending[step].due_ns
        return (due_ns is not None and now_ns >= due_ns) or all(self._closed.get(rank, -1) >= step for rank in alive)


def _frame(mode: Mode, step: int, row: _Step, expected: Collection[int]) -> Frame:
    missing = tuple(sorted(rank for rank in expected if rank not in row.rows))
    rows = dict(sorted(row.rows.items()))
    return Frame(run_id=row.run_id, step=step, mode=mode, wall_ns=row.wall_ns, ranks=rows, missing=missing)
