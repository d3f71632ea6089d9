"""The clean copy of `--write-clean`: every row is either in it or accounted for, by place and reasons."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.data_blocks import Row


class CleanCopy:
    """Writes kept rows as JSON lines to `path` and dropped ones to `path`.dropped.jsonl; both appear when all is read.

    A line that was JSON is copied byte for byte. Use as a context manager: after an exception neither file appears.
    """

    def __init__(self, path: Path, sources: Sequence[str]) -> None:
        """Raises `SentinelError` when the copy would replace what it is made from, or cannot be written."""
        if any(Path(source).exists() and path.resolve() == Path(source).resolve() for source in sources):
            raise SentinelError(f"--write-clean {path} is one of the files that are read; give another name")
        self.path, self.dropped_path = path, path.with_name(path.name + ".dropped.jsonl")
        self.kept = self.dropped = 0
        self._drafts = (_draft(path), _draft(self.dropped_path))
        try:
            self._out = _open(self._drafts[0], path.suffix == ".gz")
            self._lost = _open(self._drafts[1], False)
        except OSError as error:
            raise SentinelError(f"cannot write {path}: {error.strerror}; give a writable place") from error

    def __enter__(self) -> CleanCopy:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self._out.close()
        self._lost.close()
        for draft, final in zip(self._drafts, (self.path, self.dropped_path), strict=True):
            if kind is None:
                os.replace(draft, final)
            else:
                draft.unlink(missing_ok=True)

    def keep(self, row: Row) -> None:
        """Copy a row."""
        raw = row.raw if row.raw is not None else _line(row.value)
        self._out.write(raw if raw.endswith(b"\n") else raw + b"\n")
        self.kept += 1

    def drop(self, row: Row, reasons: Sequence[str]) -> None:
        """Account for a row that is left out."""
        self._lost.write(_line({"source": row.source, "row": row.number, "reasons": list(dict.fromkeys(reasons))}))
        self.dropped += 1


def _line(value: Any) -> bytes:
    return json.dumps(value, default=str).encode("ascii") + b"\n"


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.new")


def _open(path: Path, compressed: bool) -> BinaryIO:
    file: Any = gzip.open(path, "wb", compresslevel=5) if compressed else path.open("wb")  # noqa: SIM115
    return file  # type: ignore[no-any-return]


__all__ = ["CleanCopy"]
