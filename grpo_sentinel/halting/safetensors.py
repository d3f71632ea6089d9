"""Counts NaN and infinities in safetensors files with the standard library alone, at the speed of `bytes.translate`.

    8 bytes: length n | n bytes: JSON {name: {dtype, shape, data_offsets}} | data

A float is non-finite when all bits of its exponent are one. Those bits lie in at most two bytes of a little-endian
element, so a chunk is sliced by byte position, and only a chunk whose top bytes could be such is looked at closely:

    F64  byte 7: x111 1111  byte 6: 1111 xxxx        F32, BF16  top byte: x111 1111  next: 1xxx xxxx
    F16  byte 1: x111 11xx                           F8_E5M2: x111 11xx   F8_E4M3: x111 1111 (NaN only)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 4 << 20  # a multiple of every element size
_LONGEST_HEADER = 100 << 20


def _table(mask: int) -> bytes:
    return bytes(int(byte & mask == mask) for byte in range(256))


@dataclass(frozen=True, slots=True)
class _Format:
    size: int
    masks: tuple[tuple[int, bytes], ...]  # (byte position, table: 1 where the exponent bits in it are all one)


_FORMATS = {
    "F64": _Format(8, ((7, _table(0x7F)), (6, _table(0xF0)))),
    "F32": _Format(4, ((3, _table(0x7F)), (2, _table(0x80)))),
    "BF16": _Format(2, ((1, _table(0x7F)), (0, _table(0x80)))),
    "F16": _Format(2, ((1, _table(0x7C)),)),
    "F8_E5M2": _Format(1, ((0, _table(0x7C)),)),
    "F8_E4M3": _Format(1, ((0, _table(0x7F)),)),
}
_WHOLE_NUMBERS = {"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor as the header names it; offsets in bytes from the start of the file."""

    name: str
    dtype: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FiniteReport:
    """What a look at every element gave. `finite` needs that something was read and nothing was left out."""

    files: int = 0
    tensors: int = 0
    elements: int = 0  # floating-point elements looked at
    nonfinite: dict[str, int] = field(default_factory=dict)  # tensor -> NaN and infinite elements
    unchecked: tuple[str, ...] = ()  # files or tensors of a type that cannot be judged

    @property
    def finite(self) -> bool:
        return self.tensors > 0 and not self.nonfinite and not self.unchecked


def read_header(path: Path) -> tuple[TensorEntry, ...]:
    """Read the header of a safetensors file and check that its data is all there.

    Raises `ValueError` in one sentence on a torn, truncated or foreign file, `OSError` when it cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise ValueError(f"{path.name} is truncated: its header does not fit into {size} bytes")
        try:
            table = json.loads(file.read(length))
        except ValueError as error:
            raise ValueError(f"{path.name} is no safetensors file: its header is not JSON") from error
    if not isinstance(table, dict):
        raise ValueError(f"{path.name} is no safetensors file: its header is not an object")
    entries = tuple(
        _entry(path, name, body, 8 + length, size) for name, body in table.items() if name != "__metadata__"
    )
    if sum(entry.end - entry.start for entry in entries) != size - 8 - length:
        raise ValueError(f"{path.name} is truncated or has gaps: {size} bytes do not agree with its header")
    return entries


def _entry(path: Path, name: str, body: Any, data_at: int, size: int) -> TensorEntry:
    try:
        start, end = (data_at + int(offset) for offset in body["data_offsets"])
        dtype = str(body["dtype"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name}: the header entry of {name} is not readable") from error
    if not data_at <= start <= end <= size:
        raise ValueError(f"{path.name} is truncated: {name} ends at byte {end} of {size}")
    return TensorEntry(name=name, dtype=dtype, start=start, end=end)


def scan_file(path: Path) -> FiniteReport:
    """Count the non-finite elements of every tensor in one file. Raises as `read_header` does."""
    nonfinite: dict[str, int] = {}
    unchecked: list[str] = []
    elements = 0
    entries = read_header(path)
    with path.open("rb", buffering=0) as file:
        for entry in entries:
            kind = _FORMATS.get(entry.dtype.removesuffix("FN").removesuffix("FNUZ"))
            if kind is None:
                if entry.dtype not in _WHOLE_NUMBERS:
                    unchecked.append(f"{entry.name} ({entry.dtype})")
                continue
            elements += (entry.end - entry.start) // kind.size
            bad = sum(count_nonfinite(chunk, entry.dtype) for chunk in _chunks(file.fileno(), entry))
            if bad:
                nonfinite[entry.name] = bad
    return FiniteReport(
        files=1, tensors=len(entries), elements=elements, nonfinite=nonfinite, unchecked=tuple(unchecked)
    )


def _chunks(descriptor: int, entry: TensorEntry) -> Iterator[bytes]:
    at = entry.start
    while at < entry.end:
        chunk = os.pread(descriptor, min(_CHUNK_BYTES, entry.end - at), at)
        while len(chunk) % 8 and at + len(chunk) < entry.end:  # a short read may end inside an element
            more = os.pread(descriptor, 8 - len(chunk) % 8, at + len(chunk))
            if not more:
                break
            chunk += more
        if not chunk:
            raise ValueError(f"{entry.name} was cut short while it was read")
        yield chunk
        at += len(chunk)


def count_nonfinite(data: bytes, dtype: str) -> int:
    """Count the NaN and infinite elements of a little-endian block of whole elements."""
    kind = _FORMATS[dtype.removesuffix("FN").removesuffix("FNUZ")]
    flags: int | None = None
    for position, table in kind.masks:
        marked = data[position :: kind.size].translate(table)
        if b"\x01" not in marked:
            return 0
        block = int.from_bytes(marked, "little")
        flags = block if flags is None else flags & block
    return 0 if flags is None else flags.bit_count()


def merge(reports: Iterator[FiniteReport] | list[FiniteReport]) -> FiniteReport:
    """Add the reports of several files up."""
    total = list(reports)
    return FiniteReport(
        files=sum(report.files for report in total),
        tensors=sum(report.tensors for report in total),
        elements=sum(report.elements for report in total),
        nonfinite={name: count for report in total for name, count in report.nonfinite.items()},
        unchecked=tuple(name for report in total for name in report.unchecked),
    )
