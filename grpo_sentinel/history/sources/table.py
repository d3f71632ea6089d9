"""Tables as sources: CSV (wide, or one value a row) and JSON lines, from trackers' exports or scripts of one's own.

Names of columns are the catalogue's, or a trainer's own (`grad_norm`, `actor/grad_norm`), also behind the run's name
that Weights & Biases puts before them (`run - train/loss`).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_sentinel.history.replay import frames
from grpo_sentinel.history.sources.base import Item, Progress, Source, opened
from grpo_sentinel.history.sources.recording import Recorder, signals
from grpo_sentinel.history.sources.state import numbers
from grpo_sentinel.records import Mode, StepRecord

_STEPS = (
    "step", "_step", "global_step", "train/global_step", "training/global_step", "trainer/global_step", "train/step",
    "current_steps", "iteration", "iter",
)  # fmt: skip
_RANKS = ("rank", "process_index")
_TIMES = ("wall_ns", "wall_time", "_timestamp", "timestamp", "time")
_MODES = ("mode", "split")
_METRICS = ("metric", "key", "tag", "name", "signal")
_KEPT_OUT = frozenset((*_RANKS, *_TIMES, *_MODES, *_STEPS, "sequence", "micro_batch", "generation", "monotonic_ns"))
MAX_ROW = 1 << 20  # bytes of one row; a longer one is no row of a table
_MAX_SECONDS = 4e9  # larger times are nanoseconds


def open_csv(path: Path) -> Source:
    """Make a source of one CSV or TSV file with a line of names at its head."""
    run_id = path.name.split(".")[0]
    return Source(kind="csv", name=str(path), run_id=run_id, items=lambda seen: _csv_items(path, run_id, seen))


def open_jsonl(path: Path) -> Source:
    """Make a source of one file of JSON objects, one a line."""
    run_id = path.name.split(".")[0]
    return Source(kind="jsonl", name=str(path), run_id=run_id, items=lambda seen: _jsonl_items(path, run_id, seen))


def _csv_items(path: Path, run_id: str, progress: Progress) -> Iterator[Item]:
    with opened(path, progress) as file:
        yield from frames(_records(csv_rows(_text(file), progress), run_id), run_id)


def _jsonl_items(path: Path, run_id: str, progress: Progress) -> Iterator[Item]:
    with opened(path, progress) as file:
        yield from frames(_records(json_rows(_text(file), progress), run_id), run_id)


def _text(file: Any) -> Iterator[str]:
    """Lines of bounded length; what is no UTF-8 is replaced."""
    while chunk := file.readline(MAX_ROW):
        yield chunk.decode("utf-8", errors="replace")


def csv_rows(lines: Iterable[str], progress: Progress) -> Iterator[dict[str, Any]]:
    """Read wide rows; a long table (`step,metric,value`) is joined to wide rows step by step."""
    stream = (line.replace("\r", "") for line in lines)  # the csv module refuses a lone carriage return
    head = next(stream, "").lstrip("﻿")
    delimiter = max(",;\t", key=head.count)
    try:
        names = [_column(name) for name in next(csv.reader([head], delimiter=delimiter), [])]
    except csv.Error as error:
        progress.notes.append(f"the first row is no head of a table: {error}")
        return
    metric = next((names.index(name) for name in _METRICS if name in names), None)
    if metric is not None and "value" in names:
        yield from _wide(csv.reader(stream, delimiter=delimiter), names, metric)
        return
    reader = csv.reader(stream, delimiter=delimiter)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            progress.notes.append(f"row {reader.line_num} is no row of a table: {error}")
            continue
        yield {name: cell for name, cell in zip(names, row, strict=False) if cell != ""}


def _wide(reader: Iterator[list[str]], names: list[str], metric: int) -> Iterator[dict[str, Any]]:
    value = names.index("value")
    held: dict[str, Any] = {}
    key: list[str] | None = None
    for row in _readable(reader):
        if len(row) <= max(metric, value):
            continue
        rest = [cell for index, cell in enumerate(row[: len(names)]) if names[index] in _STEPS + _RANKS + _MODES]
        if rest != key and held:
            yield held
            held = {}
        key = rest
        held.update({names[i]: cell for i, cell in enumerate(row[: len(names)]) if i not in (metric, value)})
        held[row[metric]] = row[value]
    if held:
        yield held


def _readable(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error:
            continue


def _column(name: str) -> str:
    """Take the run's name off, as W&B exports it; its `__MIN` and `__MAX` columns stay what they are."""
    return name.strip().rpartition(" - ")[2]


def json_rows(lines: Iterable[str], progress: Progress) -> Iterator[dict[str, Any]]:
    """Read objects; one level below (`{"values": {...}}`) is lifted. A line that is none is counted in a note."""
    bad = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            bad += 1
            continue
        if not isinstance(found, dict):
            bad += 1
            continue
        row = dict(found)
        for name, value in found.items():
            if isinstance(value, Mapping):
                del row[name]
                row.update(value)
        yield row
    if bad:
        progress.notes.append(f"{bad} lines are no JSON object and were passed over")


def _records(rows: Iterator[dict[str, Any]], run_id: str) -> Iterator[StepRecord]:
    recorder = Recorder(run_id)
    for row in rows:
        values = numbers(_parsed(row))
        step, rank = _first(values, _STEPS), _first(values, _RANKS)
        if step is None:
            step = _swift_step(row)
        at = int(step) if step is not None and abs(step) < 2**62 else None
        mode = _mode(row)
        time = _first(values, _TIMES)
        for name in _KEPT_OUT & values.keys():
            del values[name]
        if not values or "train_runtime" in values:
            continue
        yield recorder.record(
            signals(values), step=at, rank=int(rank) if rank is not None and 0 <= rank < 1e6 else 0, mode=mode,
            wall_ns=None if time is None or not 0 <= time < 2e19 else int(time * 1e9 if time < _MAX_SECONDS else time),
        )  # fmt: skip


def _parsed(row: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, cell in row.items():
        if isinstance(cell, str):
            try:
                out[str(name)] = float(cell)
            except ValueError:
                if cell in ("None", "null"):
                    out[str(name)] = None
        else:
            out[str(name)] = cell
    return out


def _first(values: Mapping[str, float | None], names: Iterable[str]) -> float | None:
    for name in names:
        value = values.get(name)
        if value is not None and value - value == 0:  # finite
            return value
    return None


def _swift_step(row: Mapping[str, Any]) -> float | None:
    """ms-swift writes `"global_step/max_steps": "3/9"`."""
    shown = str(row.get("global_step/max_steps", "")).partition("/")[0]
    return float(shown) if shown.isdigit() and len(shown) < 16 else None


def _mode(row: Mapping[str, Any]) -> Mode:
    shown = next((str(row[name]).lower() for name in _MODES if name in row), "")
    if shown.startswith(("eval", "val", "test")) or any(str(name).startswith("eval_") for name in row):
        return Mode.EVALUATION
    return Mode.TRAIN


def looks_like_json_lines(head: bytes) -> bool:
    """Tell whether the first line of a file is a JSON object."""
    first = io.BytesIO(head).readline().strip()
    return first.startswith(b'{"') and (first.endswith(b"}") or len(first) >= len(head) - 1)


def looks_like_csv(head: bytes) -> bool:
    """Tell whether the first line of a file names columns, one of them the step, and the second has as many cells."""
    lines = head.decode("utf-8", errors="replace").splitlines()[:2]
    names = [name.strip(" \"'").lower() for name in lines[0].replace("\t", ",").split(",")] if lines else []
    if len(lines) < 2 or len(names) < 2 or not {"step", "_step", "global_step"} & set(names):
        return False
    return len(lines[1].replace("\t", ",").split(",")) == len(names)


__all__ = ["csv_rows", "json_rows", "looks_like_csv", "looks_like_json_lines", "open_csv", "open_jsonl"]
