"""Blocks of a stream of text: JSON lines, a JSON list, CSV. What cannot be read is a row that says why."""

from __future__ import annotations

import codecs
import csv
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from grpo_sentinel.preflight.data_blocks import BLOCK_BYTES, BLOCK_ROWS, MAX_ROW_BYTES, Block, Lines, Row, Values
from grpo_sentinel.preflight.git_lfs import POINTER, TOLD

Tick = Callable[[], None]
"""Called after every block."""

_BLANK = b"\xef\xbb\xbf \t\r\n"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_UTF_16_ESCAPED = tuple(mark.decode("utf-8", "surrogateescape") for mark in _UTF_16)
_CHUNK = 1 << 20
_NEXT = re.compile(r"[ \t\r\n,]*")
_DAMAGED = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError)  # what a cut or damaged archive raises


def json_blocks(source: str, stream: BinaryIO, tick: Tick) -> Iterator[Block]:
    """Read JSON lines, or a JSON list where the first character is a bracket."""
    number, begun = 0, False
    while True:
        content, error = _whole_lines(stream)
        if not begun and (begun := bool(start := content.lstrip(_BLANK)[:1])):
            if start == b"[":
                yield from _list_blocks(source, content, stream, tick)
                return
            if why := _no_json_lines(content):
                yield _failed(source, number, *why)
                return
        if content:
            yield Lines(source, number, content)
            number += content.count(b"\n")
            tick()
        if error:
            yield _failed(source, number, f"the file ends in error: {error}")
        if error or not content:
            return


def _whole_lines(stream: BinaryIO) -> tuple[bytes, str]:
    """Read about one block, up to the end of a line; the second is what stopped it before the end of the file."""
    pieces: list[bytes] = []
    size = 0
    try:
        while size < BLOCK_BYTES and (piece := stream.read1(BLOCK_BYTES - size)):  # type: ignore[attr-defined]
            pieces.append(piece)
            size += len(piece)
        if pieces and not pieces[-1].endswith(b"\n"):
            pieces.append(_rest_of_line(stream))
    except _DAMAGED as error:
        whole, end, _ = b"".join(pieces).rpartition(b"\n")
        return whole + end, str(error) or type(error).__name__
    return b"".join(pieces), ""


def _rest_of_line(stream: BinaryIO) -> bytes:
    """Read to the end of a line; of one that is too long, enough to see that, and the rest is passed by."""
    rest = stream.readline(MAX_ROW_BYTES + 1)
    if len(rest) <= MAX_ROW_BYTES or rest.endswith(b"\n"):
        return rest
    while (more := stream.readline(MAX_ROW_BYTES)) and not more.endswith(b"\n"):
        pass
    return rest + b"\n"


def _no_json_lines(content: bytes) -> tuple[str, str] | None:
    """Why a file, by its beginning, holds no JSON lines at all: reason and code. One reason for the whole of it."""
    first = content.lstrip(_BLANK).partition(b"\n")[0].strip()
    if content.startswith(_UTF_16):
        return "the file is UTF-16: convert it (iconv -f UTF-16 -t UTF-8)", "encoding"
    if content.startswith(POINTER):
        return TOLD, "unreadable"
    if first[:9].lower() == b"<!doctype" or first[:5].lower() == b"<html":
        return "a page of HTML and not JSON lines: whatever fetched it got an answer for people", "unreadable"
    if not first.startswith(b"{") and b"\x00" in content[:4096]:
        return "a binary file, not JSON lines", "unreadable"
    if first == b"{":
        return "an object over several lines: write one object a line (jq -c), or one list", "unreadable"
    return None


def _failed(source: str, number: int, error: str, code: str = "unreadable") -> Values:
    return Values(source, number, (Row(source, number + 1, None, None, error, code),))


class _Gathered:
    """Rows on their way into blocks."""

    def __init__(self, source: str, tick: Tick) -> None:
        self._source, self._tick = source, tick
        self._rows: list[Row] = []
        self._bytes = self.number = 0

    def add(self, value: dict[str, Any] | None, size: int, error: str = "") -> Iterator[Block]:
        """Take one more row, of about `size` characters; gives a block where one is full."""
        self.number += 1
        self._rows.append(Row(self._source, self.number, value, None, error, "unreadable" if error else ""))
        self._bytes += size
        if self._bytes >= BLOCK_BYTES or len(self._rows) >= BLOCK_ROWS:
            yield from self.rest()

    def rest(self) -> Iterator[Block]:
        """Give what is left."""
        if self._rows:
            yield Values(self._source, self.number - len(self._rows), tuple(self._rows))
            self._rows, self._bytes = [], 0
        self._tick()


def _list_blocks(source: str, head: bytes, stream: BinaryIO, tick: Tick) -> Iterator[Block]:
    rows = _Gathered(source, tick)
    try:
        for value, size, error in _list_items(head, stream):
            yield from rows.add(value, size, error)
    except _DAMAGED as error:
        yield from rows.add(None, 0, f"the file ends in error: {error}")
    yield from rows.rest()


def _list_items(head: bytes, stream: BinaryIO) -> Iterator[tuple[dict[str, Any] | None, int, str]]:
    """Objects of one JSON list with their sizes, decoded as they come: the list is never held as a whole."""
    text = io.TextIOWrapper(io.BufferedReader(_Joined(head, stream)), encoding="utf-8-sig", errors="surrogateescape")
    decode = json.JSONDecoder().raw_decode
    buffer = text.read(_CHUNK).lstrip()
    at = 1  # behind the bracket
    while True:
        at = _NEXT.match(buffer, at).end()  # type: ignore[union-attr]  # matches always
        if buffer.startswith("]", at):
            return
        try:
            value, end = decode(buffer, at)
        except RecursionError:
            yield None, 0, "nested too deeply"
            return
        except ValueError as error:
            more = text.read(max(_CHUNK, len(buffer) - at)) if len(buffer) - at < MAX_ROW_BYTES else ""
            if not more:
                yield None, 0, f"the list does not go on: {error}"
                return
            buffer, at = buffer[at:] + more, 0
            continue
        size, at = end - at, end
        if len(buffer) - at < 1 << 12:  # a number or name at the very end may go on
            buffer, at = buffer[at:] + text.read(_CHUNK), 0
        if isinstance(value, dict):
            yield value, size, ""
        else:
            yield None, size, f"expected an object, got {type(value).__name__}"


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


def csv_blocks(source: str, stream: BinaryIO, tick: Tick, dialect: str) -> Iterator[Block]:
    """Read CSV with a line of names; `dialect` is one of the csv module's."""
    csv.field_size_limit(MAX_ROW_BYTES)
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.DictReader(text, dialect=dialect)
    rows = _Gathered(source, tick)
    if why := _no_columns(reader):
        yield _failed(source, 0, why)
        return
    while True:
        try:
            value = next(reader, None)
        except (csv.Error, *_DAMAGED) as error:
            yield from rows.add(None, 0, f"not CSV: {error}")
            value = None
        if value is None:
            yield from rows.rest()
            return
        if None in value:  # DictReader's place for what has no column
            yield from rows.add(None, 0, "more cells than columns")
        else:
            cells = {key: cell for key, cell in value.items() if cell is not None}
            yield from rows.add(cells, sum(map(len, cells.values())))


def _no_columns(reader: csv.DictReader[str]) -> str:
    """Why the line of names shows that the cells are separated by something else; "" when it does not."""
    try:
        names = reader.fieldnames or ()
    except (csv.Error, *_DAMAGED):
        return ""  # told with the first row
    if names and names[0].startswith(_UTF_16_ESCAPED):
        return "the file is UTF-16: convert it (iconv -f UTF-16 -t UTF-8)"
    other = next((one for one in (";", "\t", ",", "|") if len(names) == 1 and one in names[0]), "")
    return f"its cells are separated by {other!r}, not by {reader.reader.dialect.delimiter!r}" if other else ""


__all__ = ["Tick", "csv_blocks", "json_blocks"]
