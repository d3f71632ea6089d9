"""Tables of the history and how an older file is brought up to date.

    runs 1─* ranks      newest state and cursor of every rank (the cursor commits together with the records it covers)
    runs 1─* records    one row per push; `layout` names the columns, `data` holds their float64
    runs 1─* rollups    many steps of one rank in one row, by level: low, high and non-finite count of every signal
    runs 1─* events, findings (newest state), transitions (every change), samples, requests
    names, layouts      every signal name and every ordered set of names, stored once

A change appends a script to `MIGRATIONS`; its index + 1 is the version that the file then carries in `user_version`.
"""

from __future__ import annotations

APPLICATION_ID = 0x4752_504F  # "GRPO": tells our file from somebody else's database

_VERSION_1 = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, parent_run_id TEXT NOT NULL DEFAULT '',
    node TEXT NOT NULL DEFAULT '', world_size INTEGER NOT NULL DEFAULT 0,
    started_ns INTEGER NOT NULL, seen_ns INTEGER NOT NULL, context TEXT NOT NULL DEFAULT '{}');
CREATE INDEX runs_by_age ON runs (seen_ns);
CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE layouts (id INTEGER PRIMARY KEY, ids BLOB NOT NULL UNIQUE);
CREATE TABLE ranks (
    run INTEGER NOT NULL, rank INTEGER NOT NULL, cursor_record INTEGER NOT NULL, cursor_event INTEGER NOT NULL,
    body TEXT NOT NULL, PRIMARY KEY (run, rank)) WITHOUT ROWID;
CREATE TABLE records (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL, rank INTEGER NOT NULL, step INTEGER NOT NULL,
    sequence INTEGER NOT NULL, wall_ns INTEGER NOT NULL, monotonic_ns INTEGER NOT NULL, kind INTEGER NOT NULL,
    mode INTEGER NOT NULL, micro_batch INTEGER NOT NULL, generation INTEGER NOT NULL,
    layout INTEGER NOT NULL, data BLOB NOT NULL);
CREATE UNIQUE INDEX records_by_rank ON records (run, rank, step, sequence, wall_ns);
CREATE INDEX records_by_step ON records (run, step);
CREATE TABLE rollups (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL, rank INTEGER NOT NULL, mode INTEGER NOT NULL,
    bucket INTEGER NOT NULL, layout INTEGER NOT NULL, data BLOB NOT NULL);
CREATE UNIQUE INDEX rollups_by_bucket ON rollups (run, rank, mode, bucket);
CREATE INDEX rollups_by_layout ON rollups (run, layout);
CREATE TABLE events (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL, rank INTEGER NOT NULL, step INTEGER NOT NULL,
    sequence INTEGER NOT NULL, wall_ns INTEGER NOT NULL, kind TEXT NOT NULL, truncated INTEGER NOT NULL,
    body TEXT NOT NULL);
CREATE UNIQUE INDEX events_once ON events (run, rank, sequence, wall_ns);
CREATE INDEX events_by_kind ON events (run, kind, id);
CREATE INDEX events_by_run ON events (run, id);
CREATE TABLE findings (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL, finding_id TEXT NOT NULL, state TEXT NOT NULL,
    wall_ns INTEGER NOT NULL, body TEXT NOT NULL);
CREATE UNIQUE INDEX findings_once ON findings (run, finding_id);
CREATE TABLE transitions (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL, finding_id TEXT NOT NULL, state TEXT NOT NULL,
    wall_ns INTEGER NOT NULL, body TEXT NOT NULL);
CREATE UNIQUE INDEX transitions_once ON transitions (run, finding_id, state, wall_ns);
CREATE TABLE entities (
    id INTEGER PRIMARY KEY, source TEXT NOT NULL, entity TEXT NOT NULL, body TEXT NOT NULL);
CREATE UNIQUE INDEX entities_once ON entities (source, entity, body);
CREATE TABLE samples (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL, entity INTEGER NOT NULL, wall_ns INTEGER NOT NULL,
    layout INTEGER NOT NULL, data BLOB NOT NULL, failed TEXT NOT NULL DEFAULT '');
CREATE UNIQUE INDEX samples_once ON samples (run, entity, wall_ns);
CREATE TABLE requests (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL, node TEXT NOT NULL, request_id INTEGER NOT NULL,
    state TEXT NOT NULL, wall_ns INTEGER NOT NULL, body TEXT NOT NULL);
CREATE INDEX requests_by_run ON requests (run, id);
"""

# Start of the newest processes of the run, wall ns; 0 where no rank has said so.
_VERSION_2 = "ALTER TABLE runs ADD COLUMN began_ns INTEGER NOT NULL DEFAULT 0"

# Rollups of rollups, see `history.rollup`; those of an older file are folded while it is written.
_VERSION_3 = """
ALTER TABLE rollups ADD COLUMN level INTEGER NOT NULL DEFAULT 0;
DROP INDEX rollups_by_bucket;
CREATE UNIQUE INDEX rollups_by_bucket ON rollups (run, rank, mode, level, bucket);
"""

# Why a run that was recorded was not judged; "" for one that was.
_VERSION_4 = "ALTER TABLE runs ADD COLUMN unjudged TEXT NOT NULL DEFAULT ''"

MIGRATIONS: tuple[str, ...] = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4)
VERSION = len(MIGRATIONS)
RUN_TABLES = ("ranks", "records", "rollups", "events", "findings", "transitions", "samples", "requests")
