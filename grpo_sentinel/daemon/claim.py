"""One daemon per run directory: a lock that dies with its holder, and a note that tells others where it answers.

<run>/daemon.lock     flock, held for the daemon's life
<run>/daemon.json     0600: {"pid": 71, "url": "http://127.0.0.1:9477", "act_token": "...", "started_wall_ns": ...}
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo_sentinel.protocol.watched import LOCK_NAME
from grpo_sentinel.protocol.watched import is_watched as is_claimed

NOTE_NAME = "daemon.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonNote:
    """Where the daemon of a run answers. `url` is "" when it serves no HTTP, `page` opens it, read token and all."""

    pid: int
    url: str
    act_token: str
    started_wall_ns: int
    page: str = ""


class Claim:
    """The right to watch one run and to write its control file; released by `release` or by death."""

    def __init__(self, directory: Path, descriptor: int) -> None:
        self.directory = directory
        self._descriptor = descriptor

    @classmethod
    def take(cls, directory: Path) -> Claim | None:
        """Claim a run directory; None when another process holds it. Raises `OSError` when it cannot be written."""
        descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return cls(directory, descriptor)

    def publish(self, note: DaemonNote) -> None:
        """Write where the daemon answers, readable by this user only. Raises `OSError`."""
        draft = self.directory / f".{NOTE_NAME}.new"
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(note), file)
        draft.replace(self.directory / NOTE_NAME)

    def release(self) -> None:
        """Take the note away and let the run go."""
        with contextlib.suppress(OSError):
            (self.directory / NOTE_NAME).unlink()
        os.close(self._descriptor)


def read_note(directory: Path) -> DaemonNote | None:
    """Read where the daemon of a run answers; None when none watches it, also when a dead one left its note."""
    if not is_claimed(directory):
        return None
    try:
        body = json.loads((directory / NOTE_NAME).read_text(encoding="utf-8"))
        return DaemonNote(
            pid=int(body["pid"]),
            url=str(body["url"]),
            act_token=str(body["act_token"]),
            started_wall_ns=int(body["started_wall_ns"]),
            page=str(body.get("page", "")),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


__all__ = ["LOCK_NAME", "NOTE_NAME", "Claim", "DaemonNote", "is_claimed", "read_note"]
