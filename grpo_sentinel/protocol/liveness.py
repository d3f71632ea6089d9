"""Alive or dead, also across pid namespaces: a record lock that the kernel drops with the process, and a second sign.

The writer holds `fcntl.lockf` on `rank-N.alive`, opened once and never mapped. POSIX drops that lock when the owning
process closes ANY descriptor of that file, so a process that holds a lock answers for it from memory (`_held`) and
never opens the file again. Forked children do not inherit the lock.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

from grpo_sentinel.errors import SegmentError
from grpo_sentinel.protocol.identity import boot_id, parse_stat, pid_namespace
from grpo_sentinel.records import Liveness, RankIdentity

_FLOCK = struct.Struct("@hhqqi4x")  # struct flock on 64-bit Linux: type, whence, start, length, pid
_Key = tuple[int, int]
_held: dict[_Key, list[int]] = {}  # files locked by this process -> descriptors that must stay open as long
_TOKEN_BYTES = 256


def _token(identity: RankIdentity) -> bytes:
    """Text in the lock file that says for which writer the lock speaks."""
    return f"{identity.created_wall_ns} {identity.pid} {identity.pid_start_ticks} {identity.pid_namespace}\n".encode()


def _key(found: os.stat_result) -> _Key:
    return found.st_dev, found.st_ino


def _forget_in_child() -> None:
    """A forked child holds none of its parent's locks; closing its copies of the descriptors harms nobody."""
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


class AliveLock:
    """The writer's side: holds the lock until `release` or death."""

    def __init__(self, path: Path, identity: RankIdentity, gid: int | None = None) -> None:
        """Take the lock. Raises `SegmentError` when another living process, or this one, already holds it."""
        taken = f"{path.name.removesuffix('.alive')} in {path.parent} is already written by a living process: "
        taken += "give each run its own GRPO_SENTINEL_RUN_ID and each process its own RANK."
        try:
            if _key(os.stat(path)) in _held:
                raise SegmentError(taken)
        except OSError:
            pass  # not there yet
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o600 if gid is None else 0o640)
        except OSError as error:
            raise SegmentError(
                f"{path} cannot be created ({error.strerror}): free space there, or set GRPO_SENTINEL_DIR."
            ) from error
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(descriptor, 0o600 if gid is None else 0o640)
            if gid is not None:
                os.fchown(descriptor, -1, gid)
            os.pwrite(descriptor, _token(identity).ljust(_TOKEN_BYTES), 0)
        except BlockingIOError as error:
            os.close(descriptor)
            raise SegmentError(taken) from error
        except OSError as error:
            os.close(descriptor)
            raise SegmentError(
                f"{path} cannot be written and locked ({error.strerror}): free space there, or set GRPO_SENTINEL_DIR."
            ) from error
        self._key = _key(os.fstat(descriptor))
        _held[self._key] = [descriptor]

    def release(self) -> None:
        """Give the lock back; does nothing in a forked child, which never held it."""
        for descriptor in _held.pop(self._key, []):
            with suppress(OSError):
                os.close(descriptor)


class AliveProbe:
    """A reader's side for one writer: is its lock still held?"""

    def __init__(self, path: Path, identity: RankIdentity) -> None:
        self._path, self._token = path, _token(identity)
        self._descriptor = -1
        self._key: _Key = (-1, -1)

    def held(self) -> bool:
        """Tell whether the process that wrote this segment still holds its lock. Never disturbs the lock."""
        try:
            found = os.stat(self._path)
        except OSError:
            return False
        if self._descriptor >= 0 and _key(found) != self._key:
            self.close()
        own = _held.get(_key(found))
        if own is None and self._descriptor < 0:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                return False
            self._key = _key(found)
        descriptor = own[0] if own else self._descriptor
        try:
            if os.pread(descriptor, _TOKEN_BYTES, 0).rstrip(b" ") != self._token:
                return False  # a later writer has taken the file over: ours must have let go
            if own:
                return True
            answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except OSError:
            return False
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        """Close the descriptor, or hand it to the lock's owner when that is this very process."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        if self._key in _held:
            _held[self._key].append(descriptor)  # closing it here would drop the lock
        else:
            os.close(descriptor)


def process_gone(identity: RankIdentity) -> bool | None:
    """Tell whether the writer's process is gone (a zombie counts); None when it cannot be seen from here."""
    if identity.boot_id != boot_id():
        return True if identity.host == socket.gethostname() else None  # before a reboot, or on another host
    if not identity.pid_namespace or identity.pid_namespace != pid_namespace():
        return None
    try:
        text = Path(f"/proc/{identity.pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, ticks = parse_stat(text)
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (OSError, ValueError):
        return None
    return state in "ZX" or (identity.pid_start_ticks != 0 and ticks != identity.pid_start_ticks)


def process_stopped(identity: RankIdentity) -> bool:
    """Tell whether the writer's process is there and stopped (SIGSTOP); False when that cannot be seen from here."""
    if identity.boot_id != boot_id() or identity.pid_namespace != pid_namespace():
        return False
    try:
        text = Path(f"/proc/{identity.pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, ticks = parse_stat(text)
    except (OSError, ValueError):
        return False
    return state == "T" and (identity.pid_start_ticks == 0 or ticks == identity.pid_start_ticks)


def judge(*, closed: bool, held: bool, gone: bool | None, heartbeat_age_s: float, dead_seconds: float) -> Liveness:
    """Combine the signs: a free lock alone kills nobody, it takes the missing process or a stopped heartbeat."""
    if closed:
        return Liveness.CLOSED
    if held or gone is False:
        return Liveness.ALIVE
    if gone or heartbeat_age_s > dead_seconds:
        return Liveness.DEAD
    return Liveness.UNKNOWN
