"""The only door to SQLite: open for writing, open for reading, bring up to date, set a broken file aside.

WAL with `synchronous=NORMAL`: what was committed survives kill -9 of the writer, and a reader opens while it writes.
A power cut can lose the newest commits, never the file. No memory mapping: a truncated map is a SIGBUS.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
from pathlib import Path

from grpo_sentinel.errors import HistoryError
from grpo_sentinel.history.schema import APPLICATION_ID, MIGRATIONS, VERSION

Connection = sqlite3.Connection
DatabaseError = sqlite3.Error
BUSY_SECONDS = 5.0
_BROKEN = ("malformed", "not a database", "unsupported file format")
_PERHAPS_FULL = ("database or disk is full", "disk I/O error", "unable to open database file")
_ROOM_BYTES = 65536  # SQLite's WAL needs 32 KiB of shared memory beside it
_SIBLINGS = ("", "-wal", "-shm")
_NETWORK_FILE_SYSTEMS = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "fuse.sshfs", "afs", "9p", "wekafs")


def history_path(state_dir: Path, node: str, mountinfo: str | None = None) -> Path:
    """Name the history file of this node inside `state_dir`.

    `history.sqlite` on a local disk. On a network file system, which several nodes may share and where WAL is not
    safe between hosts, every node gets a file of its own: `history-<node>.sqlite`.
    """
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            mountinfo = ""
    kind = file_system_of(state_dir.absolute(), mountinfo)
    if not kind.startswith(_NETWORK_FILE_SYSTEMS):
        return state_dir / "history.sqlite"
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in node) or "node"
    return state_dir / f"history-{safe}.sqlite"


def file_system_of(path: Path, mountinfo: str) -> str:
    """Find the file-system type that holds an absolute path in the text of /proc/self/mountinfo; "" if unknown."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split()
        if not separator or len(fields) < 5 or not right:
            continue
        point = fields[4].replace("\\040", " ")
        if len(point) > best and (path == Path(point) or Path(point) in path.parents):
            best, kind = len(point), right.split()[0]
    return kind


def trouble_with(path: Path, error: BaseException) -> str:
    """Say what SQLite or the system found, and name a full disk: SQLite calls some of them "disk I/O error"."""
    said = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if not full and not any(word in said for word in _PERHAPS_FULL):
        return said
    return f"{said}: the disk of {path.parent} is full" if full or is_full(path) else said


def is_full(path: Path) -> bool:
    """Tell whether the disk of a history has no room left for it; False where that cannot be seen."""
    try:
        space = os.statvfs(path.parent)
    except OSError:
        return False
    return space.f_bavail * space.f_frsize < _ROOM_BYTES


def open_writer(path: Path) -> tuple[Connection, str]:
    """Open or create the history for writing; gives the connection and a note ("" unless something was set aside).

    A broken file is moved beside itself with a note, nothing is deleted. Raises `HistoryError` in one sentence when
    the place cannot be written, the file is newer than this version, or is somebody else's database.
    """
    note = ""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite itself would make it 0644
    except OSError as error:
        raise HistoryError(
            f"cannot write the history {path}: {trouble_with(path, error)}; give a writable directory as state_dir"
        ) from error
    for _attempt in range(2):
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, path)
        except HistoryError:
            connection.close()
            raise
        except sqlite3.Error as error:
            connection.close()
            if not is_broken(error) or note:
                raise HistoryError(
                    f"cannot open the history {path}: {trouble_with(path, error)}; free space or give another state_dir"
                ) from error
            note = set_aside(path, str(error))
            continue
        return connection, note
    raise HistoryError(f"cannot open the history {path}: it broke twice; give another state_dir")


def _prepare(connection: Connection, path: Path) -> None:
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # only takes effect before the first table
    _check_ours(connection, path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA journal_size_limit=16777216")
    connection.execute("PRAGMA cache_size=-2048")
    connection.execute("PRAGMA mmap_size=0")
    migrate(connection)


def _check_ours(connection: Connection, path: Path) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and application != APPLICATION_ID:
        raise HistoryError(f"{path} is a database of another program; give another state_dir")
    if version > VERSION:
        raise HistoryError(
            f"the history {path} has version {version}, this grpo-sentinel knows up to {VERSION}; "
            "upgrade grpo-sentinel or give another state_dir"
        )


def migrate(connection: Connection, migrations: tuple[str, ...] = MIGRATIONS) -> None:
    """Bring a file up to date, one version per transaction; two processes doing so at once do it once."""
    while True:
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version >= len(migrations):
                connection.execute("ROLLBACK")
                return
            for statement in migrations[version].split(";"):
                if statement.strip():
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={version + 1}")
            connection.execute("COMMIT")
        except BaseException:
            rollback(connection)
            raise


def rollback(connection: Connection) -> None:
    """End a failed transaction; a connection that cannot even do that is left as it is."""
    with contextlib.suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def is_broken(error: BaseException) -> bool:
    """Tell a damaged file (set aside) from a passing trouble (full, locked, read-only)."""
    return isinstance(error, sqlite3.DatabaseError) and any(word in str(error) for word in _BROKEN)


def set_aside(path: Path, reason: str) -> str:
    """Move a broken history and its WAL beside itself with a note; gives one line for the log.

    Raises `HistoryError` when it cannot be moved. Deletes nothing.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    target = path.with_name(f"{path.name}.broken-{stamp}")
    counter = 0
    while target.exists():
        counter += 1
        target = path.with_name(f"{path.name}.broken-{stamp}-{counter}")
    try:
        for suffix in _SIBLINGS:
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{path}{suffix}", f"{target}{suffix}")
        note = f"history {path} was broken ({reason}); kept as {target.name}, a new one was begun"
        with contextlib.suppress(OSError):
            target.with_name(target.name + ".txt").write_text(note + "\n", encoding="utf-8")
    except OSError as error:
        raise HistoryError(
            f"the history {path} is broken ({reason}) and cannot be moved: {error.strerror}; move it by hand"
        ) from error
    return note


def open_reader(path: Path) -> Connection:
    """Open the history read-only, also while a writer is at work.

    Raises `HistoryError` when there is none, it is newer, not ours, or not readable.
    """
    if not path.is_file():
        raise HistoryError(f"there is no history at {path}; run the sidecar once or give its state_dir")
    problem = ""
    for option in ("mode=ro", "mode=ro&immutable=1"):
        # immutable: a file on a read-only medium, where the WAL's shared memory cannot be made
        if "immutable" in option and (os.access(path.parent, os.W_OK) or Path(f"{path}-wal").exists()):
            continue
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?{option}", uri=True, timeout=BUSY_SECONDS, isolation_level=None,
            check_same_thread=False,
        )  # fmt: skip
        try:
            _check_ours(connection, path)
            if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                why = (
                    f": the disk of {path.parent} is full; free space there"
                    if is_full(path)
                    else "; run the sidecar once"
                )
                raise HistoryError(f"the history {path} is empty{why}")
            connection.execute("PRAGMA query_only=ON")
            connection.execute("PRAGMA cache_size=-8192")
        except HistoryError:
            connection.close()
            raise
        except sqlite3.Error as error:
            connection.close()
            problem = trouble_with(path, error)
            continue
        return connection
    remedy = "free space there" if problem.endswith("is full") else "check its permissions, or move it if it is broken"
    raise HistoryError(f"cannot read the history {path}: {problem}; {remedy}")
