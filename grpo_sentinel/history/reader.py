"""Read the history, also while it is written: what `status`, replay and the page look at.

Every query is indexed and bounded or streamed in chunks of their own read transaction, so that a slow reader never
keeps the writer's WAL from being folded.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo_sentinel.errors import HistoryError
from grpo_sentinel.harm import first_onset, kept_before
from grpo_sentinel.history.codec import finding_from, halt_from, rank_status_from, unpack_ids, unpack_values
from grpo_sentinel.history.database import DatabaseError, open_reader
from grpo_sentinel.history.rollup import LEVELS
from grpo_sentinel.history.series import Series, read_lines
from grpo_sentinel.records import EventRecord, Finding, FindingState, Kind, Mode, Sample, StepRecord
from grpo_sentinel.views import Cursor, HaltStatus, RankStatus, Snapshot

CHUNK = 500
_KINDS = {int(kind): kind for kind in Kind}
_MODES = {int(mode): mode for mode in Mode}
_LATEST_RECORDS = 32  # newest records of a rank in which its newest values are looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """One run in the history."""

    run_id: str
    parent_run_id: str
    node: str
    world_size: int
    started_wall_ns: int
    seen_wall_ns: int
    context: Mapping[str, Any] = field(default_factory=dict)


# One look-up per layout: SELECT DISTINCT would walk over every rollup of the run.
_LAYOUTS = """
WITH RECURSIVE known (layout) AS (
    SELECT min(layout) FROM rollups WHERE run=:run
    UNION ALL
    SELECT (SELECT min(layout) FROM rollups WHERE run=:run AND layout>known.layout) FROM known WHERE layout IS NOT NULL)
SELECT layout FROM known WHERE layout IS NOT NULL
"""
_RUNS = "SELECT run_id, parent_run_id, node, world_size, started_ns, seen_ns, context FROM runs"


def _run_info(row: tuple[Any, ...]) -> RunInfo:
    names = ("run_id", "parent_run_id", "node", "world_size", "started_wall_ns", "seen_wall_ns")
    return RunInfo(**dict(zip(names, row, strict=False)), context=json.loads(row[6]))


def _event(run_id: str, row: tuple[Any, ...]) -> EventRecord:
    _, rank, sequence, step, wall_ns, kind, truncated, body = row
    return EventRecord(
        run_id=run_id, rank=rank, sequence=sequence, step=step, wall_ns=wall_ns, kind=kind,
        body=json.loads(body), truncated=bool(truncated),
    )  # fmt: skip


class HistoryReader:
    """Read-only view of a history file; safe to use from several threads.

    Raises `HistoryError` in one sentence when the file is missing, newer, not ours or damaged. Never writes to it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._db = open_reader(self.path)
        self._lock = threading.Lock()
        self._layouts: dict[int, tuple[str, ...]] = {}
        version = self.query("PRAGMA user_version")[0][0]
        self._began = "max(began_ns, started_ns)" if version >= 2 else "started_ns"  # an old file is read as it is
        self.levels = LEVELS if version >= 3 else 1
        self._unjudged = "unjudged" if version >= 4 else "''"

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> HistoryReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def query(self, sql: str, parameters: tuple[Any, ...] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Run one SELECT; all rows at once, so no read transaction stays open."""
        with self._lock:
            try:
                return self._db.execute(sql, parameters).fetchall()
            except DatabaseError as error:
                raise HistoryError(
                    f"cannot read the history {self.path}: {error}; it may be damaged or closed"
                ) from error

    # ---- runs

    def runs(self, limit: int = 1000) -> list[RunInfo]:
        """List runs, the one whose processes were started last first."""
        order = f"ORDER BY {self._began} DESC, id DESC"
        return [_run_info(row) for row in self.query(f"{_RUNS} {order} LIMIT ?", (limit,))]

    def run(self, run_id: str) -> RunInfo | None:
        """Find one run by its id."""
        rows = self.query(f"{_RUNS} WHERE run_id=?", (run_id,))
        return _run_info(rows[0]) if rows else None

    def run_key(self, run_id: str) -> int:
        """Internal key of a run, -1 when there is none."""
        rows = self.query("SELECT id FROM runs WHERE run_id=?", (run_id,))
        return int(rows[0][0]) if rows else -1

    # ---- what was said about it

    def findings(self, run_id: str, *, firing_only: bool = False) -> list[Finding]:
        """Newest state of every finding of a run, in the order in which they first fired."""
        sql = "SELECT body FROM findings WHERE run=?" + (" AND state='firing'" if firing_only else "") + " ORDER BY id"
        return [finding_from(json.loads(body)) for (body,) in self.query(sql, (self.run_key(run_id),))]

    def transitions(self, run_id: str) -> list[Finding]:
        """Every time a finding fired or resolved, oldest first."""
        rows = self.query("SELECT body FROM transitions WHERE run=? ORDER BY id", (self.run_key(run_id),))
        return [finding_from(json.loads(body)) for (body,) in rows]

    def requests(self, run_id: str) -> list[HaltStatus]:
        """Every state that every request went through, oldest first."""
        rows = self.query("SELECT body FROM requests WHERE run=? ORDER BY id", (self.run_key(run_id),))
        return [halt_from(json.loads(body)) for (body,) in rows]

    def kept_checkpoint(self, run_id: str) -> str:
        """Give the newest kept copy of a run from before the onset of what was found; "" when none is."""
        told = (one.pinned_checkpoint for one in self.requests(run_id))
        return kept_before(told, first_onset(self.findings(run_id)))

    def events(
        self, run_id: str, *, kind: str | None = None, rank: int | None = None, since_step: int = 0
    ) -> Iterator[EventRecord]:
        """Stream events in the order in which they were stored."""
        where, arguments = "run=? AND step>=?", [self.run_key(run_id), since_step]
        for column, wanted in (("kind", kind), ("rank", rank)):
            if wanted is not None:
                where += f" AND {column}=?"
                arguments.append(wanted)  # type: ignore[arg-type]
        last = 0
        while True:
            rows = self.query(
                "SELECT id, rank, sequence, step, wall_ns, kind, truncated, body FROM events"
                f" WHERE {where} AND id>? ORDER BY id LIMIT {CHUNK}",
                (*arguments, last),
            )
            yield from (_event(run_id, row) for row in rows)
            if len(rows) < CHUNK:
                return
            last = rows[-1][0]

    def newest_events(self, run_id: str, *, kind: str | None = None, limit: int = 500) -> list[EventRecord]:
        """The newest events of a run, of one kind or of all, oldest of them first."""
        one, arguments = ("", (limit,)) if kind is None else (" AND kind=?", (kind, limit))
        rows = self.query(
            "SELECT id, rank, sequence, step, wall_ns, kind, truncated, body FROM events"
            f" WHERE run=?{one} ORDER BY id DESC LIMIT ?",
            (self.run_key(run_id), *arguments),
        )
        return [_event(run_id, row) for row in reversed(rows)]

    # ---- numbers

    def records(
        self, run_id: str, rank: int | None = None, since_step: int = 0, until_step: int | None = None
    ) -> Iterator[StepRecord]:
        """Stream step records ordered by step, then as they came; constant memory whatever the run's length."""
        run = self.run_key(run_id)
        head = (
            "SELECT id, rank, sequence, step, kind, mode, micro_batch, generation, monotonic_ns, wall_ns, layout, data"
        )
        order, at = ("step, id", (since_step, 0)) if rank is None else ("step, sequence, wall_ns", (since_step, -1, 0))
        one = "" if rank is None else " AND rank=?"
        end = 2**63 - 1 if until_step is None else until_step
        while True:
            rows = self.query(
                f"{head} FROM records WHERE run=?{one} AND ({order}) > ({','.join('?' * len(at))}) AND step<=?"
                f" ORDER BY {order} LIMIT {CHUNK}",
                (run, *(() if rank is None else (rank,)), *at, end),
            )
            for row in rows:
                yield self._record(run_id, row)
            if len(rows) < CHUNK:
                return
            newest = rows[-1]
            at = (newest[3], newest[0]) if rank is None else (newest[3], newest[2], newest[9])

    def _record(self, run_id: str, row: tuple[Any, ...]) -> StepRecord:
        _, rank, sequence, step, kind, mode, micro_batch, generation, monotonic_ns, wall_ns, layout, data = row
        return StepRecord(
            run_id=run_id, rank=rank, sequence=sequence, step=step, kind=_KINDS[kind], mode=_MODES[mode],
            micro_batch=micro_batch, generation=generation, monotonic_ns=monotonic_ns, wall_ns=wall_ns,
            values=self.values(layout, data),
        )  # fmt: skip

    def values(self, layout: int, data: bytes) -> dict[str, float]:
        """Put names to a block of numbers."""
        return dict(zip(self.layout(layout), unpack_values(data), strict=False))

    def layout(self, layout: int) -> tuple[str, ...]:
        """Names of a layout in order; kept once read."""
        names = self._layouts.get(layout)
        if names is None:
            rows = self.query("SELECT ids FROM layouts WHERE id=?", (layout,))
            ids = unpack_ids(rows[0][0]) if rows else ()
            known = dict(self.query(f"SELECT id, name FROM names WHERE id IN ({','.join(map(str, ids))})"))
            names = tuple(known.get(i, f"unknown.{i}") for i in ids)
            if len(self._layouts) > 4096:
                self._layouts.clear()
            self._layouts[layout] = names
        return names

    def samples(self, run_id: str, *, entity: str | None = None, since_wall_ns: int = 0) -> Iterator[Sample]:
        """Stream readings of GPUs and host, entity by entity, oldest first."""
        run = self.run_key(run_id)
        for key, source, name, constant in self.query("SELECT id, source, entity, body FROM entities ORDER BY id"):
            if entity is not None and name != entity:
                continue
            fixed, since = json.loads(constant), since_wall_ns - 1
            while True:
                rows = self.query(
                    "SELECT wall_ns, layout, data, failed FROM samples WHERE run=? AND entity=? AND wall_ns>?"
                    f" ORDER BY wall_ns LIMIT {CHUNK}",
                    (run, key, since),
                )
                for since, layout, data, failed in rows:
                    yield Sample(
                        source=source, entity=name, wall_ns=since, values=self.values(layout, data),
                        labels=fixed["labels"], unsupported=tuple(fixed["unsupported"]),
                        failed=json.loads(failed) if failed else {},
                    )  # fmt: skip
                if len(rows) < CHUNK:
                    break

    # ---- where the writer stood

    def cursors(self, run_id: str) -> dict[int, Cursor]:
        """How far every rank's ring was read when its records were committed."""
        rows = self.query("SELECT rank, cursor_record, cursor_event FROM ranks WHERE run=?", (self.run_key(run_id),))
        return {rank: Cursor(record, event) for rank, record, event in rows}

    def latest(self, run_id: str) -> Snapshot:
        """Rebuild the newest `Snapshot` that the tables hold; an empty one when the run is unknown."""
        info = self.run(run_id)
        if info is None:
            return Snapshot(run_id=run_id)
        run = self.run_key(run_id)
        requests = self.query("SELECT body FROM requests WHERE run=? ORDER BY id DESC LIMIT 1", (run,))
        halt = halt_from(json.loads(requests[0][0])) if requests else HaltStatus()
        return Snapshot(
            run_id=run_id,
            node=info.node,
            wall_ns=info.seen_wall_ns,
            ranks=self._ranks(run),
            samples=self._latest_samples(run),
            findings=tuple(f for f in self.findings(run_id, firing_only=True) if f.state is FindingState.FIRING),
            halt=replace(halt, pinned_checkpoint=self.kept_checkpoint(run_id)),
            context=info.context,
            unjudged=self.unjudged(run_id),
        )

    def unjudged(self, run_id: str) -> str:
        """Say why a run was recorded and not judged; "" for one that was judged, or is not known."""
        rows = self.query(f"SELECT {self._unjudged} FROM runs WHERE run_id=?", (run_id,))
        return str(rows[0][0]) if rows else ""

    def _ranks(self, run: int) -> dict[int, RankStatus]:
        out: dict[int, RankStatus] = {}
        for rank, body in self.query("SELECT rank, body FROM ranks WHERE run=? ORDER BY rank", (run,)):
            values: dict[str, float] = {}
            newest = self.query(
                "SELECT layout, data FROM records WHERE run=? AND rank=? ORDER BY step DESC, sequence DESC LIMIT ?",
                (run, rank, _LATEST_RECORDS),
            )
            for layout, data in reversed(newest):
                values.update(self.values(layout, data))
            out[rank] = rank_status_from(json.loads(body), values)
        return out

    def _latest_samples(self, run: int) -> dict[str, Sample]:
        out: dict[str, Sample] = {}
        for key, source, name, constant in self.query("SELECT id, source, entity, body FROM entities ORDER BY id"):
            rows = self.query(
                "SELECT wall_ns, layout, data, failed FROM samples WHERE run=? AND entity=?"
                " ORDER BY wall_ns DESC LIMIT 1",
                (run, key),
            )
            for wall_ns, layout, data, failed in rows:
                fixed = json.loads(constant)
                out[name] = Sample(
                    source=source, entity=name, wall_ns=wall_ns, values=self.values(layout, data),
                    labels=fixed["labels"], unsupported=tuple(fixed["unsupported"]),
                    failed=json.loads(failed) if failed else {},
                )  # fmt: skip
        return out

    def signals(self, run_id: str) -> list[str]:
        """Names of the signals that the ranks of a run recorded."""
        run = self.run_key(run_id)
        layouts = {layout for (layout,) in self.query(_LAYOUTS, {"run": run})}
        for (rank,) in self.query("SELECT rank FROM ranks WHERE run=?", (run,)):
            rows = self.query(
                "SELECT layout FROM records WHERE run=? AND rank=? ORDER BY step DESC LIMIT 256", (run, rank)
            )
            layouts.update(row[0] for row in rows)
        return sorted({name for layout in layouts for name in self.layout(layout)})

    def series(
        self,
        run_id: str,
        rank: int,
        signal: str,
        *,
        max_points: int | None = None,
        since_step: int = 0,
        until_step: int | None = None,
        mode: Mode = Mode.TRAIN,
    ) -> Series:
        """Read one signal of one rank, thinned by minimum and maximum to `max_points` (see `history.series`)."""
        (found,) = self.lines(
            run_id, (rank,), signal, max_points=max_points, since_step=since_step, until_step=until_step, mode=mode
        )
        return found

    def lines(
        self,
        run_id: str,
        ranks: Sequence[int],
        signal: str,
        *,
        max_points: int | None = None,
        since_step: int = 0,
        until_step: int | None = None,
        mode: Mode = Mode.TRAIN,
        max_rows: int | None = None,
    ) -> list[Series]:
        """Read one signal of several ranks at once, each as `series` gives it; `max_rows` bounds what one costs."""
        return read_lines(
            self, self.run_key(run_id), ranks, signal,
            max_points=max_points, since_step=since_step, until_step=until_step, mode=mode, max_rows=max_rows,
        )  # fmt: skip
