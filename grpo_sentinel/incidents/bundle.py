"""Reads a bundle back, from a folder or a tar.gz: for `show`, `export`, replay, and to carry on after a restart."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.history.codec import finding_from
from grpo_sentinel.incidents.model import About, Attached, Source, State
from grpo_sentinel.incidents.places import ARCHIVE, read_manifest
from grpo_sentinel.records import EventRecord, Finding, Kind, Mode, Sample, StepRecord

_MOST_BYTES = 8 << 30  # an archive that unpacks to more is not ours
_ATTACHED = ("stacks", "collectives", "log", "tensors", "captured")


class Bundle:
    """One bundle in a folder. Raises `SentinelError` in a sentence when it is none, or newer than we are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.manifest = read_manifest(path)
            self.about = _about(self.manifest["incident"])
            _check_files(self.manifest["files"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise SentinelError(f"{error}; `grpo-sentinel incident list` names those that can be read") from error

    def damage(self) -> list[str]:
        """Compare every file with the manifest; says what is missing or changed."""
        out = []
        for entry in self.manifest["files"]:
            path = self.path / str(entry["name"])
            try:
                data = path.read_bytes()
            except OSError as error:
                out.append(f"{entry['name']} cannot be read: {error.strerror}")
                continue
            if hashlib.sha256(data).hexdigest() != entry["sha256"]:
                out.append(f"{entry['name']} was changed after it was written")
        return out

    def source(self) -> Source:
        """Give everything in it. Raises `SentinelError` when its tables are damaged."""
        try:
            told = self._json("findings.json")
            settings = self._json("config.json")
            run, trainer, sentinel = map(_tree, (self._json("run.json"), settings["trainer"], settings["sentinel"]))
            return Source(
                about=self.about,
                findings=tuple(finding_from(body) for body in told["findings"]),
                transitions=tuple(finding_from(body) for body in told["transitions"]),
                records=self.records, events=self.events, samples=self.samples, run=run, trainer=trainer,
                sentinel=sentinel, attached=self._attached(),
                missing=dict(self.manifest.get("missing", {})),
            )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SentinelError(f"{self.path} is damaged: {type(error).__name__}: {error}") from error

    def findings(self) -> tuple[Finding, ...]:
        """The findings, the root first."""
        return self.source().findings

    def records(self) -> Iterator[StepRecord]:
        """Stream the records, rank by rank, in the order in which they were pushed."""
        for path in sorted((self.path / "steps").glob("rank-*.jsonl.gz")):
            yield from self._read(path, _record)

    def events(self) -> Iterator[EventRecord]:
        """Stream the events."""
        yield from self._read(self.path / "events.jsonl", _event)

    def samples(self) -> Iterator[Sample]:
        """Stream the readings of devices and host."""
        yield from self._read(self.path / "device.jsonl.gz", _sample)

    def _read(self, path: Path, make: Callable[[dict[str, Any]], Any]) -> Iterator[Any]:
        try:
            with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
                for line in file:
                    yield make(json.loads(line))
        except FileNotFoundError:
            return
        except (
            OSError,
            EOFError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
            zlib.error,
        ) as error:
            raise SentinelError(f"{path} is damaged: {type(error).__name__}: {error}") from error

    def _json(self, name: str) -> Any:
        return json.loads((self.path / name).read_text(encoding="utf-8"))

    def _attached(self) -> tuple[Attached, ...]:
        files = [entry for entry in self.manifest["files"] if entry["what"] in _ATTACHED]
        return tuple(
            Attached(name=entry["name"], source=self.path / entry["name"], what=entry["what"]) for entry in files
        )


def _check_files(files: Any) -> None:
    """Refuse a list that is none, or that names a place outside the bundle. Raises ValueError in a sentence."""
    if not isinstance(files, list):
        raise ValueError("its manifest lists no files")
    for entry in files:
        if not isinstance(entry, dict) or not {"name", "sha256", "what"} <= entry.keys():
            raise ValueError(f"its manifest has an entry that names no file: {str(entry)[:80]}")
        name = str(entry["name"])
        if "\0" in name or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f"its manifest names {name[:80]!r}, which leads out of it")


def _about(body: dict[str, Any]) -> About:
    return About(**{**body, "state": State(body["state"])})


def _tree(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object of settings, got {type(value).__name__}")
    return value


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def _record(body: dict[str, Any]) -> StepRecord:
    kind, mode = Kind[str(body["kind"]).upper()], Mode[str(body["mode"]).upper()]
    return StepRecord(**{**body, "kind": kind, "mode": mode, "values": _numbers(body["values"])})


def _event(body: dict[str, Any]) -> EventRecord:
    return EventRecord(**body)


def _sample(body: dict[str, Any]) -> Sample:
    return Sample(**{**body, "values": _numbers(body["values"]), "unsupported": tuple(body["unsupported"])})


@contextlib.contextmanager
def open_bundle(path: Path) -> Iterator[Bundle]:
    """Open a folder, or a tar.gz in a temporary folder. Raises `SentinelError` in a sentence."""
    if path.is_dir():
        yield Bundle(path)
        return
    if not path.name.endswith(ARCHIVE):
        raise SentinelError(f"{path} is neither an incident folder nor a {ARCHIVE} of one")
    with tempfile.TemporaryDirectory(prefix="grpo-sentinel-incident-") as place:
        yield Bundle(_unpack(path, Path(place)))


def _unpack(path: Path, place: Path) -> Path:
    """Unpack plain files below one folder and nothing else: no links, no devices, no way out of `place`."""
    total = 0
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                if not member.isfile():
                    if member.isdir():
                        continue
                    raise SentinelError(f"{path} holds {member.name}, which is no plain file: it is not unpacked")
                if name.is_absolute() or ".." in name.parts:
                    raise SentinelError(f"{path} holds {member.name}, which leads out of it: it is not unpacked")
                total += member.size
                if total > _MOST_BYTES:
                    raise SentinelError(f"{path} unpacks to more than {_MOST_BYTES:,} bytes")
                _unpack_file(archive, member, place / name)
    except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
        raise SentinelError(f"{path} cannot be unpacked: {error}") from error
    folders = [entry for entry in place.iterdir() if entry.is_dir()]
    return folders[0] if len(folders) == 1 else place


def _unpack_file(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source = archive.extractfile(member)
    if source is not None:
        with source, target.open("wb") as file:
            while block := source.read(1 << 20):
                file.write(block)


def pack(folder: Path, target: Path) -> None:
    """Write a folder as tar.gz, whole or not at all. Raises `OSError`."""
    partial = target.with_name(f".{target.name}.partial-file")
    try:
        with tarfile.open(partial, "w:gz", compresslevel=6) as archive:
            for file in sorted(path for path in folder.rglob("*") if path.is_file()):
                archive.add(file, f"{folder.name}/{file.relative_to(folder)}", recursive=False, filter=_anonymous)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


__all__ = ["Bundle", "open_bundle", "pack"]
