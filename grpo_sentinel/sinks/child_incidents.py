"""Which incident bundles a tracker has not got yet: those that are closed, and at the very end those still open.

    <state_dir>/incidents/<bundle>/manifest.json       written as a whole and swapped in at once; or <bundle>.tar.gz
    <state_dir>/sinks/<tracker>-incidents.txt          "<bundle> <updated>" of each that the tracker has confirmed

The list outlives the process: a bundle that closed when the sidecar had no time left is sent by the next one. Bundles
from before the tracker was first switched on are left where they are.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOOK_SECONDS = 5.0
MAX_REMEMBERED = 10_000
MAX_MANIFEST_BYTES = 4_000_000
MAX_BUNDLE_BYTES = 500_000_000  # a larger one is left on disk


class IncidentWatch:
    """Gives lines for bundles; `confirmed` remembers what the tracker took. Raises nothing."""

    def __init__(self, state_dir: Path, tracker: str, node: str, wall_ns: int) -> None:
        self._root, self._node = state_dir / "incidents", node
        self._list = state_dir / "sinks" / f"{tracker}-incidents.txt"
        self._since_ns = wall_ns
        self._known: set[str] = set()
        self._seen: dict[Path, tuple[int, dict[str, Any] | None]] = {}  # what a manifest said, by its time of change
        self._flying: dict[int, str] = {}
        self.too_large = 0
        self._read()

    def _read(self) -> None:
        try:
            first, *rest = self._list.read_text(encoding="utf-8").splitlines()
            self._since_ns, self._known = int(first), set(rest[-MAX_REMEMBERED:])
        except (OSError, ValueError):
            self._append(str(self._since_ns))

    def _append(self, line: str) -> None:
        try:
            self._list.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._list.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError:  # a tracker takes a bundle twice rather than not at all
            return

    def lines(self, *, also_open: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield a key and a line for every bundle of this node that is due."""
        for folder in self._folders():
            about = self._about(folder)
            if about is None or about.get("node") != self._node:
                continue
            if int(about.get("opened_wall_ns") or 0) < self._since_ns:
                continue
            if about.get("state") == "open" and not also_open:
                continue
            key = f"{folder.name} {about.get('updated_wall_ns')}"
            if key in self._known or key in self._flying.values():
                continue
            if _size(folder) > MAX_BUNDLE_BYTES:
                self.too_large += 1
                self._known.add(key)
                continue
            yield key, {
                "type": "incident", "run_id": about.get("run_id", ""), "node": self._node, "path": str(folder),
                "incident_id": about.get("incident_id", folder.name), "title": about.get("title", ""),
                "onset_step": about.get("onset_step"), "last_step": about.get("last_step"),
            }  # fmt: skip

    def _folders(self) -> list[Path]:
        try:
            return sorted(Path(entry.path) for entry in os.scandir(self._root) if not entry.name.startswith("."))
        except OSError:
            return []

    def _about(self, folder: Path) -> dict[str, Any] | None:
        try:
            changed = folder.stat().st_mtime_ns
        except OSError:
            return None
        if folder not in self._seen or self._seen[folder][0] != changed:
            self._seen[folder] = changed, _read_about(folder)
        return self._seen[folder][1]

    def sent(self, key: str, number: int) -> None:
        """Note under which number a bundle's line is on its way."""
        self._flying[number] = key

    def failed(self, number: int) -> None:
        """Leave a bundle that was not taken to the next process."""
        key = self._flying.pop(number, None)
        if key is not None:
            self._known.add(key)

    def confirmed(self, number: int) -> None:
        """Remember what the tracker has taken, up to a number."""
        for sent in [one for one in self._flying if one <= number]:
            key = self._flying.pop(sent)
            self._known.add(key)
            self._append(key)


def _read_about(folder: Path) -> dict[str, Any] | None:
    try:
        if folder.is_dir():
            text = (folder / "manifest.json").read_bytes()
        else:
            text = _packed_manifest(folder)
        about = json.loads(text)["incident"]
    except (OSError, ValueError, KeyError, TypeError, tarfile.TarError, EOFError):
        return None
    return about if isinstance(about, dict) else None


def _packed_manifest(archive: Path) -> bytes:
    if not archive.name.endswith(".tar.gz"):
        raise ValueError("no bundle")
    with tarfile.open(archive) as packed:
        for member in packed:
            if member.isfile() and Path(member.name).name == "manifest.json" and member.size < MAX_MANIFEST_BYTES:
                file = packed.extractfile(member)
                return file.read() if file is not None else b""
    raise ValueError("no manifest")


def _size(folder: Path) -> int:
    if folder.is_file():
        return folder.stat().st_size
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(directory, name), follow_symlinks=False).st_size
            except OSError:
                continue
    return total
