"""The control file: one per run, owned by the sidecar, replaced atomically, read by the trainer at step boundaries.

    0   magic "GRPOCTRL" | version u32 | length u32 | crc u32 (seeded with the version) | 0 u32
    24  JSON of the ControlWord

The trainer reads it with `pread` and maps nothing, so nobody can truncate it under the trainer.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from grpo_sentinel.errors import SegmentError
from grpo_sentinel.protocol.jsonsafe import decode, encode_within
from grpo_sentinel.protocol.layout import PREAMBLE
from grpo_sentinel.protocol.places import CONTROL_NAME
from grpo_sentinel.records import Action, ControlWord

MAGIC = b"GRPOCTRL"
VERSION = 1
_MOST_BYTES = 4096


def encode_control(word: ControlWord) -> bytes:
    """Pack a control word; too long a reason is cut."""
    text, _ = encode_within(asdict(word), _MOST_BYTES - PREAMBLE.size)
    return PREAMBLE.pack(MAGIC, VERSION, len(text), zlib.crc32(text, VERSION), 0) + text


def decode_control(data: bytes) -> ControlWord | None:
    """Unpack a control word; None for anything that does not check."""
    if len(data) < PREAMBLE.size:
        return None
    magic, version, length, crc, _ = PREAMBLE.unpack_from(data)
    text = data[PREAMBLE.size : PREAMBLE.size + length]
    if magic != MAGIC or version != VERSION or len(text) != length or zlib.crc32(text, VERSION) != crc:
        return None
    try:
        fields = decode(text)
        return ControlWord(
            request_id=int(fields["request_id"]),
            action=Action(fields["action"]),
            deadline_wall_ns=int(fields["deadline_wall_ns"]),
            reason=str(fields["reason"]),
            requested_by=str(fields["requested_by"]),
            made_wall_ns=int(fields.get("made_wall_ns", 0)),
            skip_above_norm=float(fields["skip_above_norm"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def write_control(directory: Path, word: ControlWord) -> None:
    """Replace the run's control file; a reader sees the old word or the new one. Raises `SegmentError`.

    The file takes the group and the group's read permission of the directory, if it has any.
    """
    path = directory / CONTROL_NAME
    draft = directory / f".{CONTROL_NAME}.{os.getpid()}.new"
    try:
        with suppress(FileNotFoundError):
            draft.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(draft, flags, 0o600)
        try:
            _share_like(descriptor, directory)
            os.write(descriptor, encode_control(word))
        finally:
            os.close(descriptor)
        os.replace(draft, path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise SegmentError(f"{path} cannot be written ({error.strerror}): the trainer cannot be asked.") from error


def _share_like(descriptor: int, directory: Path) -> None:
    """Let the directory's group read, where the directory itself is open to it."""
    found = os.stat(directory)
    if found.st_mode & 0o040:
        os.fchmod(descriptor, 0o640)
        os.fchown(descriptor, -1, found.st_gid)


class ControlReader:
    """The trainer's side; a read costs a `stat` and a `pread`."""

    def __init__(self, directory: Path) -> None:
        self._path = os.fspath(directory / CONTROL_NAME)
        self._descriptor = -1
        self._inode = (-1, -1)
        self._data: bytes | None = None
        self._word: ControlWord | None = None

    def read(self) -> ControlWord | None:
        """Return what the sidecar asks now; None when there is no file or it does not check. Never raises.

        The descriptor of the file seen last stays open, so its inode cannot be used again and a replaced file is
        always noticed.
        """
        try:
            found = os.stat(self._path, follow_symlinks=False)
            if (found.st_dev, found.st_ino) != self._inode:
                self._reopen()
            data = os.pread(self._descriptor, _MOST_BYTES, 0)
        except OSError:
            return None
        if data != self._data:
            self._data, self._word = data, decode_control(data)
        return self._word

    def _reopen(self) -> None:
        self.close()
        self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        found = os.fstat(self._descriptor)
        self._inode = (found.st_dev, found.st_ino)

    def close(self) -> None:
        """Close the descriptor; a later `read` opens the file again."""
        if self._descriptor >= 0:
            descriptor, self._descriptor, self._inode = self._descriptor, -1, (-1, -1)
            os.close(descriptor)
