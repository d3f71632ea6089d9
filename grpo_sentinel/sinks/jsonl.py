"""JSON lines on disk: one strict JSON object a line, one file per run, set aside when it grows too large.

    <directory>/<run>.jsonl          being written
    <directory>/<run>.jsonl.1 ...    set aside, .1 the newest

    {"type": "step", "run_id": ..., "node": ..., "rank": 0, "step": 12, "wall_ns": ..., "values": {"policy.loss": 0.5}}
    {"type": "event" | "finding" | "sample" | "request", "run_id": ..., "node": ..., ...the fields of the record}

Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from grpo_sentinel.config import JsonlConfig
from grpo_sentinel.history.codec import plain
from grpo_sentinel.sinks.base import SinkContext
from grpo_sentinel.views import SinkBatch

MAX_OPEN = 16  # runs written at once; the one that is longest silent is closed
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def make(context: SinkContext) -> JsonlSink:
    """Make the sink; files are opened at the first batch."""
    config = context.config.jsonl
    return JsonlSink(Path(config.directory or context.state_dir / "jsonl"), config)


def safe_name(run_id: str) -> str:
    """Make a file name of a run id; ids that would become equal are told apart by a digest."""
    name = _UNSAFE.sub("_", run_id)[:100].lstrip(".") or "run"
    return name if name == run_id else f"{name}-{sha256(run_id.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"


def lines_of(batch: SinkBatch) -> Iterator[dict[str, object]]:
    """Give every part of a batch as one object that strict JSON holds."""
    common: dict[str, object] = {"run_id": batch.run_id, "node": batch.node}
    parts = (
        ("step", batch.records),
        ("event", batch.events),
        ("finding", batch.findings),
        ("sample", batch.samples),
        ("request", (batch.halt,) if batch.halt else ()),
    )
    for kind, records in parts:
        for record in records:
            yield {"type": kind, **common, **plain(record)}


def encode(line: object) -> bytes:
    """Write one object as one line of strict JSON; lone surrogates, which UTF-8 cannot hold, become "?"."""
    dumped = json.dumps(line, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return dumped.encode("utf-8", "replace") + b"\n"


@dataclass(slots=True)
class _Open:
    descriptor: int
    size: int


class JsonlSink:
    """Append batches; a batch is in its file as a whole or not at all, and is safe from the death of this process."""

    def __init__(self, directory: Path, config: JsonlConfig) -> None:
        self._directory, self._config = directory, config
        self._files: dict[str, _Open] = {}
        self._lines = 0

    def write(self, batch: SinkBatch) -> None:
        """Append every part of the batch. Raises `OSError` when the disk is full; nothing of the batch stays then."""
        lines = [encode(line) for line in lines_of(batch)]
        if not lines:
            return
        file = self._file(batch.run_id)
        if file.size and file.size + sum(map(len, lines)) > self._config.max_bytes:
            self._set_aside(batch.run_id)
            file = self._file(batch.run_id)
        self._append(file, b"".join(lines))
        self._lines += len(lines)

    def _append(self, file: _Open, data: bytes) -> None:
        view, done = memoryview(data), 0
        try:
            while done < len(data):
                done += os.write(file.descriptor, view[done:])
        except OSError:
            os.ftruncate(file.descriptor, file.size)  # a retry must not follow half a batch
            raise
        file.size += len(data)

    def _path(self, run_id: str) -> Path:
        return self._directory / f"{safe_name(run_id)}.jsonl"

    def _file(self, run_id: str) -> _Open:
        file = self._files.pop(run_id, None)
        if file is None:
            while len(self._files) >= MAX_OPEN:
                os.close(self._files.pop(next(iter(self._files))).descriptor)
            file = self._open(self._path(run_id))
        self._files[run_id] = file  # the newest stands last
        return file

    def _open(self, path: Path) -> _Open:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            size = _whole(descriptor)
            os.ftruncate(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
        return _Open(descriptor, size)

    def _set_aside(self, run_id: str) -> None:
        os.close(self._files.pop(run_id).descriptor)
        path = self._path(run_id)
        if not self._config.keep_files:
            path.unlink()
            return
        for number in range(self._config.keep_files - 1, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            if older.exists():
                older.replace(path.with_name(f"{path.name}.{number + 1}"))
        path.replace(path.with_name(f"{path.name}.1"))

    def health(self) -> dict[str, float]:
        """Lines written, and bytes in the files being written."""
        return {"lines_total": self._lines, "open_bytes": sum(file.size for file in self._files.values())}

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.popitem()[1].descriptor)


def _whole(descriptor: int) -> int:
    """Find the size without the half line that a crash or a power cut may have left."""
    size = os.fstat(descriptor).st_size
    end = size
    while end:
        start = max(0, end - 65536)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
