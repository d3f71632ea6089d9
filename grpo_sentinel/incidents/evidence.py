"""Files that the agent captured inside the trainer: found by their events, checked, taken into the bundle, cleared.

    event `capture` {"path"} ─▶ <state>/spool/<run>/rank-00003/step-812-gradient.safetensors ─▶ bundle: tensors/

A file of the spool is linked into a bundle where one file system holds both: a bundle is written anew many times.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import struct
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from grpo_sentinel.incidents.model import Attached
from grpo_sentinel.incidents.redaction import Samples
from grpo_sentinel.records import EventRecord

MOST_FILES = 64
_KINDS = {".safetensors": ("tensors", "tensors"), ".json": ("captures", "captured")}
_MOST_HEADER = 32 << 20
_KEEP_SECONDS = 7 * 86_400.0


def spool_dir(state_dir: Path) -> Path:
    """Where the agents of this user leave what they captured, unless told otherwise."""
    return state_dir / "spool"


def captured(events: Collection[EventRecord], spool: Path, samples: Samples, missing: dict[str, str]) -> list[Attached]:
    """List the files that events name; one that holds more of the samples than a bundle may is left out and said."""
    found: dict[str, Path] = {}
    for event in events:
        named = event.body.get("paths") or [event.body.get("path")]
        for text in named if isinstance(named, list) else ():
            path = Path(text) if isinstance(text, str) else Path()
            if event.kind == "checkpoint" or path.suffix not in _KINDS or (
                path.suffix == ".json" and event.kind != "capture"
            ):  # fmt: skip
                continue
            found[f"{_KINDS[path.suffix][0]}/rank-{event.rank:05d}-{path.name}"] = path
    out = []
    for name, path in list(found.items())[-MOST_FILES:]:
        if samples != "full" and facts(path).get("samples") == "full" and _has_ids(path):
            missing[name] = f"it holds token ids, and incidents.samples is {samples}"
            continue
        ours = path.is_relative_to(spool)
        out.append(Attached(name=name, source=path, what=_KINDS[path.suffix][1], link=ours))
    if not found:
        missing["tensors"] = "the agent captured none"
    return out


def facts(path: Path) -> dict[str, Any]:
    """Read what a captured file says of itself; {} for any other file."""
    try:
        found = json.loads(_header(path).get("__metadata__", {}).get("sentinel", "{}"))
    except (ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def _has_ids(path: Path) -> bool:
    return any(name.startswith("batch/") and name.endswith(("ids", "labels")) for name in _header(path))


def _header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            body = json.loads(file.read(length)) if length <= _MOST_HEADER else {}
    except (OSError, struct.error, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def clear(spool: Path, run_id: str) -> None:
    """Remove a run's files from the spool that a bundle shares by now; what none took stays for a while."""
    for path in [*(spool / run_id).glob("*/*")]:
        with contextlib.suppress(OSError):
            if path.lstat().st_nlink > 1:
                path.unlink()
    for folder in [*(spool / run_id).glob("*"), spool / run_id]:
        with contextlib.suppress(OSError):
            folder.rmdir()  # unless more is in it


def sweep(spool: Path) -> None:
    """Remove runs whose captures nobody took for a week."""
    try:
        runs = [path for path in spool.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:
        return
    for run in runs:
        try:
            newest = max((path.stat().st_mtime for path in [run, *run.rglob("*")]), default=0.0)
        except OSError:
            continue
        if time.time() - newest > _KEEP_SECONDS:
            shutil.rmtree(run, ignore_errors=True)


__all__ = ["captured", "clear", "facts", "spool_dir", "sweep"]
