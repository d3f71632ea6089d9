"""The run's requests, one JSON line each, beside the control file: ids, cooldown and budget survive a restart.

{"request_id": 2, "action": "checkpoint_and_halt", "requested_by": "gradient_nonfinite", "by_rule": true, ...}
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from grpo_sentinel.records import Action

JOURNAL_NAME = "requests.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One request as it was made."""

    request_id: int
    action: Action
    reason: str
    requested_by: str
    by_rule: bool
    wall_ns: int
    finding_ids: tuple[str, ...] = field(default=())


def append(directory: Path, entry: Entry) -> None:
    """Add one line and see it written. Raises `OSError`."""
    line = json.dumps({**asdict(entry), "action": entry.action.name.lower()}) + "\n"
    descriptor = os.open(directory / JOURNAL_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line.encode("utf-8", "backslashreplace"))
    finally:
        os.close(descriptor)


def load(directory: Path) -> list[Entry]:
    """Read all requests of the run, oldest first; [] without a journal, and a torn line is left out."""
    try:
        lines = (directory / JOURNAL_NAME).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [entry for entry in map(_parse, lines) if entry is not None]


def _parse(line: str) -> Entry | None:
    try:
        body = json.loads(line)
        return Entry(
            request_id=int(body["request_id"]),
            action=Action[str(body["action"]).upper()],
            reason=str(body["reason"]),
            requested_by=str(body["requested_by"]),
            by_rule=bool(body["by_rule"]),
            wall_ns=int(body["wall_ns"]),
            finding_ids=tuple(map(str, body["finding_ids"])),
        )
    except (ValueError, KeyError, TypeError):
        return None
