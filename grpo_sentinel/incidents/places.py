"""The folder of bundles: atomic swaps, what an interrupted one left behind, sizes, and the budget."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import time
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from grpo_sentinel.incidents.model import SCHEMA, SCHEMA_VERSION

MANIFEST = "manifest.json"
ARCHIVE = ".tar.gz"
_PARTIAL, _OLD = ".partial", ".old"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_SWAP_SECONDS, _BUILD_SECONDS = 10.0, 3600.0
_OPEN_SECONDS = 86_400.0  # a bundle that claims to be open and was not written for so long was given up


def incidents_dir(state_dir: Path) -> Path:
    """Where bundles are kept."""
    return state_dir / "incidents"


def begin(target: Path) -> Path:
    """Make the empty folder in which a bundle is built; its name begins with "." until it is whole."""
    partial = target.with_name(f".{target.name}{_PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700, parents=True)
    return partial


def put_in_place(partial: Path, target: Path) -> None:
    """Give a finished folder its name; an older version of it is exchanged in one step where the kernel can."""
    old = target.with_name(f".{target.name}{_OLD}")
    shutil.rmtree(old, ignore_errors=True)
    if not target.exists():
        partial.rename(target)
    elif _exchange(partial, target):
        partial.rename(old)
    else:
        target.rename(old)  # between these two renames only `old` is there: `recover` puts it back
        partial.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    _flush(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    try:
        library = ctypes.CDLL(None, use_errno=True)
        call = library.renameat2
    except (OSError, AttributeError):
        return False
    return bool(call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)


def _flush(directory: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def recover(root: Path) -> None:
    """Finish what a kill interrupted: put back what had no successor yet, remove what was half made.

    Only what has been so for a while: another daemon may be at work in the same folder.
    """
    for path in _entries(root):
        if path.name.startswith(".") and path.name.endswith(_OLD) and _age(path) > _SWAP_SECONDS:
            target = root / path.name[1 : -len(_OLD)]
            if target.exists():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    path.rename(target)
        elif path.name.startswith(".") and path.name.endswith(_PARTIAL) and _age(path) > _BUILD_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _age(path: Path) -> float:
    """Seconds since the last change of a folder's own entry (its ctime: a rename counts)."""
    try:
        return time.time() - path.stat().st_ctime
    except OSError:
        return 0.0


def bundles(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield every whole bundle that is a folder, with its manifest; what is none is passed over."""
    for path in _entries(root):
        if not path.name.startswith(".") and path.is_dir():
            with contextlib.suppress(OSError, ValueError):
                yield path, read_manifest(path)


def archives(root: Path) -> list[Path]:
    """List the bundles that are packed."""
    return [path for path in _entries(root) if path.name.endswith(ARCHIVE) and not path.name.startswith(".")]


def _entries(root: Path) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(root))
    except OSError:
        return []


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a bundle's manifest. Raises `ValueError` in a sentence when it is none of ours or newer than we are."""
    try:
        body = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{folder} is no incident bundle: {MANIFEST} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ValueError(f"{folder}: {MANIFEST} is damaged: {error}") from error
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        raise ValueError(f"{folder} is no incident bundle")
    if not isinstance(body.get("version"), int) or body["version"] > SCHEMA_VERSION:
        raise ValueError(
            f"{folder} was written by a newer grpo-sentinel (version {body.get('version')}); upgrade to read it"
        )
    return body


def size_of(path: Path) -> int:
    """Bytes of a file or folder; what cannot be read counts as nothing."""
    if path.is_file():
        return path.stat().st_size
    total = 0
    for directory, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(directory, name), follow_symlinks=False).st_size
    return total


def enforce(root: Path, max_bytes: int, active: Set[str]) -> tuple[int, int]:
    """Delete the oldest closed bundles until all fit; gives bytes left and bundles deleted.

    Never one named in `active`, and none that another daemon has open.
    """
    folders = list(bundles(root))
    sizes = {path: size_of(path) for path in [*(path for path, _ in folders), *archives(root)]}
    in_use = {path for path, manifest in folders if path.name in active or _is_open(path, manifest)}
    total, deleted = sum(sizes.values()), 0
    for path in sorted(sizes.keys() - in_use, key=lambda path: path.stat().st_mtime_ns):
        if total <= max_bytes:
            break
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        total -= sizes[path]
        deleted += 1
    return total, deleted


def _is_open(path: Path, manifest: dict[str, Any]) -> bool:
    return bool(manifest["incident"].get("state") == "open" and _age(path / MANIFEST) < _OPEN_SECONDS)


__all__ = [
    "ARCHIVE", "MANIFEST", "archives", "begin", "bundles", "enforce", "incidents_dir", "put_in_place", "read_manifest",
    "recover", "size_of",
]  # fmt: skip
