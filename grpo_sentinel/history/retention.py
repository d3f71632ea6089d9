"""Keep the history within its days and bytes, a bounded piece of work at a time.

Age: whole runs not seen for `retention_days` go. Size: the oldest raw records go first (their rollups stay, so old
curves can still be drawn), then samples, then events and transitions, then rollups. Findings and requests of a run go
only with the run. Freed pages are given back to the file system.
"""

from __future__ import annotations

from grpo_sentinel.history.database import Connection
from grpo_sentinel.history.schema import RUN_TABLES

CHUNK_ROWS = 2000
_BY_SIZE = ("records", "samples", "events", "transitions", "rollups")
_DAY_NS = 86_400 * 10**9


def live_bytes(connection: Connection) -> int:
    """Bytes of the pages in use, free pages of the file excluded."""
    page = connection.execute("PRAGMA page_size").fetchone()[0]
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    free = connection.execute("PRAGMA freelist_count").fetchone()[0]
    return int(page * (pages - free))


def prune(connection: Connection, *, now_ns: int, retention_days: float, max_bytes: int) -> tuple[int, bool]:
    """Delete at most `CHUNK_ROWS` rows that are too old or too many, inside the caller's transaction.

    Gives the number of deleted rows and whether more remains to do.
    """
    oldest = now_ns - int(retention_days * _DAY_NS)
    run = connection.execute("SELECT id FROM runs WHERE seen_ns<? ORDER BY seen_ns LIMIT 1", (oldest,)).fetchone()
    if run is not None:
        return _delete_run(connection, run[0]), True
    if live_bytes(connection) <= max_bytes:
        return 0, False
    for table in _BY_SIZE:
        deleted = connection.execute(
            f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} ORDER BY id LIMIT ?)",
            (CHUNK_ROWS,),
        ).rowcount
        if deleted:
            return deleted, True
    return 0, False


def _delete_run(connection: Connection, run: int) -> int:
    for table in RUN_TABLES:
        column = "rank" if table == "ranks" else "id"
        deleted = connection.execute(
            f"DELETE FROM {table} WHERE run=? AND {column} IN (SELECT {column} FROM {table} WHERE run=? LIMIT ?)",
            (run, run, CHUNK_ROWS),
        ).rowcount
        if deleted:
            return deleted
    return connection.execute("DELETE FROM runs WHERE id=?", (run,)).rowcount


def give_back(connection: Connection) -> None:
    """Return some free pages to the file system; outside any transaction."""
    connection.execute("PRAGMA incremental_vacuum(512)").fetchall()
