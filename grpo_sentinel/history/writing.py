"""Write encoded rows inside one transaction: ids of runs, names and layouts are looked up once and kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from grpo_sentinel.history.codec import dumps, pack_ids, text
from grpo_sentinel.history.database import Connection
from grpo_sentinel.history.rollup import Rollups
from grpo_sentinel.history.rows import Names, Rows, rank_row

MAX_CACHED = 65_536  # ids kept in memory per table; above that they are looked up again


class RowWriter:
    """Insert rows into an open transaction; `forget` after a rollback, because ids made in it are gone."""

    def __init__(self, connection: Connection) -> None:
        self._db = connection
        self._runs: dict[str, int] = {}
        self._contexts: dict[int, Mapping[str, object]] = {}
        self._names: dict[str, int] = {}
        self._layouts: dict[Names, int] = {}
        self._entities: dict[tuple[str, str, str], int] = {}
        self._rollups = Rollups(connection, self.layout_id)

    @property
    def behind(self) -> bool:
        """Tell whether there is work though no record comes: rollups that an older file lacks."""
        return self._rollups.behind

    def forget(self) -> None:
        """Drop every cached id."""
        for cache in (self._runs, self._contexts, self._names, self._layouts, self._entities):
            cache.clear()
        self._rollups.forget()

    def write(self, batches: Iterable[Rows]) -> int:
        """Insert all rows of some batches, then the rollups that they complete; gives the number of rows inserted."""
        written = 0
        for rows in batches:
            written += self._write(rows)
        self._rollups.write_complete()
        return written

    def _write(self, rows: Rows) -> int:
        run = self._run_id(rows)
        before = self._db.total_changes
        self._db.executemany(
            "INSERT OR IGNORE INTO records (run, rank, step, sequence, wall_ns, monotonic_ns, kind, mode, micro_batch,"
            " generation, layout, data) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
            [(run, *head, self.layout_id(names), data) for head, names, data in rows.records],
        )
        self._db.executemany(
            "INSERT OR IGNORE INTO events (run, rank, step, sequence, wall_ns, kind, truncated, body)"
            " VALUES (?,?,?,?,?,?,?,?)",
            [(run, *event) for event in rows.events],
        )
        self._db.executemany(
            "INSERT OR IGNORE INTO samples (run, entity, wall_ns, layout, data, failed) VALUES (?,?,?,?,?,?)",
            [
                (run, self._entity_id(who), at, self.layout_id(names), data, bad)
                for who, at, names, data, bad in rows.samples
            ],
        )
        self._write_findings(run, rows)
        if rows.request is not None:
            self._db.execute(
                "INSERT INTO requests (run, node, request_id, state, wall_ns, body) VALUES (?,?,?,?,?,?)",
                (run, *rows.request),
            )
        written = self._db.total_changes - before
        self._db.executemany(
            "INSERT OR REPLACE INTO ranks (run, rank, cursor_record, cursor_event, body) VALUES (?,?,?,?,?)",
            [(run, rank, *rank_row(status)) for rank, status in rows.ranks.items()],
        )
        for head, _names, _data in rows.records:
            self._rollups.touch(run, head[0], head[6], head[1])
        return written

    def _write_findings(self, run: int, rows: Rows) -> None:
        values = [(run, *finding) for finding in rows.findings]
        columns = "(run, finding_id, state, wall_ns, body) VALUES (?,?,?,?,?)"
        self._db.executemany(f"INSERT OR IGNORE INTO transitions {columns}", values)
        self._db.executemany(
            f"INSERT INTO findings {columns} ON CONFLICT (run, finding_id) DO UPDATE SET"
            " state=excluded.state, wall_ns=excluded.wall_ns, body=excluded.body",
            values,
        )

    def _run_id(self, rows: Rows) -> int:
        run = self._runs.get(rows.run_id)
        if run is None:
            self._db.execute(
                "INSERT OR IGNORE INTO runs (run_id, node, started_ns, seen_ns) VALUES (?,?,?,?)",
                (rows.run_id, rows.node, rows.started_ns, rows.seen_ns),
            )
            run = self._fetch_id("SELECT id FROM runs WHERE run_id=?", rows.run_id)
            _bounded(self._runs)[rows.run_id] = run
        world_size, parent = _run_facts(rows)
        self._db.execute(
            "UPDATE runs SET started_ns=min(started_ns,?), began_ns=max(began_ns,?), seen_ns=max(seen_ns,?),"
            " world_size=max(world_size,?), unjudged=?,"
            " parent_run_id=CASE WHEN parent_run_id='' THEN ? ELSE parent_run_id END WHERE id=?",
            (rows.started_ns, rows.began_ns, rows.seen_ns, world_size, rows.unjudged, parent, run),
        )
        if rows.context and self._contexts.get(run) != rows.context:
            self._db.execute("UPDATE runs SET context=? WHERE id=?", (dumps(rows.context), run))
            self._contexts[run] = rows.context
        return run

    def layout_id(self, names: Names) -> int:
        """Look up or store an ordered set of signal names."""
        layout = self._layouts.get(names)
        if layout is None:
            ids = pack_ids(self._name_id(name) for name in names)
            self._db.execute("INSERT OR IGNORE INTO layouts (ids) VALUES (?)", (ids,))
            layout = self._fetch_id("SELECT id FROM layouts WHERE ids=?", ids)
            _bounded(self._layouts, MAX_CACHED // 64)[names] = layout
        return layout

    def _name_id(self, name: str) -> int:
        known = self._names.get(name)
        if known is None:
            self._db.execute("INSERT OR IGNORE INTO names (name) VALUES (?)", (name,))
            known = self._fetch_id("SELECT id FROM names WHERE name=?", name)
            _bounded(self._names)[name] = known
        return known

    def _entity_id(self, who: tuple[str, str, str]) -> int:
        known = self._entities.get(who)
        if known is None:
            self._db.execute("INSERT OR IGNORE INTO entities (source, entity, body) VALUES (?,?,?)", who)
            row = self._db.execute("SELECT id FROM entities WHERE source=? AND entity=? AND body=?", who).fetchone()
            known = int(row[0])
            _bounded(self._entities)[who] = known
        return known

    def _fetch_id(self, query: str, value: str | bytes) -> int:
        return int(self._db.execute(query, (value,)).fetchone()[0])


def _run_facts(rows: Rows) -> tuple[int, str]:
    """World size and parent run as the ranks say them."""
    identities = [status.identity for status in rows.ranks.values()]
    parents = (text(identity.parent_run_id) for identity in identities if identity.parent_run_id)
    return max((identity.world_size for identity in identities), default=0), next(parents, "")


def _bounded(cache: dict[object, int] | dict, limit: int = MAX_CACHED) -> dict:  # type: ignore[type-arg]
    if len(cache) >= limit:
        cache.clear()
    return cache
