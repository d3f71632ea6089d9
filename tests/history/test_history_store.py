"""The history keeps what was committed, loses nothing twice and never raises into the loop."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from sentinel_batches import RUN, WALL_NS, batch, event, finding, identity, record, sample, status

from grpo_sentinel.clock import ManualClock
from grpo_sentinel.config import HistoryConfig
from grpo_sentinel.errors import HistoryError
from grpo_sentinel.history import HistoryReader, HistoryStore, database, frames, history_path, retention, schema
from grpo_sentinel.history.rollup import BUCKET_STEPS
from grpo_sentinel.records import Action, FindingState, HaltState, Kind, Liveness, Mode
from grpo_sentinel.views import Cursor, HaltStatus, SinkBatch, Snapshot


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "history.sqlite"


def stored(path: Path, *batches) -> HistoryReader:
    store = HistoryStore(path, clock=ManualClock())
    for item in batches:
        store.write(item)
    store.close()
    return HistoryReader(path)


def test_values_come_back_exactly_with_nan_and_infinities(path):
    values = {
        "policy.loss": math.nan,
        "gradient.norm_preclip": math.inf,
        "reward.min": -math.inf,
        "data.tokens": 0.1 + 0.2,
    }
    reader = stored(path, batch(record(7, rank=1, values=values, kind=Kind.DATA, mode=Mode.EVALUATION, micro_batch=3)))
    (got,) = reader.records(RUN)
    assert math.isnan(got.values["policy.loss"])
    assert {**got.values, "policy.loss": 0} == {**values, "policy.loss": 0}
    assert (got.rank, got.step, got.kind, got.mode, got.micro_batch) == (1, 7, Kind.DATA, Mode.EVALUATION, 3)


def test_names_and_layouts_are_stored_once_however_many_records_use_them(path):
    reader = stored(path, batch(*(record(s) for s in range(1, 200))))
    assert reader.query("SELECT count(*) FROM layouts")[0][0] <= 2  # the records' and the rollups'
    assert reader.query("SELECT count(*) FROM names")[0][0] == 1
    assert reader.query("SELECT max(length(data)) FROM records")[0][0] == 8


def test_findings_keep_every_transition_and_their_newest_state(path):
    fired = finding(value=math.nan)
    resolved = finding(state=FindingState.RESOLVED, wall_ns=WALL_NS + 5)
    reader = stored(path, batch(findings=(fired,)), batch(findings=(resolved,)))
    assert [f.state for f in reader.transitions(RUN)] == [FindingState.FIRING, FindingState.RESOLVED]
    assert reader.findings(RUN) == [resolved]
    assert reader.findings(RUN, firing_only=True) == []
    assert math.isnan(reader.transitions(RUN)[0].value)


def test_a_finding_comes_back_equal(path):
    one = finding(value=math.inf, root_id="other:0:3", reference="x")
    assert stored(path, batch(findings=(one,))).findings(RUN) == [one]


def test_events_filter_by_kind_rank_and_step(path):
    events = (
        event(1, "skip"),
        event(2, "nonfinite", {"names": ["a"], "norm": math.nan}, step=9),
        event(3, "skip", rank=1),
    )
    reader = stored(path, batch(events=events))
    assert [e.sequence for e in reader.events(RUN)] == [1, 2, 3]
    assert [e.sequence for e in reader.events(RUN, kind="skip", rank=1)] == [3]
    assert [e.sequence for e in reader.newest_events(RUN, limit=2)] == [2, 3]
    assert [e.sequence for e in reader.newest_events(RUN, kind="skip")] == [1, 3]
    (bad,) = reader.events(RUN, since_step=9)
    assert bad.body == {"names": ["a"], "norm": "NaN"}


def test_samples_come_back_with_labels_and_what_was_unsupported_or_failed(path):
    one = sample(unsupported=("device.gpu_ecc_corrected",), failed={"device.gpu_power_watts": "timeout"})
    reader = stored(path, batch(samples=(one, sample("GPU-2"))))
    assert list(reader.samples(RUN, entity="GPU-1")) == [one]
    assert {s.entity for s in reader.samples(RUN)} == {"GPU-1", "GPU-2"}


def test_every_state_of_a_request_is_kept(path):
    asked = HaltStatus(
        request_id=1, state=HaltState.REQUESTED, action=Action.CHECKPOINT_AND_HALT, reason="r", updated_wall_ns=5
    )
    done = HaltStatus(
        request_id=1, state=HaltState.DONE, action=Action.CHECKPOINT_AND_HALT, detail="/ckpt", updated_wall_ns=9
    )
    reader = stored(path, batch(halt=asked), batch(halt=done))
    assert reader.requests(RUN) == [asked, done]
    assert reader.latest(RUN).halt == done


def test_the_latest_snapshot_is_rebuilt_from_the_tables(path):
    full = Snapshot(run_id=RUN, node="node-a", ranks={0: status(0, last_step=4)}, context={"beta": 0.04})
    reader = stored(
        path,
        batch(
            record(3, values={"reward.mean": 1.0, "policy.loss": 3.0}), record(4), samples=(sample(),), snapshot=full
        ),
        batch(findings=(finding(),)),
    )
    got = reader.latest(RUN)
    assert got.ranks[0].values == {"reward.mean": 1.0, "policy.loss": 4.0}
    assert got.ranks[0].identity == status(0).identity
    assert got.ranks[0].heartbeat == status(0).heartbeat
    assert got.ranks[0].last_step == 4
    assert got.findings == (finding(),)
    assert got.samples == {"GPU-1": sample()}
    assert got.context == {"beta": 0.04}
    assert reader.latest("unknown") == Snapshot(run_id="unknown")


def test_runs_are_listed_newest_first_with_parent_and_size(path):
    older = batch(record(1), run_id="old", wall_ns=WALL_NS - 10)
    reader = stored(path, batch(record(1)), older)
    assert [info.run_id for info in reader.runs()] == [RUN, "old"]
    assert reader.run(RUN).world_size == 2
    assert reader.run("nothing") is None


def _looked_at(run: str, created: int, looked: int, liveness: Liveness = Liveness.DEAD) -> SinkBatch:
    """One look at `looked` (seconds after WALL_NS) at a run whose process began at `created`."""
    at = WALL_NS + created * 10**9
    one = status(
        identity=identity(run_id=run, created_wall_ns=at), updated_wall_ns=at, liveness=liveness,
        heartbeat=replace(status().heartbeat, updated_wall_ns=at),
    )  # fmt: skip
    wall_ns = WALL_NS + looked * 10**9
    return batch(run_id=run, wall_ns=wall_ns, snapshot=Snapshot(run_id=run, wall_ns=wall_ns, ranks={0: one}))


def test_the_newest_run_is_the_one_started_last_whichever_was_looked_at_last(path):
    store = HistoryStore(path, clock=ManualClock())
    for run, created, looked in (("b", 20, 25), ("a", 10, 100), ("b", 20, 90), ("a", 10, 200)):
        store.write(_looked_at(run, created, looked))
        store.flush()
    store.close()
    with HistoryReader(path) as reader:
        assert [info.run_id for info in reader.runs()] == ["b", "a"]
        a = reader.run("a")
        assert (a.started_wall_ns, a.seen_wall_ns) == (WALL_NS + 10 * 10**9,) * 2, "a look is no sign of life"


def test_a_run_started_again_under_its_name_is_the_newest_and_began_when_it_first_did(path):
    store = HistoryStore(path, clock=ManualClock())
    for run, created in (("a", 10), ("b", 20), ("a", 30)):
        store.write(_looked_at(run, created, created + 5, Liveness.ALIVE))
        store.flush()
    store.close()
    with HistoryReader(path) as reader:
        newest = reader.runs()[0]
    assert (newest.run_id, newest.started_wall_ns) == ("a", WALL_NS + 10 * 10**9)
    assert newest.seen_wall_ns == WALL_NS + 35 * 10**9


def test_a_history_of_the_first_version_is_read_as_it_is(path):
    path.parent.mkdir()
    raw = sqlite3.connect(path, isolation_level=None)
    database.migrate(raw, schema.MIGRATIONS[:1])
    raw.execute("INSERT INTO runs (run_id, started_ns, seen_ns) VALUES (?,?,?)", (RUN, WALL_NS, WALL_NS))
    raw.close()
    with HistoryReader(path) as reader:
        assert [info.run_id for info in reader.runs()] == [RUN]
    stored(path, _looked_at("b", 20, 25)).close()
    with HistoryReader(path) as reader:
        assert [info.run_id for info in reader.runs()] == ["b", RUN]


def test_records_stream_in_order_of_step_over_more_than_one_chunk(path):
    count = 1300
    reader = stored(path, *(batch(record(s, 0), record(s, 1)) for s in range(1, count + 1)))
    everything = [(r.step, r.rank) for r in reader.records(RUN)]
    assert everything == [(s, r) for s in range(1, count + 1) for r in (0, 1)]
    assert [r.step for r in reader.records(RUN, rank=1, since_step=count - 2)] == [count - 2, count - 1, count]
    assert [r.step for r in reader.records(RUN, rank=0, until_step=2)] == [1, 2]


def test_cursors_commit_together_with_their_records(path):
    reader = stored(path, batch(record(1), cursors={0: Cursor(11, 2)}), batch(record(2), cursors={0: Cursor(12, 3)}))
    assert reader.cursors(RUN) == {0: Cursor(12, 3)}


def test_the_same_batch_twice_is_stored_once(path):
    item = batch(record(1), record(2), events=(event(1),), findings=(finding(),), samples=(sample(),))
    reader = stored(path, item, item)
    assert len(list(reader.records(RUN))) == 2
    assert len(list(reader.events(RUN))) == 1
    assert len(reader.transitions(RUN)) == 1
    assert len(list(reader.samples(RUN))) == 1


def test_a_ring_made_anew_under_the_same_run_is_not_taken_for_a_repeat(path):
    again = record(1, wall_ns=WALL_NS + 99 * 10**9)
    assert len(list(stored(path, batch(record(1)), batch(again)).records(RUN))) == 2


def test_commits_come_once_per_flush_interval_and_at_once_for_findings(path):
    clock = ManualClock()
    store = HistoryStore(path, HistoryConfig(flush_seconds=1.0), clock)
    store.write(batch(record(1)))  # the first goes at once
    for step in range(2, 20):
        store.write(batch(record(step)))
    assert store.health()["commits_total"] == 1
    store.write(batch(findings=(finding(),)))
    assert store.health()["commits_total"] == 2
    store.write(batch(record(20)))
    clock.advance(1.1)
    store.tick()
    assert store.health()["commits_total"] == 3
    assert store.health()["pending_rows"] == 0
    store.close()


def test_idle_turns_do_not_pile_up_in_memory(path):
    store = HistoryStore(path, clock=ManualClock())
    store.write(batch(record(1)))
    for _ in range(50):
        store.write(batch(cursors={0: Cursor(1, 1)}))
        store.write(batch(cursors={0: Cursor(7, 7)}, run_id="other"))
    assert len(store._pending) + len(store._idle) == 2
    store.close()
    assert HistoryReader(path).cursors(RUN) == {0: Cursor(1, 1)}
    assert HistoryReader(path).cursors("other") == {0: Cursor(7, 7)}


def test_what_cannot_be_encoded_costs_only_itself(path):
    bad = record(2, values={"x": object()})  # type: ignore[dict-item]
    odd = record(3, values={"reward.func_mean[\ud800]": 1.0}, sequence=2**64 - 1)
    store = HistoryStore(path, clock=ManualClock())
    store.write(batch(record(1), bad, odd, events=(event(1, body={"deep": _deep(100), "text": "\udcff", 3: {1}}),)))
    assert store.flush()
    assert store.health()["unencodable_total"] == 1
    store.close()
    assert [r.step for r in HistoryReader(path).records(RUN)] == [1, 3]


def _deep(levels):
    out: object = 1
    for _ in range(levels):
        out = [out]
    return out


# ---- whole runs: rollups and series


def test_a_long_series_is_thinned_without_losing_a_spike(path):
    steps = 64 * 40
    loss = {s: math.sin(s / 50) for s in range(1, steps + 1)}
    loss[1777] = 99.0
    loss[1900] = math.nan
    reader = stored(path, *(batch(record(s, values={"policy.loss": v})) for s, v in loss.items()))
    folded = reader.query("SELECT count(*) FROM rollups WHERE level=0")[0][0]
    assert folded == steps // BUCKET_STEPS  # bucket 0 holds 63 steps
    for points in (20, 100, 1000):
        series = reader.series(RUN, 0, "policy.loss", max_points=points)
        assert len(series.steps) <= points
        assert max(series.high) == 99.0
        assert sum(series.nonfinite) == 1
        assert series.steps[0] <= 1
        assert steps - series.steps[-1] <= 2 * max(BUCKET_STEPS, steps / points)
    whole = reader.series(RUN, 0, "policy.loss")
    assert whole.steps == tuple(loss)
    assert math.isnan(whole.low[1899])
    assert whole.low[:100] == whole.high[:100] == tuple(list(loss.values())[:100])


def test_series_take_a_window_and_keep_evaluation_apart(path):
    evaluation = record(5, values={"policy.loss": -1.0}, mode=Mode.EVALUATION, sequence=900)
    reader = stored(path, batch(*(record(s) for s in range(1, 11)), evaluation))
    assert reader.series(RUN, 0, "policy.loss", since_step=4, until_step=6).low == (4.0, 5.0, 6.0)
    assert reader.series(RUN, 0, "policy.loss", mode=Mode.EVALUATION).low == (-1.0,)
    assert reader.series(RUN, 0, "nothing").steps == ()
    assert reader.series(RUN, 9, "policy.loss", max_points=10).steps == ()


def test_a_restart_folds_what_its_predecessor_left(path):
    first = HistoryStore(path, clock=ManualClock())
    first.write(batch(*(record(s) for s in range(1, 3 * BUCKET_STEPS))))
    first.close()
    with sqlite3.connect(path) as raw:
        raw.execute("DELETE FROM rollups WHERE bucket >= 1")
    raw.close()
    reader = stored(path, batch(record(4 * BUCKET_STEPS)))
    assert [row[0] for row in reader.query("SELECT bucket FROM rollups WHERE level=0 ORDER BY bucket")] == [0, 1, 2]


def test_frames_of_a_stored_run_merge_ranks_and_kinds_and_name_the_missing(path):
    reader = stored(
        path,
        batch(
            record(1, 0, {"data.tokens": 5.0}, kind=Kind.DATA, sequence=1),
            record(1, 0, {"policy.loss": 1.0}, sequence=2),
            record(1, 1, {"policy.loss": 2.0}),
            record(2, 0, {"policy.loss": 3.0}, sequence=3),
        ),
    )
    one, two = frames(reader.records(RUN), RUN)
    assert one.ranks == {0: {"data.tokens": 5.0, "policy.loss": 1.0}, 1: {"policy.loss": 2.0}}
    assert (one.missing, two.step, two.missing) == ((), 2, (1,))


# ---- retention


def test_runs_older_than_the_retention_go_whole(path):
    clock = ManualClock(wall_ns=WALL_NS)
    store = HistoryStore(path, HistoryConfig(retention_days=1), clock)
    store.write(batch(record(1), events=(event(1),), findings=(finding(),), samples=(sample(),)))
    clock.advance(3 * 86_400)
    store.write(batch(record(1), run_id="young", wall_ns=clock.wall_ns()))
    for _ in range(12):
        clock.advance(2)
        store.write(batch(run_id="young", wall_ns=clock.wall_ns()))
    store.close()
    reader = HistoryReader(path)
    assert [info.run_id for info in reader.runs()] == ["young"]
    for table in schema.RUN_TABLES:
        assert reader.query(f"SELECT count(*) FROM {table} WHERE run NOT IN (SELECT id FROM runs)")[0][0] == 0


def test_above_the_size_the_oldest_records_go_and_findings_stay(path, monkeypatch):
    monkeypatch.setattr("grpo_sentinel.history.store.PRUNE_SECONDS", 0.0)
    clock = ManualClock()
    limit = 1_000_000
    store = HistoryStore(path, HistoryConfig(max_bytes=limit), clock)
    store.write(batch(findings=(finding(),)))
    wide = {f"reward.func_mean[f{i}]": float(i) for i in range(60)}
    for step in range(1, 5001):
        store.write(batch(record(step, values=wide)))
        if step % 100 == 0:
            clock.advance(2)
    for _ in range(10):
        clock.advance(2)
        store.write(batch())
        store.flush()
    assert retention.live_bytes(store._db) <= limit
    store.close()
    reader = HistoryReader(path)
    left = [r.step for r in reader.records(RUN)]
    assert left[-1] == 5000
    assert left[0] > 1000
    assert len(reader.findings(RUN)) == 1
    assert os.stat(path).st_size < 2 * limit
    assert (
        reader.series(RUN, 0, "reward.func_mean[f1]", max_points=10).steps[0] < 64
    )  # the curve still starts at the start


# ---- what goes wrong


def test_a_newer_history_is_refused_in_one_sentence(path):
    stored(path).close()
    with sqlite3.connect(path) as raw:
        raw.execute(f"PRAGMA user_version={schema.VERSION + 1}")
    raw.close()
    for opened in (HistoryStore, HistoryReader):
        with pytest.raises(HistoryError, match=rf"has version {schema.VERSION + 1}, this grpo-sentinel knows up to"):
            opened(path)


def test_an_older_history_is_brought_up_to_date_once(path):
    stored(path, batch(record(1))).close()
    connection, _ = database.open_writer(path)
    later = (*schema.MIGRATIONS, "CREATE TABLE later (id INTEGER PRIMARY KEY); ALTER TABLE runs ADD COLUMN note TEXT")
    database.migrate(connection, later)
    database.migrate(connection, later)
    assert connection.execute("PRAGMA user_version").fetchone()[0] == schema.VERSION + 1
    assert connection.execute("SELECT count(*) FROM records").fetchone()[0] == 1
    connection.close()


def test_a_migration_that_fails_leaves_the_file_as_it_was(path):
    stored(path, batch(record(1))).close()
    connection, _ = database.open_writer(path)
    with pytest.raises(sqlite3.Error):
        database.migrate(connection, (*schema.MIGRATIONS, "CREATE TABLE half (id); SELECT no_such_thing"))
    assert connection.execute("PRAGMA user_version").fetchone()[0] == schema.VERSION
    assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name='half'").fetchone()[0] == 0
    connection.close()


def test_somebody_elses_database_is_left_alone(path):
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE theirs (x)")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(HistoryError, match="another program"):
        HistoryStore(path, clock=ManualClock())
    assert path.read_bytes() == before


def test_a_missing_history_is_said_in_one_sentence(path):
    with pytest.raises(HistoryError, match="there is no history at"):
        HistoryReader(path)


def test_a_file_that_is_no_database_is_moved_aside_and_nothing_is_lost(path):
    path.parent.mkdir(parents=True)
    path.write_bytes(b"this is not a database, it is a letter" * 100)
    reader = stored(path, batch(record(1)))
    assert len(list(reader.records(RUN))) == 1
    (kept,) = (p for p in path.parent.glob("history.sqlite.broken-*") if p.suffix != ".txt")
    assert kept.read_bytes().startswith(b"this is not")
    assert "kept as" in Path(f"{kept}.txt").read_text()


def test_a_file_that_breaks_under_the_writer_is_moved_aside_and_writing_goes_on(path):
    clock = ManualClock()
    store = HistoryStore(path, clock=clock)
    store.write(batch(*(record(s, values={f"n{i}": 1.0 for i in range(200)}) for s in range(1, 300))))
    assert store.flush()
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    size = os.stat(path).st_size
    with open(path, "r+b") as file:  # as a failing disk does it: every page but the first is garbage
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))
    store._db.execute("PRAGMA shrink_memory").fetchall()
    for step in range(300, 306):
        store.write(batch(record(step)))
        clock.advance(10)
        store.tick()
    assert store.flush()
    assert store.health()["set_aside_total"] == 1
    store.close()
    assert 305 in [r.step for r in HistoryReader(path).records(RUN)]
    assert list(path.parent.glob("history.sqlite.broken-*"))


def test_a_history_deleted_under_the_writer_is_begun_anew(path):
    clock = ManualClock()
    store = HistoryStore(path, clock=clock)
    store.write(batch(record(1)))
    for name in path.parent.iterdir():
        name.unlink()
    clock.advance(2)
    store.write(batch(record(2)))
    store.close()
    assert [r.step for r in HistoryReader(path).records(RUN)] == [2]


def test_a_locked_file_costs_nothing_but_time(path, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    clock = ManualClock()
    store = HistoryStore(path, clock=clock)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    store.write(batch(record(1), findings=(finding(),)))
    assert store.trouble
    assert store.health()["failing"] == 1
    blocker.execute("ROLLBACK")
    blocker.close()
    clock.advance(6)
    store.tick()
    assert not store.trouble
    store.close()
    assert [r.step for r in HistoryReader(path).records(RUN)] == [1]


def test_records_that_the_disk_refuses_for_long_are_bounded_and_counted(path, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.01)
    monkeypatch.setattr("grpo_sentinel.history.store.MAX_PENDING_ROWS", 100)
    store = HistoryStore(path, clock=ManualClock())
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    for step in range(1, 501):
        store.write(batch(record(step)))
    health = store.health()
    blocker.close()
    assert health["dropped_rows_total"] == 400
    store.close()
    assert [r.step for r in HistoryReader(path).records(RUN)] == list(range(401, 501))


def test_what_the_disk_did_not_take_to_the_end_is_told(path, monkeypatch, caplog):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.01)
    store = HistoryStore(path, clock=ManualClock())
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    store.write(batch(record(1), record(2)))
    store.close()
    blocker.close()
    assert "2 rows could not be written and are lost" in caplog.text


def test_an_unwritable_place_is_said_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryError, match="give a writable directory as state_dir"):
        HistoryStore(tmp_path / "file" / "history.sqlite")


def test_a_full_disk_is_counted_and_writing_resumes_when_there_is_room(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True, timeout=30
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        clock = ManualClock()
        store = HistoryStore(disk / "history.sqlite", clock=clock)
        ballast = disk / "ballast"
        wide = {f"n{i}": float(i) for i in range(200)}
        store.write(batch(record(1)))
        ballast.write_bytes(b"x" * (os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - 300_000))
        for step in range(2, 402):
            store.write(batch(record(step, values=wide)))
            clock.advance(0.6)
        assert store.health()["failing"] == 1
        assert "full" in store.trouble
        with HistoryReader(disk / "history.sqlite") as reader:  # what was committed is intact and readable
            assert next(reader.records(RUN)).step == 1
        ballast.unlink()
        clock.advance(6)
        store.write(batch(record(500)))
        assert store.flush()
        store.close()
        with HistoryReader(disk / "history.sqlite") as reader:
            steps = [r.step for r in reader.records(RUN)]
            assert steps == [*range(1, 402), 500]
            assert reader.query("PRAGMA quick_check") == [("ok",)]
    finally:
        subprocess.run(["umount", str(disk)], check=True, timeout=30)


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from sentinel_batches import batch, record
from grpo_sentinel.clock import ManualClock
from grpo_sentinel.config import HistoryConfig
from grpo_sentinel.history import HistoryStore
from grpo_sentinel.views import Cursor
store = HistoryStore(sys.argv[1], HistoryConfig(flush_seconds=0.001), ManualClock())
step = int(sys.argv[3])
while True:
    store.write(batch(record(step, 0), record(step, 1), cursors={0: Cursor(step, 0), 1: Cursor(step, 0)}))
    if store.flush():
        print(step, flush=True)
    step += 1
"""


def test_kill_9_of_the_writer_loses_no_committed_batch_and_repeats_none(path):
    makers = str(Path(__file__).parents[1] / "sinks")
    start = 1
    for _ in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), makers, str(start)], stdout=subprocess.PIPE, text=True
        )
        killer = threading.Timer(30, writer.kill)  # a writer that says nothing must not hang the test
        killer.start()
        committed = start - 1
        for line in writer.stdout:
            committed = int(line)
            if committed >= start + 25:
                break
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.stdout.read().split()
        writer.wait(timeout=30)
        killer.cancel()
        committed = max([committed, *map(int, rest)])
        assert committed >= start + 25
        with HistoryReader(path) as reader:
            cursor = reader.cursors(RUN)[0].record
            steps = [r.step for r in reader.records(RUN, rank=1)]
            assert cursor >= committed
            assert steps == list(range(1, cursor + 1))  # each once, and exactly as many as the cursor says
            assert reader.query("PRAGMA integrity_check") == [("ok",)]
        start = cursor + 1


def test_a_reader_opens_and_streams_while_the_writer_writes(path):
    store = HistoryStore(path, HistoryConfig(flush_seconds=0.001), ManualClock())
    store.write(batch(record(1)))
    stop, failures = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            try:
                with HistoryReader(path) as reader:
                    steps = [r.step for r in reader.records(RUN)]
                    assert steps == list(range(1, len(steps) + 1))
            except (HistoryError, AssertionError) as error:
                failures.append(error)
                return

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    for step in range(2, 1500):
        store.write(batch(record(step)))
        store.flush()
    stop.set()
    thread.join(timeout=30)
    assert not failures
    assert store.health()["errors_total"] == 0
    store.close()


def test_a_slow_reader_does_not_keep_the_log_from_being_folded(path):
    store = HistoryStore(path, clock=ManualClock())
    store.write(batch(*(record(s) for s in range(1, 2000))))
    store.flush()
    with HistoryReader(path) as reader:
        stream = reader.records(RUN)
        next(stream)
        busy = store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        assert busy == 0
        assert sum(1 for _ in stream) == 1998
    store.close()


def test_two_writers_share_one_file(path):
    one, two = (HistoryStore(path, clock=ManualClock()) for _ in range(2))
    for step in range(1, 50):
        one.write(batch(record(step, 0)))
        two.write(batch(record(step, 1), run_id="other"))
        assert one.flush()
        assert two.flush()
    one.close()
    two.close()
    reader = HistoryReader(path)
    assert [len(list(reader.records(run))) for run in (RUN, "other")] == [49, 49]


def test_a_closed_history_reads_from_a_read_only_directory(path):
    stored(path, batch(record(1))).close()
    if os.geteuid() == 0:
        mounted = subprocess.run(
            ["mount", "--bind", str(path.parent), str(path.parent)], capture_output=True, timeout=30
        )
        if (
            mounted.returncode
            or subprocess.run(["mount", "-o", "remount,ro,bind", str(path.parent)], timeout=30).returncode
        ):
            pytest.skip("needs the right to mount")
    else:
        path.parent.chmod(0o500)
    try:
        with HistoryReader(path) as reader:
            assert len(list(reader.records(RUN))) == 1
        with pytest.raises(HistoryError, match="history"):
            HistoryStore(path, clock=ManualClock())
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", str(path.parent)], check=True, timeout=30)
        else:
            path.parent.chmod(0o700)


def test_only_the_owner_may_read_the_files(path):
    store = HistoryStore(path, clock=ManualClock())
    store.write(batch(record(1)))
    store.flush()
    for name in path.parent.iterdir():
        assert name.stat().st_mode & 0o077 == 0, name
    assert path.parent.stat().st_mode & 0o077 == 0
    store.close()


def test_on_a_network_file_system_every_node_has_its_own_file(tmp_path):
    mounts = f"1 0 0:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / {tmp_path} rw - nfs4 server:/home rw\n"
    assert history_path(tmp_path / "x", "node/7", mounts).name == "history-node_7.sqlite"
    assert history_path(Path("/var/lib/x"), "node7", mounts).name == "history.sqlite"
