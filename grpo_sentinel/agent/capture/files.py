"""Reads and writes safetensors with the standard library and torch: what a trainer brings without asking.

    u64 length of header | JSON {"name": {"dtype", "shape", "data_offsets"}, "__metadata__": {text: text}} | bytes

Facts that are no tensors go as JSON text under `__metadata__`, key "sentinel".
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from grpo_sentinel.errors import SentinelError

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}
_KEY = "sentinel"
_MOST_HEADER = 32 << 20


class BadCapture(SentinelError):
    """A file is no capture of ours, or is damaged."""


def to_host(tensor: Any) -> torch.Tensor | None:
    """Copy this rank's part of a tensor to the host, contiguous; None for what no file can hold (meta, quantised).

    Never communicates: a DTensor gives its local shard.
    """
    while hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.is_meta or tensor.is_quantized:
        return None
    here = tensor.detach()
    if here.layout is not torch.strided:
        here = here.to_dense()
    if here.dtype.is_complex:
        here = torch.view_as_real(here.resolve_conj())
    if here.dtype not in DTYPES:
        here = here.float()
    return here.cpu().contiguous()


def write(path: Path, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> int:
    """Write host tensors (from `to_host`) and facts; gives the size in bytes.

    The file appears whole or not at all: it is written under another name, flushed and renamed. Raises `OSError`.
    """
    header: dict[str, Any] = {"__metadata__": {_KEY: json.dumps(facts)}}
    at = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for tensor in tensors.values():
                size = tensor.numel() * tensor.element_size()
                if size:
                    file.write(memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return 8 + len(text) + at


def read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read tensors and facts back; every offset is checked first. Raises `BadCapture` in one sentence."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadCapture(f"{path} cannot be read ({error.strerror}); name a bundle that holds a capture") from error
    try:
        (length,) = struct.unpack_from("<Q", data)
        if not 0 < length <= min(_MOST_HEADER, len(data) - 8):
            raise ValueError("its header is longer than the file")
        header = json.loads(data[8 : 8 + length])
        facts = json.loads(header.pop("__metadata__", {}).get(_KEY, "null"))
        if not isinstance(facts, dict):
            raise ValueError("it was not written by the agent")
        body = memoryview(data)[8 + length :]
        return {name: _tensor(body, name, entry) for name, entry in header.items()}, facts
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCapture(f"{path} is no readable capture: {error}") from error


def _tensor(body: memoryview, name: str, entry: Mapping[str, Any]) -> torch.Tensor:
    dtype, shape = _BY_NAME[entry["dtype"]], [int(size) for size in entry["shape"]]
    begin, end = (int(at) for at in entry["data_offsets"])
    wanted = math.prod(shape) * dtype.itemsize
    if min([0, *shape]) < 0 or not 0 <= begin <= end <= len(body) or end - begin != wanted:
        raise ValueError(f"the place of {name} is outside of the file")
    if not wanted:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(body[begin:end]), dtype=dtype).reshape(shape)
