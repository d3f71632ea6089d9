"""TensorBoard event files as sources: the scalars of one step become one record.

The three messages that matter, by field number (tensorflow/core/util/event.proto, framework/summary.proto):

    Event    1 wall_time double   2 step int64    5 summary Summary
    Summary  1 value Value (repeated)
    Value    1 tag string         2 simple_value float   8 tensor TensorProto
    TensorProto  1 dtype enum     4 tensor_content bytes  5 float_val (packed)  6 double_val (packed)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from grpo_sentinel.history.replay import frames
from grpo_sentinel.history.sources.base import Item, Progress, Source, opened
from grpo_sentinel.history.sources.recording import Recorder, signals
from grpo_sentinel.history.sources.tfrecord import records
from grpo_sentinel.records import Mode, StepRecord

_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")
_DT_FLOAT, _DT_DOUBLE = 1, 2
_MAX_TAGS = 20_000  # names of one step; more are no scalars of a training run

Field = tuple[int, "int | float | bytes"]


class Damaged(ValueError):
    """The bytes are no message."""


def open_events(files: list[Path]) -> Source:
    """Make one source of the event files of one directory, in the order in which they were begun."""
    ordered = sorted(files)
    folder = ordered[0].parent
    run_id = folder.name or "tensorboard"
    name = str(ordered[0]) if len(ordered) == 1 else str(folder)
    return Source(kind="tensorboard", name=name, run_id=run_id, items=lambda seen: _items(ordered, run_id, seen))


def _items(files: list[Path], run_id: str, progress: Progress) -> Iterator[Item]:
    yield from frames(_records(files, run_id, progress), run_id)


def _records(files: list[Path], run_id: str, progress: Progress) -> Iterator[StepRecord]:
    recorder = Recorder(run_id)
    whole = sum(path.stat().st_size for path in files)
    before = 0
    for path in files:
        own = Progress(notes=progress.notes)
        with opened(path, own) as file:
            for step, wall_time, row in steps(scalars(records(file, own))):
                progress.done, progress.total = before + own.done, whole
                wall_ns = int(wall_time * 1e9) if 0 <= wall_time < 9e9 else None
                training = {tag: value for tag, value in row.items() if not tag.startswith(("eval/", "val"))}
                if training:
                    yield recorder.record(signals(training), step=step, wall_ns=wall_ns)
                if len(training) < len(row):
                    rest = {tag.partition("/")[2] or tag: row[tag] for tag in row.keys() - training.keys()}
                    yield recorder.record(signals(rest), step=step, mode=Mode.EVALUATION, wall_ns=wall_ns)
        before += own.done


def steps(
    found: Iterator[tuple[int, float, str, float]],
) -> Iterator[tuple[int, float, dict[str, float | None]]]:
    """Join the scalars that follow each other with one step: `(step, wall time, {tag: value})`."""
    at, wall, row = 0, 0.0, dict[str, "float | None"]()
    for step, wall_time, tag, value in found:
        if row and (step != at or len(row) >= _MAX_TAGS):
            yield at, wall, row
            row = {}
        at, wall = step, wall_time
        row[tag] = value
    if row:
        yield at, wall, row


def scalars(messages: Iterator[bytes]) -> Iterator[tuple[int, float, str, float]]:
    """Yield `(step, wall time, tag, value)` of every scalar; a message that is none is passed over."""
    for message in messages:
        try:
            yield from _event(message)
        except (Damaged, struct.error, UnicodeDecodeError):
            continue


def _event(message: bytes) -> Iterator[tuple[int, float, str, float]]:
    wall_time, step, summary = 0.0, 0, b""
    for number, value in fields(message):
        if number == 1 and isinstance(value, float):
            wall_time = value
        elif number == 2 and isinstance(value, int):
            step = value if value < 1 << 63 else value - (1 << 64)
        elif number == 5 and isinstance(value, bytes):
            summary = value
    for number, value in fields(summary):
        if number == 1 and isinstance(value, bytes):
            tag, scalar = _value(value)
            if tag and scalar is not None:
                yield step, wall_time, tag, scalar


def _value(message: bytes) -> tuple[str, float | None]:
    tag, scalar = "", None
    for number, value in fields(message):
        if number == 1 and isinstance(value, bytes):
            tag = value.decode("utf-8")
        elif number == 2 and isinstance(value, float):
            scalar = value
        elif number == 8 and isinstance(value, bytes):
            scalar = _tensor(value)
    return tag, scalar


def _tensor(message: bytes) -> float | None:
    """Read a tensor of one float or double; anything else is no scalar."""
    dtype, found = 0, None
    for number, value in fields(message):
        if number == 1 and isinstance(value, int):
            dtype = value
        elif number in (5, 6) and isinstance(value, float):
            found = value
        elif number in (4, 5, 6) and isinstance(value, bytes):
            kind = _FLOAT if dtype == _DT_FLOAT else _DOUBLE if dtype == _DT_DOUBLE else None
            if kind is not None and len(value) == kind.size:
                found = kind.unpack(value)[0]
    return found


def fields(message: bytes) -> Iterator[Field]:
    """Yield number and value of every field; 64 and 32 bits as floats. Raises `Damaged`."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
        elif wire == 1 and at + 8 <= end:
            yield number, _DOUBLE.unpack_from(message, at)[0]
            at += 8
        elif wire == 5 and at + 4 <= end:
            yield number, _FLOAT.unpack_from(message, at)[0]
            at += 4
        elif wire == 2:
            length, at = _varint(message, at)
            if at + length > end:
                raise Damaged("a field is longer than its message")
            yield number, message[at : at + length]
            at += length
        else:
            raise Damaged(f"wire type {wire} is unknown")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise Damaged("a number does not end")


__all__ = ["Damaged", "fields", "open_events", "scalars", "steps"]
