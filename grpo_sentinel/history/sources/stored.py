"""Runs of our own SQLite history as sources: frames, events and device readings in the order of time."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_sentinel.history.database import DatabaseError
from grpo_sentinel.history.reader import HistoryReader, RunInfo
from grpo_sentinel.history.replay import frames
from grpo_sentinel.history.sources.base import Item, Progress, Source, SourceError
from grpo_sentinel.records import Sample, StepRecord

MAGIC = b"SQLite format 3\0"


def open_history(path: Path, run_id: str | None = None) -> list[Source]:
    """Give the run named, every run for `all`, else the newest. Raises `SourceError` or `HistoryError`."""
    with _told(path), HistoryReader(path) as reader:
        runs = reader.runs()
    if not runs:
        raise SourceError(f"the history {path} holds no run")
    if run_id == "all":
        chosen = runs[::-1]
    elif run_id is None:
        chosen = runs[:1]
    else:
        chosen = [run for run in runs if run.run_id == run_id]
    if not chosen:
        known = ", ".join(run.run_id for run in runs[:5])
        raise SourceError(f"the history {path} holds no run {run_id}; the newest are {known}")
    others = len(runs) - 1 if run_id is None else 0
    return [_source(path, run, len(runs), others) for run in chosen]


def _source(path: Path, run: RunInfo, of: int, others: int) -> Source:
    name = str(path) if of == 1 else f"{path} ({run.run_id})"
    return Source(
        kind="history",
        name=name,
        run_id=run.run_id,
        context=run.context,
        items=lambda seen: _items(path, run, seen),
        others=others,
    )


def _items(path: Path, run: RunInfo, progress: Progress) -> Iterator[Item]:
    with _told(path), HistoryReader(path) as reader:
        newest = reader.query("SELECT MAX(step) FROM records WHERE run=?", (reader.run_key(run.run_id),))
        progress.total = newest[0][0] or 0
        events = reader.events(run.run_id)
        event = next(events, None)
        samples = _samples(reader, run.run_id)
        sample = next(samples, None)
        for frame in frames(_watched(reader.records(run.run_id), progress), run.run_id):
            while event is not None and event.step <= frame.step:
                yield event
                event = next(events, None)
            while sample is not None and sample.wall_ns <= frame.wall_ns:
                yield sample
                sample = next(samples, None)
            yield frame
        if event is not None:
            yield event
            yield from events
        if sample is not None:
            yield sample
            yield from samples


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Say in a sentence that a row is not what we wrote: bytes on a disk can change under a valid database."""
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, DatabaseError) as error:
        raise SourceError(f"the history {path} is damaged: {type(error).__name__}: {error}; replay a copy") from error


def _watched(records: Iterator[StepRecord], progress: Progress) -> Iterator[StepRecord]:
    for record in records:
        progress.done = record.step
        yield record


def _samples(reader: HistoryReader, run_id: str) -> Iterator[Sample]:
    """Merge the readings of all devices by their time."""
    entities = [name for (name,) in reader.query("SELECT DISTINCT entity FROM entities ORDER BY id")]
    streams = [reader.samples(run_id, entity=entity) for entity in entities]
    return heapq.merge(*streams, key=lambda sample: sample.wall_ns)


__all__ = ["MAGIC", "open_history"]
