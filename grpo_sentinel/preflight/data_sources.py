"""Files of a data set: JSON lines, a JSON list, CSV, Parquet, a folder of `datasets`, compressed, standard input.

Reading is apart from judging: a row that cannot be read is handed on with the reason, and the next one is read. Memory
is bounded by one block, or one row (`MAX_ROW_BYTES`).
"""

from __future__ import annotations

import glob
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight import data_tables
from grpo_sentinel.preflight.data_blocks import Block, Row
from grpo_sentinel.preflight.data_text import csv_blocks, json_blocks

STDIN = "-"
_ZSTD = "zstd"
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": _ZSTD, ".zstd": _ZSTD}
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ": "lzma", b"\x28\xb5\x2f\xfd": _ZSTD}
_DIALECTS = {".csv": "excel", ".tsv": "excel-tab"}
_ENDINGS = (".jsonl", ".json", ".ndjson", *_DIALECTS, *data_tables.ENDINGS)
_METADATA = ("state.json", "dataset_info.json", "dataset_dict.json")  # of a folder of `datasets`
_PACKED = 4  # bytes of data in a byte of a compressed file, or of Parquet

Advance = Callable[[int], None]
"""Told how many bytes of the file on disk have been read."""


def expand(arguments: Sequence[str]) -> tuple[str, ...]:
    """Resolve files, globs and folders; `-` stays. Raises `SentinelError` when one names nothing readable."""
    out: list[str] = []
    for argument in arguments:
        path = Path(argument).expanduser()
        try:
            if argument == STDIN or path.is_file() or path.is_fifo():
                out.append(argument if argument == STDIN else str(path))
                continue
            found = sorted(_inside(path)) if path.is_dir() else sorted(glob.glob(str(path), recursive=True))
            files = [name for name in found if Path(name).is_file()]
        except OSError as error:  # a directory on the way that this user may not enter, a name that is too long
            raise _cannot_read(argument, error) from error
        if not files:
            raise SentinelError(f"{argument} names no data; give a JSONL, CSV or Parquet file, a folder, a glob or -")
        out += files
    if out.count(STDIN) > 1:
        raise SentinelError("standard input can be read once; give `-` a single time")
    return tuple(dict.fromkeys(out))


def _cannot_read(name: str, error: OSError) -> SentinelError:
    return SentinelError(f"cannot read {name}: {error.strerror}; give a readable file")


def _inside(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        known = _ending(path.name) in _ENDINGS and path.name not in _METADATA
        if known and not hidden and not path.name.startswith("cache-"):
            yield str(path)


def _ending(name: str) -> str:
    path = Path(name)
    return Path(path.stem).suffix.lower() if path.suffix.lower() in _COMPRESSED else path.suffix.lower()


def has_types(source: str) -> bool:
    """The format tells numbers from text: all but CSV."""
    return _ending(source) not in _DIALECTS


def data_bytes(sources: Sequence[str]) -> int:
    """About how many bytes of data there are; for standard input and pipes, as much as can be."""
    return sum(_bytes_of(Path(source)) for source in sources)


def _bytes_of(path: Path) -> int:
    if str(path) == STDIN or path.is_fifo():
        return sys.maxsize
    packed = path.suffix.lower() in _COMPRESSED or _ending(path.name) == ".parquet"
    return path.stat().st_size * (_PACKED if packed else 1) if path.is_file() else 0


def read_rows(source: str) -> Iterator[Row]:
    """Read one file or stdin row by row, as `read_blocks` does."""
    return (row for block in read_blocks(source) for row in block.rows())


def read_blocks(source: str, advance: Advance | None = None) -> Iterator[Block]:
    """Read one file or stdin; raises `SentinelError` when it cannot be opened or its format needs what is not there."""
    advance = advance or (lambda position: None)
    ending = _ending(source)
    try:
        raw = sys.stdin.buffer if source == STDIN else open(source, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise _cannot_read(source, error) from error
    try:
        if ending in data_tables.ENDINGS:
            size = Path(source).stat().st_size
            yield from data_tables.table_blocks(source, ending, lambda share: advance(int(share * size)))
            return
        with _decompressed(source, raw) as stream:
            position = raw.tell if source != STDIN and raw.seekable() else lambda: 0
            tick = lambda: advance(position())  # noqa: E731
            dialect = _DIALECTS.get(ending)
            yield from csv_blocks(source, stream, tick, dialect) if dialect else json_blocks(source, stream, tick)
    finally:
        if source != STDIN:
            raw.close()


def _decompressed(source: str, raw: BinaryIO) -> BinaryIO:
    buffered: Any = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw)
    head = buffered.peek(8)
    told = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
    module = told or _COMPRESSED.get(Path(source).suffix.lower())
    if module == _ZSTD:
        return _zstandard(source, buffered)
    opened = import_module(module).open(buffered, "rb") if module else buffered
    return opened  # type: ignore[no-any-return]


def _zstandard(source: str, raw: BinaryIO) -> BinaryIO:
    """Open zstd with what is there: Python 3.14, zstandard, or pyarrow."""
    opened: Any
    for name in ("compression.zstd", "zstandard"):
        try:
            opened = io.BufferedReader(import_module(name).open(raw, "rb"))
            return opened  # type: ignore[no-any-return]
        except ImportError:
            continue
    try:
        pyarrow = import_module("pyarrow")
    except ImportError as error:
        raise SentinelError(
            f"{source} is compressed with zstd, which needs zstandard or pyarrow: pip install zstandard"
        ) from error
    opened = io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, "r"), "zstd"))
    return opened  # type: ignore[no-any-return]


__all__ = ["STDIN", "Advance", "data_bytes", "expand", "has_types", "read_blocks", "read_rows"]
