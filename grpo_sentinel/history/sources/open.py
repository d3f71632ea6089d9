"""Finds out what a path is, and gives the runs in it. What tells is the content first, the name second."""

from __future__ import annotations

import gzip
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from grpo_sentinel.history.logs.lines import SUFFIXES
from grpo_sentinel.history.sources.base import GZIP, TORN, Source, SourceError
from grpo_sentinel.history.sources.state import open_state
from grpo_sentinel.history.sources.stored import MAGIC, open_history
from grpo_sentinel.history.sources.table import looks_like_csv, looks_like_json_lines, open_csv, open_jsonl
from grpo_sentinel.history.sources.tensorboard import open_events
from grpo_sentinel.history.sources.text import open_text

KINDS = "our history, an incident, trainer_state.json, TensorBoard events, CSV, JSON lines, or a trainer's text log"
_EVENTS = "tfevents"
_HEAD = 1 << 16


def open_path(path: Path, run_id: str | None = None) -> list[Source]:
    """Give the runs of a file or directory, without reading them. Raises `SourceError` in a sentence.

    `run_id` chooses in a history: a run's id, or `all`; None is the newest.
    """
    if path.is_dir():
        return _folder(path, run_id)
    if not path.exists():
        raise SourceError(f"there is no {path}; give {KINDS}")
    head = _head(path)
    if head.startswith(MAGIC):
        return open_history(path, run_id)
    if _EVENTS in path.name:
        return [open_events([path])]
    name = path.name.removesuffix(".gz")
    if name.endswith((".csv", ".tsv")) or looks_like_csv(head):
        return [open_csv(path)]
    if name.endswith("trainer_state.json") or _is_state(head):
        return [open_state(path)]
    if name.endswith(".jsonl") or looks_like_json_lines(head):
        return [open_jsonl(path)]
    if b"\x00" in head[:4096]:
        raise SourceError(f"{path} is a binary file of no kind that can be replayed; give {KINDS}")
    return [open_text(path)]


def _folder(path: Path, run_id: str | None) -> list[Source]:
    """A directory of event files by run, of histories, of a checkpoint's state, or of logs: the first of these."""
    events = sorted(one for one in path.rglob(f"*{_EVENTS}*") if one.is_file())
    if events:
        return [open_events(list(group)) for _, group in groupby(events, key=lambda one: one.parent)]
    for pattern, limit in (("*.sqlite", None), ("trainer_state.json", None), ("checkpoint-*/trainer_state.json", 1)):
        found = sorted(path.glob(pattern), key=_age)[:limit]
        if found:
            return [source for one in found for source in open_path(one, run_id)]
    logs = sorted(one for one in path.rglob("*") if one.is_file() and one.suffix in SUFFIXES)
    if not logs:
        raise SourceError(f"nothing in {path} can be replayed; give {KINDS}")
    return [source for one in logs for source in open_path(one, run_id)]


def _age(path: Path) -> float:
    """Newest first: a later checkpoint's state holds all of the earlier ones."""
    return -path.stat().st_mtime


def _head(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
        if head.startswith(GZIP):
            head = _unpacked_head(path)
    except OSError as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"cannot read {path}: {reason}; give a readable file") from error
    return head


def _unpacked_head(path: Path) -> bytes:
    """Unpack the beginning of an archive, as far as it goes."""
    head = b""
    with gzip.open(path, "rb") as unpacked, suppress(*TORN):
        while len(head) < _HEAD and (piece := unpacked.read1(4096)):
            head += piece
    return head


def _is_state(head: bytes) -> bool:
    return head.lstrip().startswith(b"{") and b'"log_history"' in head


__all__ = ["KINDS", "open_path"]
