"""Runs that are not watched any more, as the history last saw them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace

from grpo_sentinel.errors import HistoryError
from grpo_sentinel.records import Liveness
from grpo_sentinel.views import Snapshot
from grpo_sentinel.web.state import WebState

KEPT = 4
FRESH_SECONDS = 10.0


class Past:
    """Finds a run by name: among those that are watched, else in the history. Safe to use from several threads."""

    def __init__(self, state: WebState) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._read: OrderedDict[str, tuple[float, Snapshot | None]] = OrderedDict()

    def find(self, run_id: str | None) -> tuple[Snapshot | None, bool]:
        """Give the snapshot and whether it is a past one; without a name the first watched run, empty if none is."""
        snapshots: Mapping[str, Snapshot] = self._state.snapshots()
        if not run_id:
            return next(iter(snapshots.values()), Snapshot()), False
        if run_id in snapshots:
            return snapshots[run_id], False
        return self._past(run_id), True

    def _past(self, run_id: str) -> Snapshot | None:
        now = time.monotonic()
        with self._lock:  # a dozen requests of one page read it once
            read, snapshot = self._read.get(run_id, (0.0, None))
            if run_id not in self._read or now - read > FRESH_SECONDS:
                snapshot = self._latest(run_id)
                self._read[run_id] = now, snapshot
            self._read.move_to_end(run_id)
            while len(self._read) > KEPT:
                self._read.popitem(last=False)
        return snapshot

    def _latest(self, run_id: str) -> Snapshot | None:
        if self._state.history is None:
            return None
        try:
            with self._state.history() as reader:
                snapshot = reader.latest(run_id) if reader.run(run_id) is not None else None
        except HistoryError:
            return None
        return None if snapshot is None else unwatched(snapshot)


def unwatched(snapshot: Snapshot) -> Snapshot:
    """Claim no life of ranks that nobody looks at, and say so."""
    over = (Liveness.CLOSED, Liveness.DEAD)
    ranks = {
        rank: status if status.liveness in over else replace(status, liveness=Liveness.UNKNOWN)
        for rank, status in snapshot.ranks.items()
    }
    stamp = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(snapshot.wall_ns / 1e9))
    note = f"This run is not watched now. Shown is what the history last saw of it, {stamp}."
    return replace(snapshot, ranks=ranks, notes=(note, *snapshot.notes))


__all__ = ["Past", "unwatched"]
