"""Finds checkpoints, tells whole from half, looks for non-finite weights, and keeps one out of rotation's reach.

    <output_dir>/checkpoint-12/                     found by name or by the trainer's `checkpoint` event
    <output_dir>/../sentinel-pinned/<run>/checkpoint-12/      a pinned copy: `save_total_limit` does not look there

Pinning: hold every file by a hard link (rotation can then delete what it likes), clone or copy from the held files,
check sizes, rename into place. A half copy is never taken for a whole one: until the rename its name begins with ".".
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from grpo_sentinel.halting.safetensors import FiniteReport, merge, read_header, scan_file

PINNED_NAME = "sentinel-pinned"
_FICLONE = 0x40049409
_NAME = re.compile(r"^checkpoint-(\d+)$")
_WEIGHTS = ("model.safetensors", "adapter_model.safetensors", "pytorch_model.bin", "adapter_model.bin")
_INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SPARE_BYTES = 256 << 20  # a pin must not be what fills the disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint directory; `problem` is "" when everything a restart needs is there."""

    path: Path
    step: int
    problem: str = ""


def scan_directory(directory: Path) -> list[Checkpoint]:
    """List the `checkpoint-<step>` directories in `directory`, newest step first; [] when it cannot be read."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(directory):
            match = _NAME.match(entry.name)
            if match and entry.is_dir():
                found.append(inspect(Path(entry.path), int(match[1])))
    return sorted(found, key=lambda checkpoint: -checkpoint.step)


def inspect(path: Path, step: int) -> Checkpoint:
    """Tell whether one checkpoint is whole: weights there and not truncated, trainer state written (it comes last)."""
    return Checkpoint(path=path, step=step, problem=_problem(path, step))


def _problem(path: Path, step: int) -> str:
    try:
        names = {entry.name for entry in os.scandir(path)}
        if "trainer_state.json" in names:
            state = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
            if state.get("global_step") != step:
                return f"trainer_state.json is of step {state.get('global_step')}"
        else:
            return "trainer_state.json is missing: the save has not ended"
        weights = [name for name in names if name in _WEIGHTS] or _shards(path, names)
        if not weights:
            return "no weights"
        missing = sorted(set(weights) - names)
        if missing:
            return f"{missing[0]} is missing"
        for name in weights:
            if name.endswith(".safetensors"):
                read_header(path / name)
    except (OSError, ValueError, AttributeError) as error:
        return str(error)
    return ""


def _shards(path: Path, names: Iterable[str]) -> list[str]:
    """Name the shard files that a sharded checkpoint's index asks for. Raises `OSError`, `ValueError`."""
    for index in _INDICES:
        if index in names:
            weight_map = json.loads((path / index).read_text(encoding="utf-8"))["weight_map"]
            return sorted(set(map(str, weight_map.values())))
    return []


def check_finite(path: Path) -> FiniteReport:
    """Count non-finite elements in all safetensors files of a checkpoint, or in one file.

    Other weight files are named in `unchecked`: reading them would mean unpickling. Raises `ValueError` on a torn
    file, `OSError` when one cannot be read.
    """
    if path.is_file():
        return scan_file(path)
    reports = [scan_file(file) for file in sorted(path.glob("*.safetensors"))]
    others = tuple(file.name for file in sorted(path.glob("*model*.bin")))
    return merge([*reports, FiniteReport(unchecked=others)])


def newest_before(checkpoints: Iterable[Checkpoint], onset_step: int) -> list[Checkpoint]:
    """Keep whole checkpoints saved before the first abnormal step, newest first.

    `checkpoint-N` holds the weights after update N, so N < onset. Finite is not enough: one step at a learning
    rate of 10 leaves finite, dead weights, hence before the onset and not merely before the first NaN.
    """
    good = [checkpoint for checkpoint in checkpoints if not checkpoint.problem and checkpoint.step < onset_step]
    return sorted(good, key=lambda checkpoint: -checkpoint.step)


def pin(checkpoint: Checkpoint, destination: Path, tag: str) -> Path:
    """Keep a checkpoint under `destination` as a clone where the file system can, else as a copy; gives its path.

    `tag` tells holders apart (host and run); what an earlier one with this tag left half-made is removed. A copy that
    is already there is returned as it is. Raises `OSError` when it cannot be kept: gone meanwhile, no space, no
    permission; nothing half-made stays under its final name.
    """
    target = destination / checkpoint.path.name
    if target.is_dir():
        return target
    destination.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = destination / f".{checkpoint.path.name}.{tag}.partial"
    held = checkpoint.path.parent / f".sentinel-hold-{tag}-{checkpoint.path.name}"
    for left_over in (partial, held):
        shutil.rmtree(left_over, ignore_errors=True)
    try:
        source = held if _hold(checkpoint.path, held) else checkpoint.path
        _require_space(source, destination)
        _copy_tree(source, partial)
        problem = _problem(partial, checkpoint.step)
        if problem:
            raise OSError(errno.EIO, f"the copy of {checkpoint.path} is not whole: {problem}")
        partial.rename(target)
        _flush(destination)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not target.is_dir():  # else another node was first
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(held, ignore_errors=True)
    return target


def _require_space(source: Path, destination: Path) -> None:
    needed = sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
    free = shutil.disk_usage(destination).free
    if free < needed + _SPARE_BYTES:
        raise OSError(errno.ENOSPC, f"{needed:,} bytes wanted, {free:,} free on the file system", str(destination))


def _hold(source: Path, held: Path) -> bool:
    """Link every file of `source` into `held`; False when the file system or its owner does not allow it."""
    try:
        for directory, _, files in os.walk(source):
            target = held / Path(directory).relative_to(source)
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in files:
                os.link(Path(directory) / name, target / name)
    except OSError:
        shutil.rmtree(held, ignore_errors=True)
        return False
    return True


def _copy_tree(source: Path, target: Path) -> None:
    for directory, _, files in os.walk(source, onerror=_raise):
        place = target / Path(directory).relative_to(source)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in files:
            _clone_or_copy(Path(directory) / name, place / name)
        _flush(place)


def _clone_or_copy(source: Path, target: Path) -> None:
    with source.open("rb") as reader, target.open("wb") as writer:
        size = os.fstat(reader.fileno()).st_size
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError:  # not on this file system: copy
            shutil.copyfileobj(reader, writer, 4 << 20)
        writer.flush()
        os.fsync(writer.fileno())
        if os.fstat(writer.fileno()).st_size != size:
            raise OSError(errno.EIO, "changed while it was copied", str(source))


def _flush(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise(error: OSError) -> None:
    raise error
