"""Keeps a checkpoint out of rotation's reach.

    <output_dir>/../sentinel-pinned/<run>/checkpoint-12      a pinned copy: `save_total_limit` does not look there

Every file is held by a hard link (rotation can then delete what it likes), cloned or copied from the held files, sizes
checked, renamed into place. A half copy is never taken for a whole one: until the rename its name begins with ".".
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

from grpo_sentinel.halting.checkpoints import Checkpoint, problem_of

PINNED_NAME = "sentinel-pinned"
_FICLONE = 0x40049409
_SPARE_BYTES = 256 << 20  # a pin must not be what fills the disk


def pin(checkpoint: Checkpoint, destination: Path, tag: str) -> Path:
    """Keep a checkpoint under `destination` as a clone where the file system can, else as a copy; gives its path.

    `tag` tells holders apart (host and run); what an earlier one with this tag left half-made is removed. A copy that
    is already there is returned as it is. Raises `OSError` when it cannot be kept: gone meanwhile, no space, no
    permission; nothing half-made stays under its final name.
    """
    name = checkpoint.path.name
    target = destination / name
    if target.exists():
        return target
    destination.mkdir(mode=0o700, parents=True, exist_ok=True)
    ending = checkpoint.path.suffix if checkpoint.path.is_file() else ""
    partial = destination / f".{name}.{tag}.partial{ending}"
    held = checkpoint.path.parent / f".sentinel-hold-{tag}-{name}"
    for left_over in (partial, held):
        remove(left_over)
    try:
        source = held if _hold(checkpoint.path, held) else checkpoint.path
        _require_space(source, destination)
        _copy(source, partial)
        problem = problem_of(partial, checkpoint.step, reported=True)
        if problem:
            raise OSError(errno.EIO, f"the copy of {checkpoint.path} is not whole: {problem}")
        partial.rename(target)
        _flush(destination)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not target.is_dir():  # else another node was first
            raise
    finally:
        remove(partial)
        remove(held)
    return target


def remove(path: Path) -> None:
    """Remove a checkpoint, a directory or a file, as far as that is possible."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        return
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def _require_space(source: Path, destination: Path) -> None:
    files = [source] if source.is_file() else [file for file in source.rglob("*") if file.is_file()]
    needed = sum(file.stat().st_size for file in files)
    free = shutil.disk_usage(destination).free
    if free < needed + _SPARE_BYTES:
        raise OSError(errno.ENOSPC, f"{needed:,} bytes wanted, {free:,} free on the file system", str(destination))


def _hold(source: Path, held: Path) -> bool:
    """Link every file of `source` into `held`; False when the file system or its owner does not allow it."""
    try:
        if source.is_file():
            os.link(source, held)
            return True
        for directory, _, files in os.walk(source):
            target = held / Path(directory).relative_to(source)
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in files:
                os.link(Path(directory) / name, target / name)
    except OSError:
        remove(held)
        return False
    return True


def _copy(source: Path, target: Path) -> None:
    if source.is_file():
        _clone_or_copy(source, target)
        return
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


__all__ = ["PINNED_NAME", "pin", "remove"]
