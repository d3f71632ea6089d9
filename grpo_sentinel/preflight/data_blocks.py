"""Rows of a data set in blocks of some hundreds: what is read at once, and what one process hands to another.

Lines    bytes of whole lines, one JSON object each
Values   rows that reading has decoded already: of CSV and of a JSON list
Table    a batch of Arrow, as Parquet and folders of `datasets` give it

A block turns into bytes and back without loss, and gives its rows with their numbers only when asked: decoding them is
most of the work, so that is done where they are judged.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

MAX_ROW_BYTES = 64 << 20
BLOCK_BYTES = 256 << 10
BLOCK_ROWS = 512


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


class Block(Protocol):
    """Some rows of one source, in order."""

    @property
    def source(self) -> str:
        """The file they stand in."""
        ...

    @property
    def number(self) -> int:
        """How many lines or rows come before."""
        ...

    def rows(self) -> Iterator[Row]:
        """Decode them."""
        ...

    def packed(self) -> bytes:
        """Give it as bytes, for `unpacked`."""
        ...


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines of JSON; the last one may be cut where it is longer than `MAX_ROW_BYTES`."""

    source: str
    number: int
    content: bytes

    def rows(self) -> Iterator[Row]:
        """Decode every line that is not blank."""
        source = self.source
        for number, line in enumerate(io.BytesIO(self.content), self.number + 1):
            if line.isspace():
                continue
            if len(line) > MAX_ROW_BYTES:
                yield Row(source, number, None, None, f"longer than {MAX_ROW_BYTES >> 20} MiB", "unreadable")
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

    def packed(self) -> bytes:
        """The lines themselves."""
        return self.content

    @staticmethod
    def unpacked(source: str, number: int, content: bytes) -> Lines:
        """Make it of what `packed` gave."""
        return Lines(source, number, content)


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


@dataclass(frozen=True, slots=True)
class Values:
    """Rows that are decoded."""

    source: str
    number: int
    found: tuple[Row, ...]

    def rows(self) -> Iterator[Row]:
        """Give them."""
        return iter(self.found)

    def packed(self) -> bytes:
        """JSON in ASCII: lone surrogates survive it."""
        return json.dumps([(row.number, row.value, row.error, row.fault) for row in self.found]).encode("ascii")

    @staticmethod
    def unpacked(source: str, number: int, content: bytes) -> Values:
        """Make it of what `packed` gave."""
        found = json.loads(content)
        return Values(source, number, tuple(Row(source, place, value, None, *why) for place, value, *why in found))


@dataclass(frozen=True, slots=True)
class Table:
    """A `pyarrow.RecordBatch`."""

    source: str
    number: int
    batch: Any

    def rows(self) -> Iterator[Row]:
        """Turn each row into Python's own types."""
        for number, value in enumerate(self.batch.to_pylist(), self.number + 1):
            yield Row(self.source, number, value)

    def packed(self) -> bytes:
        """A stream of Arrow with one batch."""
        pyarrow = import_module("pyarrow")
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, self.batch.schema) as stream:
            stream.write_batch(self.batch)
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    @staticmethod
    def unpacked(source: str, number: int, content: bytes) -> Table:
        """Make it of what `packed` gave."""
        with import_module("pyarrow").ipc.open_stream(content) as stream:
            return Table(source, number, stream.read_next_batch())


_KINDS: dict[str, Callable[[str, int, bytes], Block]] = {
    "Lines": Lines.unpacked, "Values": Values.unpacked, "Table": Table.unpacked,
}  # fmt: skip


def unpacked(kind: str, source: str, number: int, content: bytes) -> Block:
    """Make a block of the name of its class, and of what it was packed into."""
    return _KINDS[kind](source, number, content)


__all__ = ["BLOCK_BYTES", "BLOCK_ROWS", "MAX_ROW_BYTES", "Block", "Lines", "Row", "Table", "Values", "unpacked"]
