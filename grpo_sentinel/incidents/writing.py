"""Writes a bundle from a `Source`: data first, then the reports made from it, the manifest last, all of it or nothing.

manifest.json              schema, facts, files with size and SHA-256, what is missing and why
report.md  report.html     for people; the page needs no network and holds no script
findings.json              newest state of every finding, and every transition
run.json                   ranks, requests, checkpoints, node, versions
config.json                settings of trainer and sentinel, secrets removed
steps/rank-00003.jsonl.gz  one record a line, as the rank pushed it; NaN and infinities as text
events.jsonl  device.jsonl.gz  stacks/  collectives/  logs/  tensors/  captures/
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from grpo_sentinel._version import __version__
from grpo_sentinel.history.codec import dumps, plain
from grpo_sentinel.incidents.digest import Digest, plots_for
from grpo_sentinel.incidents.model import SCHEMA, SCHEMA_VERSION, Attached, Source
from grpo_sentinel.incidents.page import page
from grpo_sentinel.incidents.places import MANIFEST, begin, put_in_place
from grpo_sentinel.incidents.redaction import Samples, event_for
from grpo_sentinel.incidents.report import markdown
from grpo_sentinel.records import StepRecord
from grpo_sentinel.scrub import without_secrets

MOST_EVENTS = 20_000
MOST_SAMPLES = 20_000
Item = TypeVar("Item")


@dataclass(slots=True)
class _Build:
    """A bundle on its way."""

    folder: Path
    until: float  # monotonic seconds
    attach_bytes: int  # what may still be attached
    missing: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)  # name -> what it is

    def within(self, items: Iterable[Item], what: str, most: int) -> Iterator[Item]:
        """Pass items on until there are too many or the time is up, which is noted as missing."""
        for count, item in enumerate(items):
            if count >= most:
                self.missing[what] = f"cut after {most:,}"
                return
            if count % 64 == 0 and time.monotonic() > self.until:
                self.missing[what] = f"cut after {count:,}: the time for one bundle was up"
                return
            yield item

    def text(self, name: str, what: str, text: str) -> None:
        """Write one text file."""
        self.data(name, what, text.encode("utf-8", "backslashreplace"))

    def data(self, name: str, what: str, data: bytes) -> None:
        """Write one file and have it on the disk."""
        path = self.folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.files[name] = what

    def link(self, name: str, what: str, source: object) -> bool:
        """Let the bundle share a file that nobody changes; False where that cannot be."""
        path = self.folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.link(str(source), path, follow_symlinks=False)
        except OSError:
            return False
        self.files[name] = what
        return True


def write_bundle(
    source: Source, target: Path, samples: Samples, *, seconds: float = 20.0, attach_bytes: int = 256 << 20,
    redacted: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Write or replace the bundle at `target` and give its manifest.

    Takes about `seconds` at most: what does not fit in is left out and said. Raises `OSError` when the disk does not
    take it; the version that was there before then stays.
    """
    partial = begin(target)
    build = _Build(partial, time.monotonic() + seconds, attach_bytes, dict(source.missing))
    try:
        manifest = _fill(build, source, samples, redacted)
        put_in_place(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest


def _fill(build: _Build, source: Source, samples: Samples, redacted: bool) -> dict[str, Any]:
    digest = Digest(plots_for(source.findings))
    build.text("findings.json", "findings", dumps({"findings": source.findings, "transitions": source.transitions}))
    build.text("run.json", "run", dumps(source.run))
    settings = {"trainer": without_secrets(source.trainer), "sentinel": without_secrets(source.sentinel)}
    build.text("config.json", "configuration", dumps(settings))
    _write_steps(build, source, digest)
    _write_events(build, source, samples)
    readings = build.within(source.samples(), "device", MOST_SAMPLES)
    build.data("device.jsonl.gz", "device and host", gzip.compress(_lines(readings)))
    attached = tuple(one for one in source.attached if _attach(build, one))
    if not digest.records:
        build.missing.setdefault("steps", "no record of these steps was found")
    told = replace(source, attached=attached, missing=build.missing)
    build.text("report.md", "report", markdown(told, digest))
    build.text("report.html", "report", page(told, digest))
    manifest = {
        "schema": SCHEMA, "version": SCHEMA_VERSION, "sentinel_version": __version__, "incident": plain(source.about),
        "findings": [finding.finding_id for finding in source.findings], "samples": samples, "redacted": redacted,
        "steps": {str(rank): list(span) for rank, span in sorted(digest.steps.items())}, "records": digest.records,
        "missing": build.missing,
        "files": [_described(build.folder / name, name, what) for name, what in sorted(build.files.items())],
    }  # fmt: skip
    build.text(MANIFEST, "manifest", dumps(manifest))
    return manifest


def _write_steps(build: _Build, source: Source, digest: Digest) -> None:
    """Write one file per rank while the digest looks at every record; nothing is held but what is plotted."""
    folder = build.folder / "steps"
    folder.mkdir(mode=0o700)
    open_files: dict[int, gzip.GzipFile] = {}
    with ExitStack() as stack:
        for record in build.within(source.records(), "steps", 10_000_000):
            file = open_files.get(record.rank)
            if file is None:
                name = f"steps/rank-{record.rank:05d}.jsonl.gz"
                file = stack.enter_context(gzip.GzipFile(build.folder / name, "wb", compresslevel=3))
                open_files[record.rank] = file
                build.files[name] = "steps"
            file.write(_line(record))
            digest.add(record)


def _line(record: StepRecord) -> bytes:
    """Write one record; the encoder's own speed where all is finite, which is nearly always."""
    body = {
        "run_id": record.run_id, "rank": record.rank, "sequence": record.sequence, "step": record.step,
        "kind": record.kind.name.lower(), "mode": record.mode.name.lower(), "micro_batch": record.micro_batch,
        "generation": record.generation, "monotonic_ns": record.monotonic_ns, "wall_ns": record.wall_ns,
        "values": record.values,
    }  # fmt: skip
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    except (ValueError, TypeError):
        return dumps(record).encode() + b"\n"


def _write_events(build: _Build, source: Source, samples: Samples) -> None:
    kept = (event_for(event, samples) for event in build.within(source.events(), "events", MOST_EVENTS))
    build.data("events.jsonl", "events", _lines(event for event in kept if event is not None))


def _lines(items: Iterable[Any]) -> bytes:
    out = io.BytesIO()
    for item in items:
        out.write(dumps(item).encode() + b"\n")
    return out.getvalue()


def _attach(build: _Build, one: Attached) -> bool:
    try:
        size = len(one.source) if isinstance(one.source, bytes) else one.source.stat().st_size
        if size > build.attach_bytes:
            build.missing[one.name] = f"{size:,} bytes are more than the bundle may still take ({build.attach_bytes:,})"
            return False
        if one.link and build.link(one.name, one.what, one.source):
            build.attach_bytes -= size
            return True
        data = one.source if isinstance(one.source, bytes) else one.source.read_bytes()
    except OSError as error:
        build.missing[one.name] = f"cannot be read: {error.strerror}"
        return False
    build.attach_bytes -= size
    build.data(one.name, one.what, data)
    return True


def _described(path: Path, name: str, what: str) -> dict[str, Any]:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"name": name, "what": what, "bytes": path.stat().st_size, "sha256": digest.hexdigest()}


__all__ = ["write_bundle"]
