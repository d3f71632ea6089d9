"""Checkpoints of torch.distributed.checkpoint (FSDP and others): `.metadata` and `__<rank>_<n>.distcp`.

    .metadata            pickle: tensor -> (file, offset, length); written last, by rank 0
    __0_0.distcp ...     one `torch.save` file after the other, each at its offset

The pickle is read by `inert_pickle`, never unpickled.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from grpo_sentinel.halting.inert_pickle import MAX_BYTES, Node, read, walk
from grpo_sentinel.halting.safetensors import FiniteReport, merge
from grpo_sentinel.halting.torch_file import CannotTell, scan_torch_file
from grpo_sentinel.preflight.look import Level, Look


@dataclass(frozen=True, slots=True)
class _Item:
    tensor: str
    offset: int
    length: int


def is_distributed(names: set[str]) -> bool:
    """Tell whether a directory with these names is such a checkpoint, whole or not."""
    return ".metadata" in names or any(name.endswith(".distcp") for name in names)


def check_distributed(look: Look, directory: Path) -> None:
    """Check one such directory: every file that the metadata names, and every number in it."""
    metadata = directory / ".metadata"
    try:
        if metadata.stat().st_size > MAX_BYTES:
            look.note(Level.CANNOT_TELL, "unread", metadata, f"{look.name(metadata)} is too large to read")
            return
        files = _placed(metadata.read_bytes())
    except FileNotFoundError:
        look.broken("missing", metadata, f"{look.name(metadata)} is missing: the save has not ended")
        return
    except OSError as error:
        look.note(Level.CANNOT_TELL, "unread", metadata, f"{look.name(metadata)} cannot be read: {error.strerror}")
        return
    except ValueError as error:
        look.broken("damaged", metadata, f"{look.name(metadata)}: {error}")
        return
    if not files:
        look.note(Level.CANNOT_TELL, "unread", metadata, f"{look.name(metadata)} names no files in a way known here")
    for name, items in sorted(files.items()):
        _check_file(look, directory / name, sorted(items, key=lambda item: item.offset))


def _placed(data: bytes) -> dict[str, list[_Item]]:
    """Find in the metadata which part of which file holds what. Raises `ValueError` on a damaged pickle."""
    out: dict[str, list[_Item]] = {}
    tree = read(data)
    for _, node in walk(tree):
        for key, value in node.pairs:
            if not (isinstance(value, Node) and value.name.endswith("._StorageInfo")):
                continue
            file, offset, length = value.get("relative_path"), value.get("offset"), value.get("length")
            if not (isinstance(file, str) and isinstance(offset, int) and isinstance(length, int)):
                raise ValueError("an entry of its storage table is not readable")
            name = key.get("fqn") if isinstance(key, Node) else None
            out.setdefault(file, []).append(_Item(str(name or "an entry"), offset, length))
    return out


def _check_file(look: Look, path: Path, items: list[_Item]) -> None:
    try:
        size = path.stat().st_size
    except OSError:
        what = items[0].tensor + (f" and {len(items) - 1:,} more" if len(items) > 1 else "")
        look.broken("missing", path, f"{look.name(path)} is missing: it holds {what}")
        return
    end = max(item.offset + item.length for item in items)
    if size < end:
        look.broken("truncated", path, f"{look.name(path)} is truncated: {size:,} bytes of {end:,}")
        return
    if look.quick:
        look.add(path, size, FiniteReport(files=1, tensors=len(items)))
        return
    try:
        with path.open("rb") as file:
            look.add(path, size, merge(list(_scanned(look, path, file, items))))
    except OSError as error:
        look.note(Level.CANNOT_TELL, "unread", path, f"{look.name(path)} cannot be read: {error.strerror or error}")


def _scanned(look: Look, path: Path, file: IO[bytes], items: list[_Item]) -> Iterator[FiniteReport]:
    for item in items:
        part = io.BufferedReader(_Part(file, item.offset, item.length))
        try:
            report = scan_torch_file(part, item.tensor).report
        except CannotTell as why:
            look.note(Level.CANNOT_TELL, "unread", path, f"{item.tensor} in {look.name(path)}: {why}", item.tensor)
            continue
        except ValueError as error:
            look.note(Level.BROKEN, "damaged", path, f"{item.tensor} in {look.name(path)}: {error}", item.tensor)
            continue
        bad = sum(report.nonfinite.values())
        yield FiniteReport(
            tensors=report.tensors, elements=report.elements, nonfinite={item.tensor: bad} if bad else {},
            unchecked=tuple(f"{item.tensor}: {one}" for one in report.unchecked),
        )  # fmt: skip


class _Part(io.RawIOBase):
    """A stretch of a file as a file of its own."""

    def __init__(self, file: IO[bytes], offset: int, length: int) -> None:
        self._file, self._offset, self._length, self._at = file, offset, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._length)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        wanted = max(0, min(len(buffer), self._length - self._at))
        self._file.seek(self._offset + self._at)
        data = self._file.read(wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


__all__ = ["check_distributed", "is_distributed"]
