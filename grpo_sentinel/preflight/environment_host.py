"""The node itself (S41): limits of the process, disk for the checkpoints that will be kept, clock."""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
from pathlib import Path

from grpo_sentinel.halting.safetensors import read_header
from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import Fault

_OPEN_FILES = 4096
_EARLIEST = 1_735_689_600  # 2025-01-01: no clock that is set shows an earlier time
_AHEAD = 60.0  # seconds that a file may seem to come from the future
_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}  # bytes
_ADAM = 8  # bytes a parameter: two float32 moments


def limit_faults(limits: dict[str, int] | None = None) -> list[Fault]:
    """Judge ulimits; `limits` has open_files, file_size and core, as soft limits, -1 = none."""
    found = limits if limits is not None else ulimits()
    out = []
    if 0 <= found["open_files"] < _OPEN_FILES:
        out.append(
            _fault(
                Level.DOUBTFUL,
                "open-files",
                f"{found['open_files']:,} open files are allowed: data loaders, NCCL and shards of many ranks use more",
                f"ulimit -n {_OPEN_FILES * 16}",
            )
        )
    if found["file_size"] >= 0:
        out.append(
            _fault(
                Level.BROKEN,
                "file-size",
                f"files may not grow beyond {found['file_size']:,} bytes: a checkpoint ends half written",
                "ulimit -f unlimited",
            )
        )
    return out


def ulimits() -> dict[str, int]:
    """Soft limits of this process; -1 = none."""
    kinds = {
        "open_files": resource.RLIMIT_NOFILE,
        "file_size": resource.RLIMIT_FSIZE,
        "core": resource.RLIMIT_CORE,
        "locked_memory": resource.RLIMIT_MEMLOCK,
    }
    return {
        name: -1 if (soft := resource.getrlimit(kind)[0]) == resource.RLIM_INFINITY else soft
        for name, kind in kinds.items()
    }


def checkpoint_bytes(model: Path | None, directory: Path | None) -> int | None:
    """Size of one checkpoint: that of the largest in `directory`, else weights and Adam's moments of `model`."""
    if directory is not None and directory.is_dir():
        sizes = [_size(one) for one in directory.glob("checkpoint-*") if one.is_dir()]
        if sizes:
            return max(sizes)
    if model is None or not model.is_dir():
        return None
    total = 0
    for file in model.glob("*.safetensors"):
        try:
            entries = read_header(file)
        except (OSError, ValueError):
            return None
        parameters = sum((entry.end - entry.start) // _WIDTHS.get(entry.dtype, 2) for entry in entries)
        total += file.stat().st_size + _ADAM * parameters
    return total or None


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def place_faults(directory: Path) -> list[Fault]:
    """Judge whether checkpoints can be written there at all."""
    existing = _existing(directory)
    if not existing.is_dir():
        return [_fault(Level.BROKEN, "checkpoint-place", f"{existing} is a file, not a directory for checkpoints",
                       "give a directory")]  # fmt: skip
    if not os.access(existing, os.W_OK | os.X_OK):
        return [_fault(Level.BROKEN, "checkpoint-place", f"{existing} is not writable for this user, so no checkpoint "
                       "can be saved", "change its owner or mode, or save elsewhere")]  # fmt: skip
    return []


def _existing(directory: Path) -> Path:
    """The directory itself, or the nearest above it that is there and can be seen."""
    whole = directory.absolute()
    return next(path for path in (whole, *whole.parents) if os.path.exists(path))


def disk_faults(directory: Path, one: int, checkpoints: int, free: int | None = None) -> list[Fault]:
    """Judge room for so many checkpoints and one more, since the oldest goes after the newest is written."""
    existing = _existing(directory)
    free = shutil.disk_usage(existing).free if free is None else free
    needed = one * (checkpoints + 1)
    if free >= needed:
        return []
    return [
        _fault(
            Level.BROKEN,
            "disk",
            f"{checkpoints} checkpoints of {one / 1e9:.2f} GB and the one being written need "
            f"{needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free in {existing}",
            "make room, keep fewer (save_total_limit), or save elsewhere",
        )
    ]


def clock_faults(directory: Path | None, now: float | None = None) -> list[Fault]:
    """Judge the clock: not before 2025, and no checkpoint from the future."""
    now = time.time() if now is None else now
    if now < _EARLIEST:
        return [
            _fault(
                Level.BROKEN,
                "clock",
                f"the clock shows {time.strftime('%Y-%m-%d', time.gmtime(now))}",
                "set it (chrony, systemd-timesyncd): certificates and findings are judged by it",
            )
        ]
    files = directory.glob("checkpoint-*") if directory is not None and directory.is_dir() else ()
    ahead = max((file.stat().st_mtime - now for file in files), default=0.0)
    if ahead <= _AHEAD:
        return []
    return [
        _fault(
            Level.DOUBTFUL,
            "clock",
            f"the newest checkpoint is {ahead:,.0f} s in the future: clocks of nodes differ",
            "synchronise the clocks of all nodes and of the file server",
        )
    ]


def _fault(level: Level, code: str, message: str, remedy: str) -> Fault:
    return Fault(level=level, code=code, where="", message=message, remedy=remedy)


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object; {} when it is missing or no object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_object(path: Path) -> bool:
    """Whether a file holds a JSON object, {} too."""
    try:
        return isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
    except (OSError, ValueError, RecursionError):
        return False


__all__ = ["checkpoint_bytes", "clock_faults", "disk_faults", "is_object", "limit_faults", "place_faults", "read_json",
           "ulimits"]  # fmt: skip
