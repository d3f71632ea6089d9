"""TensorBoard event files, byte by byte: TFRecord framing around a hand-encoded protocol buffer; no I/O.

    record   u64 length | u32 masked CRC-32C of the length | data | u32 masked CRC-32C of the data     little-endian
    data     Event {1 double wall_time, 2 int64 step, 3 string file_version | 5 Summary}
    Summary  repeated 1 Value {1 string tag, 2 float simple_value | 8 TensorProto, 9 SummaryMetadata}

Sources: tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto, summary.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

_MASK = 0xFFFFFFFF


def _table() -> tuple[int, ...]:
    out = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # Castagnoli, reflected
        out.append(value)
    return tuple(out)


_CRC = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of some bytes; `crc32c(b"123456789") == 0xE3069283`."""
    crc, table = _MASK, _CRC
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ _MASK


def masked(data: bytes) -> int:
    """The CRC as TFRecord stores it: rotated right by 15 bits plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & _MASK


def frame(data: bytes) -> bytes:
    """Put one record into its TFRecord frame."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, struct.pack("<I", masked(length)), data, struct.pack("<I", masked(data))))


def version(wall_seconds: float) -> bytes:
    """The record that begins every event file."""
    return frame(struct.pack("<Bd", 0x09, wall_seconds) + _bytes(3, b"brain.Event:2"))


def scalars(wall_seconds: float, step: int, values: Iterable[tuple[str, float]]) -> bytes:
    """One event with many scalars; float32, NaN and infinities as they are."""
    encoded = b"".join(_bytes(1, _bytes(1, _utf8(tag)) + struct.pack("<Bf", 0x15, _single(v))) for tag, v in values)
    return _event(wall_seconds, step, encoded)


def text_event(wall_seconds: float, step: int, tag: str, body: str) -> bytes:
    """One event with a Markdown text, for the text dashboard."""
    metadata = _bytes(1, _bytes(1, b"text"))  # SummaryMetadata.plugin_data.plugin_name
    shape = _bytes(2, _bytes(2, b"\x08\x01"))  # TensorShapeProto with one dimension of size 1
    tensor = b"\x08\x07" + shape + _bytes(8, _utf8(body))  # dtype DT_STRING
    return _event(wall_seconds, step, _bytes(1, _bytes(1, _utf8(tag)) + _bytes(8, tensor) + _bytes(9, metadata)))


def _event(wall_seconds: float, step: int, summary: bytes) -> bytes:
    return frame(struct.pack("<Bd", 0x09, wall_seconds) + b"\x10" + _varint(step) + _bytes(5, summary))


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _utf8(value: str) -> bytes:
    return value.encode("utf-8", "backslashreplace")


def _single(value: float) -> float:
    """Keep what float32 cannot hold as an infinity instead of raising."""
    if value - value != 0.0 or abs(value) < 3.4028235e38:
        return value
    return float("inf") if value > 0 else float("-inf")
