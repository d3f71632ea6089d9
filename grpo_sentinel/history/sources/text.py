"""Text logs of the trainers as sources: metric rows become frames, the last line of a traceback an event."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from grpo_sentinel.history.logs.formats import Row, RowReader
from grpo_sentinel.history.logs.lines import Line, lines_of
from grpo_sentinel.history.replay import frames
from grpo_sentinel.history.sources.base import Item, Progress, Source, opened
from grpo_sentinel.history.sources.recording import Recorder, signals
from grpo_sentinel.records import EventRecord, StepRecord

_CLOSING = ("train_runtime", "train_samples_per_second")
_EXCEPTION = re.compile(r"(?:\[rank(\d+)\]: ?|^)((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception))\b:? ?(.*)")
_ORDINARY = ("None of the inputs have requires_grad",)


def open_text(path: Path) -> Source:
    """Make a source of one log."""
    run_id = path.name.split(".")[0] or path.name
    return Source(kind="text", name=str(path), run_id=run_id, items=lambda seen: _items(path, run_id, seen))


def _items(path: Path, run_id: str, progress: Progress) -> Iterator[Item]:
    with opened(path, progress) as file:
        yield from items_of(lines_of(file, str(path)), run_id)


def items_of(lines: Iterable[Line], run_id: str) -> Iterator[Item]:
    """Turn lines into frames; an exception goes out after the frame of the last row before it."""
    reader = LogReader(run_id)
    held: list[StepRecord] = []
    for line in lines:
        for found in reader.feed(line):
            if isinstance(found, StepRecord):
                if held and held[-1].step != found.step:
                    yield from frames(held, run_id)
                    held = []
                held.append(found)
            else:
                yield from frames(held, run_id)
                held = []
                yield found
    for record in reader.close():
        if held and held[-1].step != record.step:
            yield from frames(held, run_id)
            held = []
        held.append(record)
    yield from frames(held, run_id)


class LogReader:
    """Turns lines, as they come, into step records and exception events."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._rows = RowReader()
        self._recorder = Recorder(run_id)
        self._events = 0
        self.step = 0
        self.formats: set[str] = set()

    def feed(self, line: Line) -> Iterator[StepRecord | EventRecord]:
        """Give what this line completes."""
        seen = False
        for row in self._rows.feed(line):
            seen = True
            yield from self._record(row)
        if seen:
            return
        text = line.text
        if "Error" in text or "Exception" in text:
            found = _EXCEPTION.search(text)
            if found and not any(words in text for words in _ORDINARY):
                yield self._event(int(found[1] or 0), found[2], found[3], line)

    def close(self) -> Iterator[StepRecord]:
        """Give what is still being joined."""
        for row in self._rows.flush():
            yield from self._record(row)

    def _record(self, row: Row) -> Iterator[StepRecord]:
        if any(name in row.raw for name in _CLOSING):
            return
        self.formats.add(row.format)
        values = signals(row.raw, row.format)
        record = self._recorder.record(values, step=row.step, rank=row.rank or 0)
        self.step = record.step
        yield record

    def _event(self, rank: int, kind: str, message: str, line: Line) -> EventRecord:
        self._events += 1
        body = {"type": kind, "message": message[:500], "source": line.source, "line": line.number}
        return EventRecord(
            run_id=self._run_id,
            rank=rank,
            sequence=self._events,
            step=self.step,
            wall_ns=0,
            kind="exception",
            body=body,
        )


__all__ = ["LogReader", "items_of", "open_text"]
