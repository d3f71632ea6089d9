"""Create, open and check the file behind a ring; everything that can fail, fails here and in one sentence."""

from __future__ import annotations

import grp
import json
import mmap
import os
import stat
import sys
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_sentinel.errors import SegmentError
from grpo_sentinel.protocol.layout import CONSTANT_BYTES, HEADER_BYTES, MAGIC, PREAMBLE, VERSION, Geometry
from grpo_sentinel.records import RankIdentity


@dataclass(frozen=True, slots=True)
class Segment:
    """An open mapping; `words` is the same memory as aligned 8-byte words."""

    path: Path
    identity: RankIdentity
    geometry: Geometry
    mapping: mmap.mmap
    words: memoryview
    inode: int

    def close(self) -> None:
        """Unmap; the file stays."""
        self.words.release()
        self.mapping.close()


def encode_constant(identity: RankIdentity, geometry: Geometry) -> bytes:
    """Pack the constant part of the header. Raises `SegmentError` when the identity does not fit."""
    text = json.dumps({"identity": asdict(identity), "geometry": asdict(geometry)}, sort_keys=True).encode("ascii")
    if PREAMBLE.size + len(text) > CONSTANT_BYTES:
        raise SegmentError(f"identity of rank {identity.rank} takes {len(text)} bytes: shorten run id or host name.")
    return PREAMBLE.pack(MAGIC, VERSION, len(text), zlib.crc32(text, VERSION), 0) + text


def decode_constant(data: bytes, path: Path) -> tuple[RankIdentity, Geometry]:
    """Check and unpack the constant part. Raises `SegmentError` naming what is wrong with `path`."""
    if len(data) < PREAMBLE.size or data[: len(MAGIC)] != MAGIC:
        raise SegmentError(f"{path} is not a grpo-sentinel segment.")
    _, version, length, crc, _ = PREAMBLE.unpack_from(data)
    if version != VERSION:
        raise SegmentError(
            f"{path} has protocol version {version}, this release reads {VERSION}: "
            "install the same grpo-sentinel beside the trainer and in the sidecar."
        )
    text = data[PREAMBLE.size : PREAMBLE.size + length]
    if len(text) != length or zlib.crc32(text, VERSION) != crc:
        raise SegmentError(f"{path} has a damaged header: remove it and start the trainer again.")
    try:
        fields: dict[str, Any] = json.loads(text)
        return RankIdentity(**fields["identity"]), Geometry(**fields["geometry"])
    except (ValueError, TypeError, KeyError) as error:
        raise SegmentError(f"{path} has a header that this release cannot read ({error}).") from error


def group_id(group: str) -> int:
    """Look a group up by name or number. Raises `SegmentError`."""
    try:
        return int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise SegmentError(f"group {group!r} does not exist: create it, or leave the shared group out.") from error


def create_segment(path: Path, identity: RankIdentity, geometry: Geometry, gid: int | None) -> Segment:
    """Write a new segment beside `path`; `publish` then puts it in place.

    The space is reserved first, so a full file system is an error here and never a SIGBUS in the training loop.
    Raises `SegmentError`.
    """
    if sys.byteorder != "little":
        raise SegmentError("ring segments need a little-endian host.")
    constant = encode_constant(identity, geometry)
    draft = draft_path(path)
    try:
        with suppress(FileNotFoundError):
            draft.unlink()  # left by a rank that died while it started; the lock is ours by now
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(draft, flags, 0o600)
        try:
            os.fchmod(descriptor, 0o600 if gid is None else 0o640)
            if gid is not None:
                os.fchown(descriptor, -1, gid)
            os.posix_fallocate(descriptor, 0, geometry.total_bytes)
            mapping = mmap.mmap(descriptor, geometry.total_bytes)
            inode = os.fstat(descriptor).st_ino
        finally:
            os.close(descriptor)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise SegmentError(
            f"no ring segment of {geometry.total_bytes >> 10} KiB in {path.parent} ({error.strerror}): "
            "free space there, enlarge shared memory (docker run --shm-size=1g), or set GRPO_SENTINEL_DIR."
        ) from error
    mapping[: len(constant)] = constant
    return Segment(path, identity, geometry, mapping, memoryview(mapping).cast("Q"), inode)


def draft_path(path: Path) -> Path:
    """Name under which a segment is prepared, so that readers meet only complete ones."""
    return path.with_name(f".{path.name}.new")


def open_segment(path: Path) -> Segment:
    """Map an existing segment read-only. Raises `SegmentError` for anything but a whole segment of this version."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SegmentError(f"{path} cannot be opened ({error.strerror}).") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise SegmentError(f"{path} is not a regular file.")
        identity, geometry = decode_constant(os.pread(descriptor, CONSTANT_BYTES, 0), path)
        if found.st_size < max(HEADER_BYTES, geometry.total_bytes):
            raise SegmentError(f"{path} is truncated: {found.st_size} of {geometry.total_bytes} bytes.")
        mapping = mmap.mmap(descriptor, geometry.total_bytes, access=mmap.ACCESS_READ)
    except OSError as error:
        raise SegmentError(f"{path} cannot be read ({error.strerror}).") from error
    finally:
        os.close(descriptor)
    return Segment(path, identity, geometry, mapping, memoryview(mapping).cast("Q"), found.st_ino)
