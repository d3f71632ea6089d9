"""`trainer_state.json` of transformers and TRL, entry by entry: its `log_history` may be larger than memory."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from grpo_sentinel.history.replay import frames
from grpo_sentinel.history.sources.base import Item, Progress, Source, opened
from grpo_sentinel.history.sources.recording import Recorder, signals
from grpo_sentinel.records import Mode, StepRecord

_START = re.compile(r'"log_history"\s*:\s*\[')
_CHUNK = 1 << 18
_MAX_ENTRY = 4 << 20  # characters of one entry; more is no entry of a log


def open_state(path: Path) -> Source:
    """Make a source of one file."""
    run_id = path.parent.name or path.stem
    return Source(kind="trainer_state", name=str(path), run_id=run_id, items=lambda seen: _items(path, run_id, seen))


def _items(path: Path, run_id: str, progress: Progress) -> Iterator[Item]:
    with opened(path, progress) as file:
        yield from frames(_records(entries(file, progress), run_id), run_id)


def _records(found: Iterator[dict[str, Any]], run_id: str) -> Iterator[StepRecord]:
    recorder = Recorder(run_id)
    for entry in found:
        raw = numbers(entry)
        step = raw.pop("step", None)
        if "train_runtime" in raw or not raw:
            continue
        mode = Mode.EVALUATION if any(name.startswith("eval_") for name in raw) else Mode.TRAIN
        at = int(step) if step is not None and abs(step) < 2**62 else None
        yield recorder.record(signals(raw), step=at, mode=mode)


def numbers(entry: dict[str, Any]) -> dict[str, float | None]:
    """Keep what is a number, null, or one of the words for what JSON cannot write."""
    out: dict[str, float | None] = {}
    for name, value in entry.items():
        if value is None:
            out[name] = None
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                out[name] = float(value)
            except OverflowError:
                out[name] = float("inf")
        elif isinstance(value, str) and value.lower().lstrip("+-") in ("nan", "inf", "infinity"):
            out[name] = float(value)
    return out


def entries(file: BinaryIO, progress: Progress) -> Iterator[dict[str, Any]]:
    """Yield the objects of `log_history` one by one; a torn or damaged end is noted and stops the reading there."""
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    decoder = json.JSONDecoder()
    buffer, inside = "", False
    while True:
        chunk = file.read(_CHUNK)
        buffer += utf8.decode(chunk, final=not chunk)
        if not inside:
            start = _START.search(buffer)
            if start is None:
                if not chunk:
                    progress.notes.append("there is no log_history in it")
                    return
                buffer = buffer[-64:]
                continue
            buffer, inside = buffer[start.end() :], True
        while True:
            buffer = buffer.lstrip(" \t\r\n,")
            if buffer.startswith("]"):
                return
            try:
                entry, end = decoder.raw_decode(buffer)
            except (ValueError, RecursionError):
                break
            buffer = buffer[end:]
            if isinstance(entry, dict):
                yield entry
        if not chunk or len(buffer) > _MAX_ENTRY:
            progress.notes.append("the log_history is cut off or damaged; what stands before that was read")
            return


__all__ = ["entries", "numbers", "open_state"]
