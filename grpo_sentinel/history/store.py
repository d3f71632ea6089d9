"""The writer of the history: buffers batches, commits them once a second, keeps its size, never raises while writing.

write(batch) -> encode -> pending -> one transaction (records and cursors together) -> prune
                              └ a commit fails: kept, tried again, oldest dropped above a bound, counted
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from pathlib import Path

from grpo_sentinel.clock import Clock, SystemClock
from grpo_sentinel.config import HistoryConfig
from grpo_sentinel.errors import HistoryError
from grpo_sentinel.history import database, retention
from grpo_sentinel.history.rows import Rows, encode
from grpo_sentinel.history.writing import RowWriter
from grpo_sentinel.views import SinkBatch

log = logging.getLogger(__name__)

MAX_PENDING_ROWS = 20_000  # about 20 MB of records while the disk does not take them
MAX_PENDING_BATCHES = 4_000
RETRY_SECONDS = 5.0
PRUNE_SECONDS = 60.0


class HistoryStore:
    """Write batches of one or more runs into a SQLite file.

    The constructor raises `HistoryError` when the file cannot be used at all. `write`, `tick` and `close` never raise
    for the disk's sake: a full disk, a lock or a broken file costs what does not fit in memory, and is counted.
    Safe to call from several threads.
    """

    def __init__(self, path: str | Path, config: HistoryConfig | None = None, clock: Clock | None = None) -> None:
        self.path = Path(path)
        self._config = config or HistoryConfig()
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._pending: deque[Rows] = deque()
        self._pending_rows = 0
        self._idle: dict[str, Rows] = {}  # newest states of runs whose newest turn had nothing to store
        self._db: database.Connection | None = None
        self._counts = {
            "rows_total": 0, "commits_total": 0, "errors_total": 0, "dropped_rows_total": 0, "dropped_batches_total": 0,
            "unencodable_total": 0, "pruned_rows_total": 0, "set_aside_total": 0,
        }  # fmt: skip
        self._trouble = ""
        self._next_flush_ns = 0
        self._next_prune_ns = 0
        self._open()

    def _open(self) -> None:
        self._db, note = database.open_writer(self.path)
        self._inode = os.stat(self.path).st_ino
        self._writer = RowWriter(self._db)
        if note:
            self._counts["set_aside_total"] += 1
            log.warning("%s", note)

    def write(self, batch: SinkBatch) -> None:
        """Take a batch; commits when `flush_seconds` have passed, at once for findings and requests."""
        rows = encode(batch)
        with self._lock:
            self._counts["unencodable_total"] += rows.unencodable
            self._append(rows)
            self._pending_rows += len(rows)
            self._bound_pending()
            if rows.findings or rows.request is not None:
                self._next_flush_ns = min(self._next_flush_ns, self._retry_ns())
            self._flush_if_due()

    def tick(self) -> None:
        """Commit what is due; called while no batch comes."""
        with self._lock:
            self._flush_if_due()

    def flush(self) -> bool:
        """Commit everything now; False when the disk did not take it (it is kept and tried again)."""
        with self._lock:
            return self._commit()

    def close(self) -> None:
        """Commit, fold the WAL into the file, and let go of it. What cannot be committed is counted as dropped."""
        with self._lock:
            if self._db is None:
                return
            self._commit()
            if self._pending_rows:
                log.error("history %s: %d rows could not be written and are lost (%s); the rings still hold the last "
                          "steps", self.path, self._pending_rows, self._trouble)  # fmt: skip
            self._counts["dropped_rows_total"] += self._pending_rows
            self._counts["dropped_batches_total"] += len(self._pending)
            self._pending.clear()
            self._idle.clear()
            self._pending_rows = 0
            self._release()

    def health(self) -> dict[str, float]:
        """Numbers about itself: totals, rows waiting, whether the last commit failed, bytes on disk."""
        out = {name: float(value) for name, value in self._counts.items()}
        out["pending_rows"] = float(self._pending_rows)
        out["failing"] = 1.0 if self._trouble else 0.0
        size = 0
        for suffix in ("", "-wal"):
            try:
                size += os.stat(f"{self.path}{suffix}").st_size
            except OSError:
                continue
        out["bytes"] = float(size)
        return out

    @property
    def trouble(self) -> str:
        """Why the newest commit failed, "" when it did not."""
        return self._trouble

    def _retry_ns(self) -> int:
        return self._next_flush_ns if self._trouble else 0

    def _append(self, rows: Rows) -> None:
        idle = self._idle.pop(rows.run_id, None)
        if idle is not None:
            rows.ranks = {**idle.ranks, **rows.ranks}
            rows.context = rows.context or idle.context
        if len(rows):
            self._pending.append(rows)
        else:
            self._idle[rows.run_id] = rows  # an idle turn brings only states, and the next turn brings them again

    def _bound_pending(self) -> None:
        while len(self._pending) > MAX_PENDING_BATCHES or (
            self._pending_rows > MAX_PENDING_ROWS and len(self._pending) > 1
        ):
            lost = self._pending.popleft()
            self._pending_rows -= len(lost)
            self._counts["dropped_rows_total"] += len(lost)
            self._counts["dropped_batches_total"] += 1

    def _flush_if_due(self) -> None:
        if self._clock.monotonic_ns() >= self._next_flush_ns and self._work():
            self._commit()

    def _work(self) -> bool:
        return bool(self._pending or self._idle) or self._writer.behind

    def _commit(self) -> bool:
        now = self._clock.monotonic_ns()
        try:
            if self._db is not None and self._replaced():
                self._release()
            if self._db is None:
                self._open()
            if self._work():
                self._write_pending()
            self._prune(now)
        except (database.DatabaseError, HistoryError) as error:
            self._failed(error)
            self._next_flush_ns = now + round(RETRY_SECONDS * 1e9)
            return False
        if self._trouble:
            log.warning("history %s takes records again", self.path)
        self._trouble = ""
        self._next_flush_ns = now + round(self._config.flush_seconds * 1e9)
        return True

    def _write_pending(self) -> None:
        assert self._db is not None
        self._db.execute("BEGIN IMMEDIATE")
        written = self._writer.write(_merged([*self._pending, *self._idle.values()]))
        self._db.execute("COMMIT")
        self._counts["rows_total"] += written
        self._counts["commits_total"] += 1
        self._pending.clear()
        self._idle.clear()
        self._pending_rows = 0

    def _prune(self, now: int) -> None:
        if now < self._next_prune_ns or self._db is None:
            return
        self._db.execute("BEGIN IMMEDIATE")
        deleted, more = retention.prune(
            self._db,
            now_ns=self._clock.wall_ns(),
            retention_days=self._config.retention_days,
            max_bytes=self._config.max_bytes,
        )
        self._db.execute("COMMIT")
        if deleted:
            self._writer.forget()  # a deleted run may come back
            retention.give_back(self._db)
        self._counts["pruned_rows_total"] += deleted
        self._next_prune_ns = now if more else now + round(PRUNE_SECONDS * 1e9)

    def _failed(self, error: Exception) -> None:
        self._counts["errors_total"] += 1
        if self._db is not None:
            database.rollback(self._db)
            self._writer.forget()
        trouble = str(error) if isinstance(error, HistoryError) else database.trouble_with(self.path, error)
        if trouble != self._trouble:
            log.warning("history %s: %s; records wait in memory, training goes on", self.path, trouble)
        self._trouble = trouble or type(error).__name__
        if database.is_broken(error):
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Move the broken file aside, unless another writer has done so already; the next commit opens a new one."""
        replaced = self._replaced()
        self._release()
        if replaced:
            return
        try:
            log.warning("%s", database.set_aside(self.path, self._trouble))
            self._counts["set_aside_total"] += 1
        except HistoryError as error:
            self._trouble = str(error)

    def _replaced(self) -> bool:
        try:
            return os.stat(self.path).st_ino != self._inode
        except OSError:
            return True

    def _release(self) -> None:
        if self._db is not None:
            try:
                self._db.close()
            except database.DatabaseError as error:
                log.warning("history %s: closing: %s", self.path, error)
            self._db = None


def _merged(batches: list[Rows]) -> list[Rows]:
    """Keep only the newest state of each rank: it is rewritten by every batch of the same commit."""
    newest: dict[tuple[str, int], Rows] = {}
    for rows in batches:
        for rank in rows.ranks:
            newest[rows.run_id, rank] = rows
    for rows in batches:
        rows.ranks = {rank: state for rank, state in rows.ranks.items() if newest[rows.run_id, rank] is rows}
    return batches
