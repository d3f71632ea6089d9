"""TensorBoard: scalars of every rank and findings as text, in event files that need no TensorBoard to be written.

    <directory>/<run>/rank-0/events.out.tfevents.<seconds>.<node>.<pid>.<number>     scalars, tag "policy/loss"
    <directory>/<run>/findings/events.out.tfevents...                                text, tag "<layer>/<rule>"

Evaluation steps have the prefix "eval/", as training and evaluation are never drawn into one line.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from grpo_sentinel.catalog import split_name
from grpo_sentinel.config import TensorBoardConfig
from grpo_sentinel.records import Finding, Mode, StepRecord
from grpo_sentinel.sinks import tensorboard_events as events
from grpo_sentinel.sinks.base import SinkContext
from grpo_sentinel.sinks.jsonl import safe_name
from grpo_sentinel.views import SinkBatch

MAX_OPEN = 64  # files written at once


def make(context: SinkContext) -> TensorBoardSink:
    """Make the sink; files are opened at the first batch."""
    config = context.config.tensorboard
    directory = Path(config.directory or context.state_dir / "tensorboard")
    return TensorBoardSink(directory, config, safe_name(context.node))


@dataclass(slots=True)
class _Open:
    descriptor: int
    size: int


class TensorBoardSink:
    """Append events. What is written is safe from the death of this process and readable at once."""

    def __init__(self, directory: Path, config: TensorBoardConfig, node: str) -> None:
        self._directory, self._config, self._node = directory, config, node
        self._files: dict[str, _Open] = {}
        self._number = 0
        self._events = 0

    def write(self, batch: SinkBatch) -> None:
        """Append scalars of records and texts of findings. Raises `OSError` when the disk is full.

        A retry may then write the events of some ranks twice; TensorBoard draws one point of each step.
        """
        encoded: dict[str, list[bytes]] = {}
        first = min((record.rank for record in batch.records), default=0)
        if batch.snapshot.ranks:
            first = min(batch.snapshot.ranks)
        for record in batch.records:
            if record.values and (self._config.ranks == "all" or record.rank == first):
                encoded.setdefault(f"rank-{record.rank}", []).append(_scalars(record))
        for finding in batch.findings:
            encoded.setdefault("findings", []).append(_text(finding))
        for name, records in encoded.items():
            self._append(f"{safe_name(batch.run_id)}/{name}", b"".join(records), batch.wall_ns / 1e9)
            self._events += len(records)

    def _append(self, name: str, data: bytes, wall_seconds: float) -> None:
        file = self._files.pop(name, None)
        if file is not None and file.size + len(data) > self._config.max_bytes:
            os.close(file.descriptor)
            file = None
        if file is None:
            while len(self._files) >= MAX_OPEN:
                os.close(self._files.pop(next(iter(self._files))).descriptor)
            file = self._open(self._directory / name, wall_seconds)
        self._files[name] = file
        _append(file, data)

    def _open(self, directory: Path, wall_seconds: float) -> _Open:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            # a torn record at the end of a file stops TensorBoard, so no file of an earlier process is continued
            name = f"events.out.tfevents.{int(wall_seconds):010d}.{self._node}.{os.getpid()}.{self._number}"
            self._number += 1
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                file = _Open(os.open(directory / name, flags, 0o600), 0)
            except FileExistsError:
                continue
            try:
                _append(file, events.version(wall_seconds))
            except OSError:
                os.close(file.descriptor)
                raise
            return file

    def health(self) -> dict[str, float]:
        """Events written so far."""
        return {"events_total": self._events}

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.popitem()[1].descriptor)


def _append(file: _Open, data: bytes) -> None:
    view, done = memoryview(data), 0
    try:
        while done < len(data):
            done += os.write(file.descriptor, view[done:])
    except OSError:
        os.ftruncate(file.descriptor, file.size)
        raise
    file.size += len(data)


def tag_of(name: str) -> str:
    """Write a signal as a tag: `reward.func_mean[accuracy]` -> `reward/func_mean/accuracy`."""
    base, value = split_name(name)
    layer, _, rest = base.partition(".")
    return "/".join(part for part in (layer, rest, value) if part)


def _scalars(record: StepRecord) -> bytes:
    prefix = "eval/" if record.mode is Mode.EVALUATION else ""
    pairs = [(prefix + tag_of(name), value) for name, value in record.values.items()]
    return events.scalars(record.wall_ns / 1e9, record.step, pairs)


def _text(finding: Finding) -> bytes:
    where = f"rank {', '.join(map(str, finding.ranks))}" if finding.ranks else "rank not known"
    remedies = "".join(f"\n- {remedy}" for remedy in finding.remedies)
    body = (
        f"**{finding.severity.name.lower()}, {finding.state.value}** since step {finding.onset_step}, {where}: "
        f"{finding.message}\n\n{finding.why}\n{remedies}"
    )
    return events.text_event(finding.wall_ns / 1e9, finding.step, f"{finding.layer}/{finding.rule}", body)
