"""Notes in a run's directory that someone ended it on purpose, one JSON line each: a death so explained is no alarm.

{"signal": 15, "by": "launcher", "pid": 4711, "wall_ns": 1893456000000000000}

    launcher    `launch` is about to pass the signal on to the command with this pid: explains deaths that follow
    command     how the command with this pid ended, by a signal or with a code: the last word about that process; code
                0 of a launcher explains ranks that went without a word just before
    interrupt   Ctrl-C reached the rank with this pid: explains deaths that follow
    rank        SIGTERM reached the rank: no line here, but text in its own file `rank-00001.sigterm`, put there by a
                handler in C that then lets the signal do what it would have done; explains deaths that follow

A SIGTERM that reached one rank of several, well before the others, ends no run: somebody picked that rank (a host short
of memory, say), and its launcher ended the rest. That first death stays one.

SIGKILL, SIGSEGV and the like explain nothing, also when a signal was passed on before.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo_sentinel.records import RankIdentity

ENDED_NAME = "ended.jsonl"
PEACEFUL = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2})
"""Signals by which people and schedulers end a run."""
_WORDS = {
    "launcher": "forwarded by the launcher",
    "command": "sent to the command",
    "interrupt": "(Ctrl-C)",
    "rank": "sent to the rank",
}
_PATIENT = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})  # a trainer may save and clean up first
_PATIENT_NS, _PROMPT_NS = 600_000_000_000, 5_000_000_000  # others may be handled: what dies later dies of itself
_SLACK_NS = 200_000_000  # between a death and a look at it
_TOGETHER_NS = 80_000_000  # a launcher signals its ranks in one go, and looks for dead ones ten times a second
_LATE_NS = 30_000_000_000  # between a last heartbeat and the end, where nobody watched the death


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One note."""

    signal: int
    by: str  # launcher | command | interrupt | rank
    pid: int
    wall_ns: int
    code: int = 0  # exit code, where no signal ended it

    def words(self, step: int) -> str:
        """Say it, as the detail of a closed segment."""
        if not self.signal:
            return f"ended with exit code {self.code} at step {step}"
        return f"ended by signal {self.signal} {_WORDS.get(self.by, self.by)} at step {step}"


def write_ended(directory: Path, number: int, by: str, pid: int, code: int = 0) -> None:
    """Add a note; safe in a signal handler of Python. Never raises: without a note the death is reported as one."""
    line = json.dumps(asdict(Ended(signal=int(number), by=by, pid=pid, wall_ns=time.time_ns(), code=code))) + "\n"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(directory / ENDED_NAME, flags, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except OSError:
        return


def mark_path(directory: Path, rank: int) -> Path:
    """Name the file in which a rank's handler notes that SIGTERM came; empty as long as none did."""
    return directory / f"rank-{rank:05d}.sigterm"


def read_ended(directory: Path) -> list[Ended]:
    """Read all notes, oldest first; a torn line is left out."""
    try:
        lines = (directory / ENDED_NAME).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [note for note in map(_parse, lines) if note is not None]


def _parse(line: str) -> Ended | None:
    try:
        body = json.loads(line)
        return Ended(
            signal=int(body["signal"]),
            by=str(body["by"]),
            pid=int(body["pid"]),
            wall_ns=int(body["wall_ns"]),
            code=int(body.get("code", 0)),
        )
    except (ValueError, KeyError, TypeError):
        return None


def explain(
    directory: Path, identity: RankIdentity, *, lost_ns: int | None, heartbeat_ns: int, waiting: bool
) -> Ended | None:
    """Find the note that explains why a rank is gone; None when none does.

    `lost_ns`: when it was first seen gone, None when nobody watched; then its last heartbeat stands in. `waiting`:
    `launch` may still have its last word about the process.
    """
    notes = [note for note in read_ended(directory) if note.wall_ns >= identity.created_wall_ns]
    told = _reached(directory, identity)
    if told is not None:
        notes.append(told)
    last_word = next((note for note in notes if note.by == "command" and note.pid == identity.pid), None)
    if last_word is not None and last_word.signal and last_word.signal not in PEACEFUL:
        return None
    passed_on = next((note for note in notes if note.by != "command" and _fits(note, lost_ns, heartbeat_ns)), None)
    if passed_on is None:
        if last_word is not None:
            return last_word if last_word.signal or not last_word.code else None
        return next((note for note in notes if note.by == "command" and not note.signal and not note.code), None)
    if waiting and last_word is None and passed_on.by == "launcher" and passed_on.pid == identity.pid:
        return None
    return passed_on


def _reached(directory: Path, identity: RankIdentity) -> Ended | None:
    """Find out whether SIGTERM reached a rank as one of all of this node's ranks; None when it was picked, or not."""
    own = mark_path(directory, identity.rank)
    marks: dict[Path, int] = {}  # when the signal came, 0: it did not
    try:
        for path in directory.glob("rank-*.sigterm"):
            found = path.stat()
            marks[path] = found.st_mtime_ns if found.st_size else 0
    except OSError:
        return None
    mine = marks.pop(own, 0)
    if mine < identity.created_wall_ns:
        return None
    if marks and not any(identity.created_wall_ns <= other <= mine + _TOGETHER_NS for other in marks.values()):
        return None
    return Ended(signal=int(signal.SIGTERM), by="rank", pid=identity.pid, wall_ns=mine)


def _fits(note: Ended, lost_ns: int | None, heartbeat_ns: int) -> bool:
    if note.signal not in PEACEFUL:
        return False
    if lost_ns is None:
        return heartbeat_ns >= note.wall_ns - _LATE_NS
    within = _PATIENT_NS if note.signal in _PATIENT else _PROMPT_NS
    return note.wall_ns - _SLACK_NS <= lost_ns <= note.wall_ns + within
