"""Reader of TFRecord files, the frame around TensorBoard's events. No TensorFlow, no protobuf library.

    | length u64 LE | masked CRC-32C of the length u32 | data | masked CRC-32C of the data u32 |   again and again

mask(crc) = ((crc >> 15) | (crc << 17)) + 0xa282ead8 mod 2^32 (TensorFlow, lib/io/record_writer).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from grpo_sentinel.history.sources.base import Progress

MAX_SCALAR_RECORD = 1 << 16
"""Bytes; a larger record holds an image, histogram or graph and no scalar that we read: it is passed over unread."""

_HEAD = struct.Struct("<QI")
_WORD = struct.Struct("<I")


def _table() -> tuple[int, ...]:
    out = []
    for index in range(256):
        crc = index
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)  # Castagnoli, reflected
        out.append(crc)
    return tuple(out)


_CRC = _table()


def masked_crc(data: bytes) -> int:
    """Give the masked CRC-32C of some bytes."""
    crc = 0xFFFFFFFF
    table = _CRC
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(file: BinaryIO, progress: Progress) -> Iterator[bytes]:
    """Yield the data of every record that is whole.

    A record with damaged data is left out and counted; after a damaged length nothing can be found any more, and the
    reading stops. A torn last record is normal while the writer lives.
    """
    damaged = 0
    while len(head := file.read(12)) == 12:
        length, crc = _HEAD.unpack(head)
        if masked_crc(head[:8]) != crc:
            progress.notes.append("a record's length is damaged: what comes after it cannot be read")
            break
        if length > MAX_SCALAR_RECORD:
            if not _skip(file, length + 4):
                break
            continue
        body = file.read(length + 4)
        if len(body) < length + 4:
            break
        data = body[:length]
        if masked_crc(data) == _WORD.unpack_from(body, length)[0]:
            yield data
        else:
            damaged += 1
    if damaged:
        progress.notes.append(f"{damaged} records are damaged (CRC) and were left out")


def _skip(file: BinaryIO, count: int) -> bool:
    while count > 0:
        piece = file.read(min(count, 1 << 18))
        if not piece:
            return False
        count -= len(piece)
    return True


__all__ = ["MAX_SCALAR_RECORD", "masked_crc", "records"]
