"""Rows of a data set, one at a time: JSON lines, a JSON list, CSV, Parquet, a folder of `datasets`, compressed, stdin.

Reading is apart from judging: a row that cannot be read is handed on with the reason, and the next one is read. Memory
is bounded by one row (`MAX_ROW_BYTES`) or one Parquet batch.
"""

from __future__ import annotations

import csv
import glob
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from grpo_sentinel.errors import SentinelError

MAX_ROW_BYTES = 64 << 20
STDIN = "-"
_ZSTD = "zstd"
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": _ZSTD, ".zstd": _ZSTD}
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ": "lzma", b"\x28\xb5\x2f\xfd": _ZSTD}
_TABLES = (".parquet", ".arrow")
_ENDINGS = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", *_TABLES)
_METADATA = ("state.json", "dataset_info.json", "dataset_dict.json")  # of a folder of `datasets`
_PARQUET_ROWS = 512


@dataclass(slots=True)
class Row:
    """One row: `value` is a mapping of fields, or None with the reason in `error`; `raw` is its line where it had one.

    Not frozen: one is made for every row of a data set, and a frozen one takes four times as long to make.
    """

    source: str
    number: int  # 1-based line or row
    value: dict[str, Any] | None
    raw: bytes | None = None
    error: str = ""
    fault: str = ""  # code of the error


Advance = Callable[[int], None]
"""Told how many bytes of the file on disk have been read."""


def expand(arguments: Sequence[str]) -> tuple[str, ...]:
    """Resolve files, globs and folders; `-` stays. Raises `SentinelError` when one names nothing readable."""
    out: list[str] = []
    for argument in arguments:
        path = Path(argument).expanduser()
        if argument == STDIN or path.is_file():
            out.append(argument if argument == STDIN else str(path))
            continue
        found = sorted(_inside(path)) if path.is_dir() else sorted(glob.glob(str(path), recursive=True))
        files = [name for name in found if Path(name).is_file()]
        if not files:
            raise SentinelError(f"{argument} names no data; give a JSONL, CSV or Parquet file, a folder, a glob or -")
        out += files
    if out.count(STDIN) > 1:
        raise SentinelError("standard input can be read once; give `-` a single time")
    return tuple(dict.fromkeys(out))


def _inside(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        known = _ending(path.name) in _ENDINGS and path.name not in _METADATA
        if known and not hidden and not path.name.startswith("cache-"):
            yield str(path)


def _ending(name: str) -> str:
    path = Path(name)
    return Path(path.stem).suffix.lower() if path.suffix.lower() in _COMPRESSED else path.suffix.lower()


def read_rows(source: str, advance: Advance | None = None) -> Iterator[Row]:
    """Read one file or stdin; raises `SentinelError` when it cannot be opened or its format needs what is not there."""
    advance = advance or (lambda position: None)
    ending = _ending(source)
    if ending in _TABLES:
        yield from _table(source, ending, advance)
        return
    try:
        raw = sys.stdin.buffer if source == STDIN else open(source, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise SentinelError(f"cannot read {source}: {error.strerror}; give a readable file") from error
    try:
        with _decompressed(source, raw) as stream:
            position = (lambda: 0) if source == STDIN else raw.tell
            reader = _csv if ending in (".csv", ".tsv") else _json
            yield from reader(source, stream, lambda: advance(position()))
    finally:
        if source != STDIN:
            raw.close()


@dataclass(frozen=True, slots=True)
class Part:
    """Lines of one file that one process reads: bytes `start` to `end` (None = all), after `number` other lines."""

    source: str
    start: int = 0
    end: int | None = None
    number: int = 0


def split(source: str, part_bytes: int) -> list[Part]:
    """Cut a plain file of JSON lines at line ends into parts of about `part_bytes`; any other source is one part."""
    whole = [Part(source)]
    if source == STDIN or _ending(source) not in (".jsonl", ".ndjson") or Path(source).suffix.lower() in _COMPRESSED:
        return whole
    try:
        with open(source, "rb") as file:
            if file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{":
                return whole
            return _cut(source, file, part_bytes)
    except OSError:
        return whole  # read_rows says why


def _cut(source: str, file: BinaryIO, part_bytes: int) -> list[Part]:
    file.seek(0)
    out: list[Part] = []
    start = at = number = lines = 0
    while chunk := file.read(max(1, min(1 << 20, part_bytes))):
        cut = chunk.rfind(b"\n") + 1
        if at + cut - start >= part_bytes and cut:
            lines += chunk.count(b"\n", 0, cut)
            out.append(Part(source, start, at + cut, number))
            start, number = at + cut, number + lines
            lines = chunk.count(b"\n", cut)
        else:
            lines += chunk.count(b"\n")
        at += len(chunk)
    return [*out, Part(source, start, at, number)] if at > start or not out else out


def read_part(part: Part) -> Iterator[Row]:
    """Read one part as `read_rows` reads the whole."""
    if part.end is None:
        yield from read_rows(part.source)
        return
    try:
        with open(part.source, "rb", buffering=0) as raw:
            stream: Any = io.BufferedReader(_Limited(raw, part.start, part.end), 1 << 18)
            yield from _json(part.source, stream, lambda: None, part.number, b"{")
    except OSError as error:
        raise SentinelError(f"cannot read {part.source}: {error.strerror}; give a readable file") from error


class _Limited(io.RawIOBase):
    """Bytes `start` to `end` of a file."""

    def __init__(self, file: Any, start: int, end: int) -> None:
        self._file, self._left = file, end - start
        file.seek(start)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._file.read(min(len(buffer), self._left))
        self._left -= len(part)
        buffer[: len(part)] = part
        return len(part)


def _decompressed(source: str, raw: BinaryIO) -> BinaryIO:
    buffered: Any = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw)
    module = _COMPRESSED.get(Path(source).suffix.lower())
    if source == STDIN:
        head = buffered.peek(8)
        module = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
    if module == _ZSTD:
        return _zstandard(source, buffered)
    opened = import_module(module).open(buffered, "rb") if module else buffered
    return opened  # type: ignore[no-any-return]


def _zstandard(source: str, raw: BinaryIO) -> BinaryIO:
    """Open zstd with what is there: Python 3.14, zstandard, or pyarrow."""
    opened: Any
    for name in ("compression.zstd", "zstandard"):
        try:
            opened = import_module(name).open(raw, "rb")
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


def _json(
    source: str, stream: BinaryIO, tick: Callable[[], None], number: int = 0, first: bytes = b""
) -> Iterator[Row]:  # fmt: skip
    try:
        for line in _lines(stream):
            number += 1
            if not number & 1023:
                tick()
            if not line.strip():
                continue
            if not first:
                first = line.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
                if first == b"[":
                    yield from _json_list(source, line, stream)
                    return
            if len(line) > MAX_ROW_BYTES:
                reason = f"longer than {MAX_ROW_BYTES >> 20} MiB"
                yield Row(source, number, None, None, reason, "unreadable")
                continue
            try:
                value = _decoded(line)
            except UnicodeDecodeError as error:
                yield Row(source, number, None, line, f"not UTF-8: {error.reason} at byte {error.start}", "encoding")
                continue
            except (ValueError, RecursionError) as error:
                yield Row(source, number, None, line, f"not JSON: {error}", "unreadable")
                continue
            if isinstance(value, dict):
                yield Row(source, number, value, line)
            else:
                yield Row(source, number, None, line, f"expected an object, got {type(value).__name__}", "unreadable")
    except (EOFError, OSError, ValueError) as error:  # a compressed file that is cut or damaged
        yield Row(source, number + 1, None, None, f"the file ends in error: {error}", "unreadable")
    tick()


_scan: Any = json.JSONDecoder().__dict__["scan_once"]


def _decoded(line: bytes) -> Any:
    """Decode one line as json.loads does, in half the time where nothing is wrong with it; raises what that raises."""
    try:
        text = line.decode("utf-8", "surrogatepass").strip(" \t\r\n")
        value, end = _scan(text, 0)
        if end == len(text):
            return value
    except (ValueError, StopIteration):
        pass
    return json.loads(line)  # says what is wrong, and knows byte order marks


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines of bounded length: of one that is longer only the first part is given."""
    while line := stream.readline(MAX_ROW_BYTES + 1):
        yield line
        while line and len(line) > MAX_ROW_BYTES and not line.endswith(b"\n"):
            line = stream.readline(MAX_ROW_BYTES)


_CHUNK = 1 << 20
_NEXT = re.compile(r"[ \t\r\n,]*")


def _json_list(source: str, head: bytes, stream: BinaryIO) -> Iterator[Row]:
    """Objects of one JSON list, decoded as they come: the list is never held as a whole."""
    text = io.TextIOWrapper(io.BufferedReader(_Joined(head, stream)), encoding="utf-8-sig", errors="surrogateescape")
    decode = json.JSONDecoder().raw_decode
    buffer = text.read(_CHUNK).lstrip()
    at, number = 1, 0  # behind the bracket
    while True:
        at = _NEXT.match(buffer, at).end()  # type: ignore[union-attr]  # matches always
        if buffer.startswith("]", at):
            return
        number += 1
        try:
            value, end = decode(buffer, at)
        except RecursionError:
            yield Row(source, number, None, None, "nested too deeply", "unreadable")
            return
        except ValueError as error:
            more = text.read(max(_CHUNK, len(buffer) - at)) if len(buffer) - at < MAX_ROW_BYTES else ""
            if not more:
                yield Row(source, number, None, None, f"the list does not go on: {error}", "unreadable")
                return
            buffer, at, number = buffer[at:] + more, 0, number - 1
            continue
        at = end
        if len(buffer) - at < 1 << 12:  # a number or name at the very end may go on
            buffer, at = buffer[at:] + text.read(_CHUNK), 0
        if isinstance(value, dict):
            yield Row(source, number, value)
        else:
            yield Row(source, number, None, None, f"expected an object, got {type(value).__name__}", "unreadable")


class _Joined(io.RawIOBase):
    """A head that was read already, followed by the rest of its stream."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._head[: len(buffer)] or self._rest.read(len(buffer))
        self._head = self._head[len(part) :]
        buffer[: len(part)] = part
        return len(part)


def _csv(source: str, stream: BinaryIO, tick: Callable[[], None]) -> Iterator[Row]:
    csv.field_size_limit(MAX_ROW_BYTES)
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.DictReader(text, dialect="excel-tab" if _ending(source) == ".tsv" else "excel")
    number = 0
    while True:
        number += 1
        if not number & 1023:
            tick()
        try:
            value = next(reader)
        except StopIteration:
            tick()
            return
        except (csv.Error, EOFError, OSError) as error:
            yield Row(source, number, None, None, f"not CSV: {error}", "unreadable")
            return
        if None in value:  # DictReader's place for what has no column
            yield Row(source, number, None, None, "more cells than columns", "unreadable")
        else:
            yield Row(source, number, {key: cell for key, cell in value.items() if cell is not None})


def _table(source: str, ending: str, advance: Advance) -> Iterator[Row]:
    try:
        pyarrow = import_module("pyarrow")
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise SentinelError(f"{source} needs pyarrow, which is not installed here: pip install pyarrow") from error
    number = 0
    try:
        for batch in _parquet(parquet, source) if ending == ".parquet" else _arrow(pyarrow, source):
            for value in batch.to_pylist():
                number += 1
                yield Row(source, number, value)
            advance(0)
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        yield Row(source, number + 1, None, None, f"not a readable {ending[1:]} file: {reason}", "unreadable")


def _parquet(parquet: Any, source: str) -> Iterator[Any]:
    with parquet.ParquetFile(source) as file:
        yield from file.iter_batches(batch_size=_PARQUET_ROWS)


def _arrow(pyarrow: Any, source: str) -> Iterator[Any]:
    """A file of `datasets`: an Arrow stream, or the file format."""
    with pyarrow.memory_map(source) as mapped:
        try:
            yield from pyarrow.ipc.open_stream(mapped)
        except pyarrow.ArrowInvalid:
            mapped.seek(0)
            file = pyarrow.ipc.open_file(mapped)
            for index in range(file.num_record_batches):
                yield file.get_batch(index)


__all__ = ["MAX_ROW_BYTES", "STDIN", "Advance", "Part", "Row", "expand", "read_part", "read_rows", "split"]
