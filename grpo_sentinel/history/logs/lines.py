"""Text lines of a log, whatever it went through: gzip, carriage returns of progress bars, ANSI colours, torn ends.

Constant memory: a line longer than `MAX_LINE` is cut with a mark, so a binary file or one endless line costs no
more than that.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from grpo_sentinel.errors import SentinelError

MAX_LINE = 65536
"""Longest piece of one line, in bytes, that is looked at."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\][^\n]*$")


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its colour codes; `number` counts from 1 in its source."""

    source: str
    number: int
    text: str


def read_lines(path: str | Path) -> Iterator[Line]:
    """Read one file (plain or gzip, `-` for standard input), splitting at newlines and carriage returns.

    Raises `SentinelError` when the file cannot be opened; a torn gzip end stops the reading quietly there.
    """
    name = str(path)
    if name == "-":
        yield from lines_of(sys.stdin.buffer, "<stdin>")
        return
    try:
        with open(name, "rb") as raw:
            magic = raw.read(2)
            raw.seek(0)
            if magic == b"\x1f\x8b":
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    yield from lines_of(unpacked, name)
            else:
                yield from lines_of(raw, name)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return  # a torn archive: what could be read has been read
    except OSError as error:
        raise SentinelError(
            f"cannot read the log {name}: {error.strerror or error}; give a readable file, or - for standard input"
        ) from error


def lines_of(stream: BinaryIO | io.BufferedIOBase, source: str) -> Iterator[Line]:
    """Give the lines of an open stream. A torn archive raises what its unpacking raises, after the last whole line."""
    number = 0
    while chunk := stream.readline(MAX_LINE):
        number += 1
        text = chunk.decode("utf-8", errors="replace").rstrip("\n")
        if "\r" in text:
            for piece in text.split("\r"):
                if piece.strip():
                    yield Line(source, number, clean(piece))
        else:
            yield Line(source, number, clean(text))


def follow(path: str | Path) -> Iterator[Line | None]:
    """Read a growing file without end; None means nothing new for now.

    A file that shrank is read from its start. One that was renamed is read to its end, then the one that has taken its
    name, as soon as something stands in it. Raises `SentinelError` when the file cannot be opened.
    """
    try:
        stream: BinaryIO = open(path, "rb")  # noqa: SIM115 - stays open as long as the caller reads
    except OSError as error:
        raise SentinelError(f"cannot read the log {path}: {error.strerror or error}; give a readable file") from error
    number, rest = 0, b""
    try:
        while True:
            if stream.tell() > os.fstat(stream.fileno()).st_size:
                stream.seek(0)
                number, rest = 0, b""
            piece = stream.readline(MAX_LINE)
            if not piece:
                newer = _successor(path, stream)
                if newer is None:
                    yield None
                    continue
                yield from _parts(path, number + 1, rest)  # torn for good
                stream.close()
                stream, number, rest = newer, 0, b""
                continue
            rest += piece
            if not rest.endswith(b"\n") and len(rest) < MAX_LINE:
                continue  # torn: the rest of the line is still to come
            number += 1
            yield from _parts(path, number, rest)
            rest = b""
    finally:
        stream.close()


def _parts(path: str | Path, number: int, raw: bytes) -> Iterator[Line]:
    """Split one line at the carriage returns of progress bars."""
    text = raw.decode("utf-8", errors="replace").rstrip("\n")
    for part in text.split("\r"):
        if part.strip():
            yield Line(str(path), number, clean(part))


def _successor(path: str | Path, stream: BinaryIO) -> BinaryIO | None:
    """Open the file that has taken the name of one that is read to its end; None while there is none with content."""
    old = os.fstat(stream.fileno())
    try:
        new = os.stat(path)
        if (new.st_dev, new.st_ino) == (old.st_dev, old.st_ino) or not new.st_size:
            return None
        return open(path, "rb")
    except OSError:
        return None  # between the two renames of a rotation


def clean(text: str) -> str:
    """Remove ANSI codes and Ray's repetition mark."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "[repeated " in text:
        text = _REPEATED.sub("", text)
    return text


def expand(paths: list[str]) -> list[str]:
    """Replace directories by the log-like files in them, sorted; refuse an empty directory and a missing path."""
    out: list[str] = []
    for name in paths:
        path = Path(name)
        if name in ("-", os.devnull) or path.is_file():
            out.append(name)
        elif path.is_dir():
            inside = sorted(str(p) for p in path.rglob("*") if p.is_file() and _looks_like_log(p))
            if not inside:
                raise SentinelError(f"no log in the directory {name}; name a file ending in {', '.join(SUFFIXES)}")
            out.extend(inside)
        elif path.exists():
            raise SentinelError(f"{name} is neither a file nor a directory; give its text on standard input, with -")
        else:
            raise SentinelError(f"no such log: {name}; check the path")
    return out


SUFFIXES = (".log", ".txt", ".out", ".err", ".json", ".jsonl", ".gz", ".csv")


def _looks_like_log(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES or path.name in ("stdout", "stderr") or "tfevents" in path.name
