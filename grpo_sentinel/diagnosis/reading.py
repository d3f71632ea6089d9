"""Reads a file into the view: a log line by line, or a trainer's state, a table, TensorBoard's events row by row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from grpo_sentinel.diagnosis.view import LogView
from grpo_sentinel.history.logs.formats import Row
from grpo_sentinel.history.logs.lines import lines_of, read_lines
from grpo_sentinel.history.sources.base import Progress, opened
from grpo_sentinel.history.sources.state import entries, numbers
from grpo_sentinel.history.sources.table import csv_rows
from grpo_sentinel.history.sources.tensorboard import Damaged, scalars, steps
from grpo_sentinel.history.sources.tfrecord import records

Raw = Mapping[str, float | None]
_STEPS = ("step", "Step", "_step", "global_step", "train/global_step", "trainer/global_step")


def read_into(view: LogView, name: str) -> list[str]:
    """Read one file; gives notes on what could not be read, one sentence each.

    Raises `SentinelError` in a sentence when it cannot be opened.
    """
    base = Path(name).name.removesuffix(".gz")
    if base.endswith("trainer_state.json"):
        return _read_rows(view, name, "trainer_state", _states)
    if base.endswith((".csv", ".tsv")):
        return _read_rows(view, name, "csv", _table)
    if "tfevents" in base:
        return _read_rows(view, name, "tensorboard", _events)
    for line in read_lines(name):
        view.feed(line)
    return []


def _states(file: BinaryIO, progress: Progress) -> Iterator[Raw]:
    return (numbers(entry) for entry in entries(file, progress))


def _table(file: BinaryIO, progress: Progress) -> Iterator[Raw]:
    text = (line.text + "\n" for line in lines_of(file, ""))
    return ({name: _cell(cell) for name, cell in row.items()} for row in csv_rows(text, progress))


def _cell(cell: Any) -> float | None:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return None if cell in ("None", "null") else _TEXT


_TEXT = -1e-323  # no trainer prints this subnormal: marks a cell that is no number


def _events(file: BinaryIO, progress: Progress) -> Iterator[Raw]:
    try:
        for step, _, row in steps(scalars(records(file, progress))):
            yield {"step": float(step), **{tag: v for tag, v in row.items() if not tag.startswith(("eval/", "val"))}}
    except Damaged as error:
        progress.notes.append(f"what comes after is damaged: {error}")


def _read_rows(view: LogView, name: str, form: str, read: Callable[[BinaryIO, Progress], Iterator[Raw]]) -> list[str]:
    """Read rows one by one; a file that is cut off gives what stands before."""
    progress = Progress()
    with opened(Path(name), progress) as file:
        for number, given in enumerate(read(file, progress), 1):
            raw = {key: value for key, value in given.items() if value != _TEXT}
            found = [raw.pop(key) for key in _STEPS if key in raw]
            at = next((int(v) for v in found if v is not None and math.isfinite(v) and abs(v) < 2**62), None)
            view.lines += 1
            if raw:
                view.add(Row(format=form, source=name, line=number, step=at, raw=raw))
    return progress.notes
