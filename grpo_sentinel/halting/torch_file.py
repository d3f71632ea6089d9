"""Judges a file of `torch.save` without unpickling it: whole or cut, which tensors, NaN and infinities in them.

    name/data.pkl      what refers to which storage, read by `inert_pickle`
    name/data/0 ...    the bytes of the storages: checked against size and CRC, scanned as safetensors are

The older format (before torch 1.6) is one stream that only torch can read: with `weights_only`, where torch is there.
"""

from __future__ import annotations

import importlib
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from grpo_sentinel.halting.inert_pickle import MAX_BYTES, STORED, Node, read, walk
from grpo_sentinel.halting.safetensors import FiniteReport, count_nonfinite

_CHUNK_BYTES = 4 << 20  # a multiple of every element size
_LEGACY = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
_ZIP = b"PK\x03\x04"
_DAMAGE = (  # all that zipfile, and the walk over a pickle that makes no sense, raise on flipped bits
    zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError,
    UnicodeError, TypeError, AttributeError, LookupError, ArithmeticError,
)  # fmt: skip
_FLOATS = {  # type -> (scan as, bytes of an element, scanned numbers in an element)
    "Float": ("F32", 4, 1), "Double": ("F64", 8, 1), "Half": ("F16", 2, 1), "BFloat16": ("BF16", 2, 1),
    "ComplexFloat": ("F32", 8, 2), "ComplexDouble": ("F64", 16, 2),
    "float32": ("F32", 4, 1), "float64": ("F64", 8, 1), "float16": ("F16", 2, 1), "bfloat16": ("BF16", 2, 1),
    "complex64": ("F32", 8, 2), "complex128": ("F64", 16, 2),
    "float8_e4m3fn": ("F8_E4M3", 1, 1), "float8_e5m2": ("F8_E5M2", 1, 1),
}  # fmt: skip
_WHOLE = {
    "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1,
}  # fmt: skip
_SCALARS = {"Float": ("<f", 4), "Double": ("<d", 8), "float32": ("<f", 4), "float64": ("<d", 8)}


class CannotTell(Exception):
    """The file cannot be judged here, for a reason that is no fault of the file."""


@dataclass(frozen=True, slots=True)
class _View:
    """One tensor on a storage: elements `start` to `end`."""

    name: str
    start: int
    end: int


@dataclass(slots=True)
class _Storage:
    dtype: str
    declared: int  # elements that the pickle says it has; -1 = it says bytes
    bytes_declared: int = -1
    views: list[_View] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TorchFile:
    """What a file holds: the scan of its tensors and the inert tree of everything else."""

    report: FiniteReport
    tree: Any
    scalars: Mapping[str, float] = field(default_factory=dict)  # tensors of one number, as an optimizer's `step`


def scan_torch_file(file: IO[bytes], name: str, *, quick: bool = False, with_torch: bool = True) -> TorchFile:
    """Read a `torch.save` file; `quick` leaves the bytes of the tensors unread, `with_torch` allows its import.

    Raises `ValueError` in one sentence when it is cut short or damaged, `CannotTell` when it cannot be judged without
    unpickling, `OSError` when it cannot be read.
    """
    head = file.read(len(_LEGACY))
    file.seek(0)
    if not head:
        raise ValueError("it is empty")
    if head == _LEGACY:
        return _legacy(file, with_torch)
    if _LEGACY.startswith(head):
        raise ValueError("it is cut short")
    if not _ZIP.startswith(head[:4]):
        raise ValueError("it is no file of torch.save")
    try:
        with zipfile.ZipFile(file) as archive:
            return _zipped(archive, quick)
    except _DAMAGE as error:
        if "CRC" in str(error):
            raise ValueError(f"its checksum does not agree, bits changed after it was saved ({error})") from error
        if "not a zip file" in str(error):
            raise ValueError("it is cut short: the directory at its end is missing") from error
        raise ValueError(f"it is damaged: {type(error).__name__}: {error}") from error


def _zipped(archive: zipfile.ZipFile, quick: bool) -> TorchFile:
    entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
    if "data.pkl" not in entries:
        raise ValueError("it is no file of torch.save: data.pkl is missing in it")
    if entries["data.pkl"].file_size > MAX_BYTES:
        raise CannotTell(f"its pickle of {entries['data.pkl'].file_size:,} bytes is too large to read")
    order = entries.get("byteorder")
    if order is not None and (order.file_size > 16 or archive.read(order) != b"little"):
        raise CannotTell("it was saved on a big-endian machine")
    tree = read(archive.read(entries["data.pkl"]))
    storages, unchecked = _storages(tree)
    nonfinite: dict[str, int] = {}
    scalars: dict[str, float] = {}
    elements = 0
    for key, storage in storages.items():
        entry = entries.get(f"data/{key}")
        if entry is None:
            raise ValueError(f"the data of {_name_of(storage)} is missing in it")
        _require_size(storage, entry.file_size)
        known = _FLOATS.get(storage.dtype)
        if known is None and storage.dtype not in _WHOLE:
            unchecked.append(f"{_name_of(storage)} ({storage.dtype})")
        if quick:
            continue
        with archive.open(entry) as data:
            for name, looked_at, bad in _count(data, storage, known):
                elements += looked_at
                if bad:
                    nonfinite[name] = nonfinite.get(name, 0) + bad
        if entry.file_size == _SCALARS.get(storage.dtype, ("", 0))[1]:
            (value,) = struct.unpack(_SCALARS[storage.dtype][0], archive.read(entry))
            scalars.update({view.name: value for view in storage.views})
    tensors = sum(len(storage.views) for storage in storages.values())
    report = FiniteReport(files=1, tensors=tensors, elements=elements, nonfinite=nonfinite, unchecked=tuple(unchecked))
    return TorchFile(report, tree, scalars)


def _name_of(storage: _Storage) -> str:
    return storage.views[0].name if storage.views else "a tensor"


def _require_size(storage: _Storage, size: int) -> None:
    known = _FLOATS.get(storage.dtype)
    width = known[1] if known is not None else _WHOLE.get(storage.dtype)
    wanted = storage.bytes_declared if storage.declared < 0 else storage.declared * width if width else size
    if wanted >= 0 and wanted != size:
        raise ValueError(f"the data of {_name_of(storage)} has {size:,} bytes where {wanted:,} belong")


def _storages(tree: Any) -> tuple[dict[str, _Storage], list[str]]:
    """Find every storage, by its key, with the tensors on it."""
    found: dict[str, _Storage] = {}
    unchecked: list[str] = []
    named: set[int] = set()
    for path, node in walk(tree):
        if node.name.startswith("torch._utils._rebuild_tensor") and node.arguments:
            stored = node.arguments[0]
            if isinstance(stored, Node) and stored.name == STORED:
                named.add(id(stored))
                _add_view(found, unchecked, ".".join(part for part in path if part), node, stored)
        elif node.name == STORED and id(node) not in named:
            _storage(found, node, "")
    return found, unchecked


def _storage(found: dict[str, _Storage], stored: Node, dtype: str) -> _Storage | None:
    if len(stored.arguments) < 5 or stored.arguments[0] != "storage":
        return None
    kind, key, count = stored.arguments[1], str(stored.arguments[2]), int(stored.arguments[4])
    name = (kind.name if isinstance(kind, Node) else "").rpartition(".")[2].removesuffix("Storage")
    if name == "Untyped":
        return found.setdefault(key, _Storage(dtype or "uint8", -1, count))
    return found.setdefault(key, _Storage(dtype or name, count))


def _add_view(found: dict[str, _Storage], unchecked: list[str], name: str, tensor: Node, stored: Node) -> None:
    dtype = next(
        (one.name[6:] for one in tensor.arguments[4:] if isinstance(one, Node) and one.name[6:] in {*_FLOATS, *_WHOLE}),
        "",
    )
    storage = _storage(found, stored, dtype)
    if storage is None:
        unchecked.append(name)
        return
    offset, shape, stride = tensor.arguments[1:4]
    count = math.prod(shape)
    if not _contiguous(shape, stride):  # its elements lie scattered: look at all that they may span
        count = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if count else 0
    storage.views.append(_View(name or "tensor", int(offset), int(offset) + count))


def _contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def _count(data: IO[bytes], storage: _Storage, known: tuple[str, int, int] | None) -> Iterator[tuple[str, int, int]]:
    """Read a storage to its end (which checks its CRC); yields tensor, elements looked at, non-finite elements."""
    at = 0
    while chunk := data.read(_CHUNK_BYTES):
        if known is not None:
            dtype, width, parts = known
            first, last = at // width, (at + len(chunk)) // width
            for view in {(one.start, one.end): one for one in reversed(storage.views)}.values():
                start, end = max(first, view.start), min(last, view.end)
                if start < end:
                    block = chunk[start * width - at : end * width - at]
                    yield view.name, (end - start) * parts, count_nonfinite(block, dtype)
        at += len(chunk)


def _legacy(file: IO[bytes], with_torch: bool) -> TorchFile:
    if not with_torch:
        raise CannotTell("it has the format of torch before 1.6, which only torch can read; it is not unpickled")
    try:
        torch = importlib.import_module("torch")  # only for this format; the sidecar's image has none
    except ImportError as error:
        raise CannotTell(
            "it has the format of torch before 1.6, which only torch can read, and torch is not installed here; it "
            "is not unpickled"
        ) from error
    try:
        content = torch.load(io.BytesIO(file.read()), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds on a damaged file
        text = str(error).strip().splitlines() or [type(error).__name__]
        if "weights_only" in str(error) or "Unsupported" in str(error):
            raise CannotTell(f"torch refuses to load it safely ({text[0]}); it is not unpickled") from error
        raise ValueError(f"torch cannot read it: {text[0]}") from error
    nonfinite: dict[str, int] = {}
    tensors = elements = 0
    for key, tensor in _tensors_of(content, torch):
        tensors += 1
        if tensor.is_floating_point() or tensor.is_complex():
            elements += tensor.numel()
            bad = int((~torch.isfinite(tensor)).sum())
            if bad:
                nonfinite[key] = bad
    return TorchFile(FiniteReport(files=1, tensors=tensors, elements=elements, nonfinite=nonfinite), None)


def _tensors_of(value: Any, torch: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        yield path or "tensor", value
    elif isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _tensors_of(item, torch, f"{path}.{key}" if path else str(key))


__all__ = ["CannotTell", "TorchFile", "scan_torch_file"]
