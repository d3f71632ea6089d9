"""What replay reads: a named run, its trainer configuration where known, and its items in the order of time."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.records import EventRecord, Frame, Sample

Item: TypeAlias = "Frame | EventRecord | Sample"

GZIP = b"\x1f\x8b"
TORN = (EOFError, gzip.BadGzipFile, zlib.error)
"""What unpacking raises in the middle of an archive that is cut off or damaged."""


class SourceError(SentinelError):
    """A source of replay cannot be opened, or is none of the kinds that we read."""


@dataclass(slots=True)
class Progress:
    """How far a source was read, in a unit of its own; `total` is 0 while nobody knows."""

    done: int = 0
    total: int = 0
    notes: list[str] = field(default_factory=list)  # what could not be read, one sentence each

    @property
    def share(self) -> float:
        """0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One run to replay. `items` streams it from its start in constant memory; it may be called more than once."""

    kind: str  # history | incident | trainer_state | text | tensorboard | csv | jsonl
    name: str  # the path, as a person gave it
    run_id: str
    items: Callable[[Progress], Iterator[Item]]
    context: Mapping[str, Any] = field(default_factory=dict)
    others: int = 0  # runs of the same history that were not chosen, when none was named


@contextmanager
def opened(path: Path, progress: Progress) -> Iterator[BinaryIO]:
    """Open a plain or gzip file for reading; `progress` follows the bytes read from disk."""
    try:
        with open(path, "rb") as raw:
            magic = raw.read(2)
            raw.seek(0)
            progress.total = path.stat().st_size
            tracked = io.BufferedReader(_Tracked(raw, progress), 1 << 18)
            if magic == GZIP:
                with gzip.GzipFile(fileobj=tracked) as unpacked:
                    yield unpacked  # type: ignore[misc]
            else:
                yield tracked
    except TORN:
        progress.notes.append("the archive is torn or damaged; what stands before that was read")
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror or error}; give a readable file") from error


class _Tracked(io.RawIOBase):
    """Counts what is read from a file."""

    def __init__(self, raw: BinaryIO, progress: Progress) -> None:
        self._raw = raw
        self._progress = progress

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._raw.read(len(buffer))
        buffer[: len(data)] = data
        self._progress.done += len(data)
        return len(data)


__all__ = ["GZIP", "TORN", "Item", "Progress", "Source", "SourceError", "opened"]
