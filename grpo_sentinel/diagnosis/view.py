"""What a set of logs holds, kept in constant memory: rows of metrics, fault lines, the last line of each source.

A log of any length costs the same: beyond `MAX_ROWS` every second row is forgotten, beyond `MAX_HITS` of one kind only
the first and the count are kept. Rows in which a value stops being finite are never forgotten.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from grpo_sentinel.diagnosis.passing import Tails, babbles, of_a_tracker, opens_aside, told_in_passing
from grpo_sentinel.diagnosis.thinning import broken, by_rank, thinned
from grpo_sentinel.diagnosis.written import Written, by_the_policy
from grpo_sentinel.history.logs.formats import Row, RowReader
from grpo_sentinel.history.logs.lines import Line
from grpo_sentinel.history.logs.markers import Hit, find_marker
from grpo_sentinel.history.logs.names import canonical
from grpo_sentinel.history.logs.tracebacks import Traceback, TracebackReader

MAX_ROWS = 8000
MAX_HITS = 50
_OUTLIVED = 3  # rows that must follow for a line to have ended nothing


@dataclass(slots=True)
class LogView:
    """Facts of one run, gathered line by line; `index` of a row is its place among the rows (0-based)."""

    rows: list[Row] = field(default_factory=list)
    hits: dict[str, list[Hit]] = field(default_factory=dict)
    hit_counts: Counter[str] = field(default_factory=Counter)
    last_hits: dict[str, Hit] = field(default_factory=dict)
    last_lines: dict[str, Line] = field(default_factory=dict)
    lines: int = 0
    rows_seen: int = 0
    max_rank: int = -1  # highest `[rankN]` that any line begins with
    babble: Line | None = None  # the first completion that is one word again and again
    adapters: bool = False  # a line speaks of LoRA
    watched: bool = False  # a line tells of our own watching
    finished: bool = False  # the trainer printed its closing summary
    total_steps: int | None = None
    tracebacks: list[tuple[Traceback, str | None]] = field(default_factory=list)  # and the marker of its last line
    _rows_of: Counter[str] = field(default_factory=Counter)  # rows of a source since its last restart
    _restarts: Counter[str] = field(default_factory=Counter)
    _last_step: dict[str, int] = field(default_factory=dict)
    _tails: Tails = field(default_factory=Tails)
    _asides: dict[str, int] = field(default_factory=dict)  # lines behind which a traceback ends no process
    ended_at: dict[str, int] = field(default_factory=dict)  # line of the closing summary, where no rows follow it
    _firsts: dict[str, tuple[str, int, int]] = field(default_factory=dict)  # the same of the first hit
    _moments: dict[str, tuple[str, int, int]] = field(default_factory=dict)  # of the last hit: source, rows, restarts
    _stacks: TracebackReader = field(default_factory=TracebackReader)
    _written: Written = field(default_factory=Written)
    _reader: RowReader = field(default_factory=RowReader)
    _stride: int = 1
    _named: int = -1
    _names: dict[str, list[str]] = field(default_factory=dict)

    def feed(self, line: Line) -> None:
        """Take one more line."""
        self.lines += 1
        self.last_lines[line.source] = line
        if line.text.startswith("[rank"):
            self._note_rank(line.text)
        got = False
        for row in self._reader.feed(line):
            got = True
            self.add(row)
        if got:
            return
        if "xception" in line.text and opens_aside(line.text):
            self._asides[line.source] = line.number
        hit = find_marker(line)
        if hit is not None and (of_a_tracker(line.text) or by_the_policy(hit)):
            hit = None
        completion = self._written.note(line)
        if completion is not None:
            self._take_back(line, *completion)
        ended = self._stacks.feed(line)
        if ended is not None and 0 < ended.first - self._asides.get(line.source, ended.first) <= 2:
            self._tails.drop(line.source, self._asides[line.source])
            return
        if hit is not None and ended is None and told_in_passing(hit):
            return
        if ended is not None and len(self.tracebacks) < MAX_HITS:
            self.tracebacks.append((ended, hit.marker.name if hit is not None else None))
            self._moments[f"traceback {len(self.tracebacks) - 1}"] = self._moment(line.source)
        if hit is None or hit.marker.role != "teardown":
            self._tails.note(line)
            if not self.adapters and self.lines < _SETUP:
                self.adapters = any(word in line.text for word in _ADAPTERS)
            if not self.watched and self.lines < _SETUP:
                self.watched = "grpo-sentinel" in line.text or "grpo_sentinel" in line.text
            if self.babble is None and self.rows_seen and babbles(line.text):
                self.babble = line
        if hit is not None:
            moment = self._moments[hit.marker.name] = self._moment(line.source)
            self._firsts.setdefault(hit.marker.name, moment)
            self.hit_counts[hit.marker.name] += 1
            self.last_hits[hit.marker.name] = hit
            kept = self.hits.setdefault(hit.marker.name, [])
            if len(kept) < MAX_HITS:
                kept.append(hit)

    def _take_back(self, end: Line, first: int, prefix: str) -> None:
        """Forget what was found in a completion that turned out to be one."""

        def inside(line: Line) -> bool:
            return line.source == end.source and first <= line.number <= end.number and line.text.startswith(prefix)

        while self.tracebacks and inside(self.tracebacks[-1][0].last):
            self.tracebacks.pop()
        for name in [name for name, last in self.last_hits.items() if inside(last.line)]:
            kept = [hit for hit in self.hits[name] if not inside(hit.line)]
            self.hit_counts[name] -= len(self.hits[name]) - len(kept)
            if kept:
                self.hits[name], self.last_hits[name] = kept, kept[-1]
                continue
            del self.hits[name], self.hit_counts[name], self.last_hits[name]
            self._firsts.pop(name, None)
            self._moments.pop(name, None)
        self._tails.drop(end.source, first)

    def cut_short(self) -> Line | None:
        """Give the line behind the last row that tells of an end before time; None where the run came to its end."""
        ends = (self._tails.ending(source) for source in self._unended())
        return next((line for line in ends if line is not None), None)

    def behind_rows(self) -> list[tuple[Line, ...]]:
        """Give the lines behind the last row of each source that did not come to its end."""
        return [self._tails.behind(source) for source in self._unended()]

    def _unended(self) -> list[str]:
        total = self.total_steps or math.inf
        done = {row.source for row in self.rows if row.step is not None and row.step >= total}
        return [source for source in self.last_lines if source not in (*self.ended_at, *done)]

    def before(self, line: Line) -> list[Line]:
        """Give the lines between the last row and one behind it."""
        return [one for one in self._tails.behind(line.source) if one.number < line.number]

    def rows_after(self, name: str) -> int:
        """Count the rows that followed in the same file after the last hit of a kind; 0 where it was restarted."""
        source, rows, restarts = self._moments.get(name, ("", 0, 0))
        return self._rows_of[source] - rows if self._restarts[source] == restarts else 0

    def _moment(self, source: str) -> tuple[str, int, int]:
        return source, self._rows_of[source], self._restarts[source]

    def survived(self, name: str) -> bool:
        """Tell whether three more rows followed in the same file after the last hit of a kind, without a restart."""
        return self.rows_after(name) >= _OUTLIVED

    def habitual(self, name: str) -> bool:
        """Tell whether a kind of line recurs word for word while the run goes on: the last time ended it no more."""
        source, rows, restarts = self._firsts.get(name, ("", 0, 0))
        last = self._moments.get(name, ("", 0, 0))
        if last[0] != source or last[2] != restarts or last[1] - rows < _OUTLIVED:
            return False
        first, at = self.hits[name][0].line, self.last_hits[name].line
        raised = any(t.last == at for t, _ in self.tracebacks)
        return _DIGITS.sub("", first.text) == _DIGITS.sub("", at.text) and not raised

    def _note_rank(self, text: str) -> None:
        rank = text[5:11].partition("]")[0]
        if rank.isdigit():
            self.max_rank = max(self.max_rank, int(rank))

    def close(self) -> None:
        """Take what the readers still hold."""
        for row in self._reader.flush():
            self.add(row)

    def add(self, row: Row) -> None:
        """Take one row of metrics."""
        if "train_runtime" in row.raw or ("train_loss" in row.raw and not any(map(canonical, row.raw))):
            self.finished = True
            self.ended_at[row.source] = row.line
            self._rows_of[row.source] += _OUTLIVED  # what stands before the closing summary ended nothing
            return
        if row.step is not None and self.rows and self.rows[-1].step == row.step and self.rows[-1].raw == row.raw:
            return  # the same line twice, as two handlers of one logger write it
        self.rows_seen += 1
        self.ended_at.pop(row.source, None)
        self._tails.forget(row.source)
        self._note_row(row)
        self.total_steps = row.total_steps or self.total_steps
        if broken(row) or self.rows_seen % self._stride == 0:
            self.rows.append(row)
        if len(self.rows) > MAX_ROWS:
            self._stride *= 2
            self.rows = self.rows[:50] + thinned(self.rows[50:-50]) + self.rows[-50:]

    def _note_row(self, row: Row) -> None:
        self._rows_of[row.source] += 1
        if row.step is None:
            return
        if row.step < self._last_step.get(row.source, 0) - 1:
            self._restarts[row.source] += 1
        self._last_step[row.source] = row.step

    # ---- questions that the checks ask

    def series(self, *names: str) -> list[tuple[int, Row, float]]:
        """Values of the first raw or canonical name that rows have: `(index, row, value)`; None becomes NaN."""
        for name in names:
            out: list[tuple[int, Row, float]] = []
            for index, row in enumerate(self.rows):
                if name in row.raw:
                    value = row.raw[name]
                    out.append((index, row, math.nan if value is None else value))
            if out:
                return out
        for name in names:
            raws = self._raw_names().get(name, ())
            if raws:
                return [
                    (index, row, math.nan if (value := row.raw[raw]) is None else value)
                    for index, row in enumerate(self.rows)
                    for raw in next(([raw] for raw in raws if raw in row.raw), ())
                ]
        return []

    def side_by_side(self) -> list[LogView]:
        """Views of the rows of each rank where several printed the same steps side by side; else this one alone.

        A value that stops being finite on one rank is not outlived by the rows of another.
        """
        printing = by_rank(self.rows)
        if not printing:
            return [self]
        return [replace(self, rows=rows, rows_seen=len(rows), _named=-1, _names={}) for rows in printing]

    def _raw_names(self) -> dict[str, list[str]]:
        """Raw names of every canonical signal, in order of first sight; looked up anew when rows have come."""
        if self._named != self.rows_seen:
            self._named, self._names = self.rows_seen, {}
            for raw in dict.fromkeys(raw for row in self.rows for raw in row.raw):
                signal = canonical(raw)
                if signal is not None:
                    self._names.setdefault(signal, []).append(raw)
        return self._names


_SETUP = 5000  # lines in which a program says how it was set up
_ADAPTERS = ("LoRA", "lora", "peft_config", "PeftModel", "trainable params")
_DIGITS = re.compile(r"\d+")


def view_of(lines: Iterable[Line]) -> LogView:
    """Read some lines into a view."""
    view = LogView()
    for line in lines:
        view.feed(line)
    view.close()
    return view


def finite(values: Iterable[float]) -> list[float]:
    """The finite ones, in order."""
    return [value for value in values if math.isfinite(value)]
