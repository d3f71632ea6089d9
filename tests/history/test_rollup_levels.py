"""Rollups of rollups: any length of run is drawn from a bounded number of rows, and no value is lost on the way up."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sentinel_batches import RUN, batch, record

from grpo_sentinel.clock import ManualClock
from grpo_sentinel.config import HistoryConfig
from grpo_sentinel.history import HistoryReader, HistoryStore, Series, retention, rollup, series
from grpo_sentinel.records import Kind

NAME = "policy.loss"
ANY = st.one_of(
    st.floats(width=64, allow_nan=False, allow_infinity=False),
    st.sampled_from([math.nan, math.inf, -math.inf, -0.0]),
)


@contextmanager
def small_buckets() -> Iterator[None]:
    """Fold every 4 steps, then every 2 buckets: some hundred steps reach the upper levels."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (rollup, series):
            patch.setattr(module, "BUCKET_STEPS", 4)
        patch.setattr(rollup, "FAN_IN", 2)
        yield


def written(path: Path, values: Sequence[float], first: int = 1, cuts: Sequence[int] = (), wall_ns: int = 0) -> None:
    """Store one value a step, in commits that end at `cuts`, each by a writer of its own."""
    ends = sorted({first + cut for cut in cuts} | {first + len(values)})
    for begin, end in zip([first, *ends], ends, strict=False):
        store = HistoryStore(path, clock=ManualClock())
        made = (record(step, values={NAME: values[step - first]}, wall_ns=wall_ns + step) for step in range(begin, end))
        store.write(batch(*made))
        store.close()


def caught_up(path: Path) -> int:
    """Let a writer without anything to write fold what is missing; gives the number of its commits."""
    clock = ManualClock()
    store = HistoryStore(path, clock=clock)
    commits = -1
    while commits != (commits := int(store.health()["commits_total"])):
        clock.advance(2)
        store.tick()
    store.close()
    return commits


def reference(values: Sequence[float]) -> tuple[float | None, float | None, int]:
    finite = [value for value in values if math.isfinite(value)]
    return min(finite, default=None), max(finite, default=None), len(values) - len(finite)


def total(found: Series) -> tuple[float | None, float | None, int]:
    low = [value for value in found.low if value == value]
    high = [value for value in found.high if value == value]
    return min(low, default=None), max(high, default=None), sum(found.nonfinite)


def stored(path: Path) -> dict[tuple[int, int], tuple[float | None, float | None, int]]:
    """Give every rollup by level and bucket."""
    with HistoryReader(path) as reader:
        rows = reader.query(
            "SELECT level, bucket, data FROM rollups WHERE run=? ORDER BY level, bucket", (reader.run_key(RUN),)
        )
    out = {}
    for level, bucket, data in rows:
        low, high, bad = rollup.unpack_values(data)
        out[level, bucket] = (None if low != low else low, None if high != high else high, int(bad))
    return out


def as_version_2(path: Path) -> None:
    """Turn a file into what the version before levels has written."""
    raw = sqlite3.connect(path, isolation_level=None)
    raw.executescript(
        "DELETE FROM rollups WHERE level>0; DROP INDEX rollups_by_bucket; ALTER TABLE rollups DROP COLUMN level;"
        "CREATE UNIQUE INDEX rollups_by_bucket ON rollups (run, rank, mode, bucket);"
        "ALTER TABLE runs DROP COLUMN unjudged; PRAGMA user_version=2"
    )
    raw.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(ANY, min_size=1, max_size=150),
    first=st.integers(0, 40),
    cuts=st.lists(st.integers(1, 150), max_size=4),
    old=st.booleans(),
)
def test_lowest_highest_and_count_are_those_of_all_values_at_every_level(tmp_path_factory, values, first, cuts, old):
    path = tmp_path_factory.mktemp("levels") / "history.sqlite"
    with small_buckets():
        written(path, values, first, [cut for cut in cuts if cut < len(values)])
        if old:
            as_version_2(path)
        for caught in (False, True):
            if caught:
                caught_up(path)
                for (level, bucket), found in stored(path).items():
                    size = rollup.steps_of(level)
                    begin = bucket * size - first
                    assert found == reference(values[max(0, begin) : begin + size]), (level, bucket)
            with HistoryReader(path) as reader:
                for points in (None, 1, 3, 12, 60, 1000):
                    assert total(reader.series(RUN, 0, NAME, max_points=points)) == reference(values), points


def test_the_rows_that_are_read_do_not_grow_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    query = HistoryReader.query

    def counted(self: HistoryReader, *asked: object) -> list:
        rows = query(self, *asked)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(HistoryReader, "query", counted)
    most = {}
    with small_buckets():
        for steps in (1000, 8000):
            path = tmp_path / f"{steps}.sqlite"
            written(path, [float(step % 100) for step in range(steps)])
            caught_up(path)
            with HistoryReader(path) as reader:
                read.clear()
                found = reader.series(RUN, 0, NAME, max_points=60)
                most[steps] = sum(read)
                assert 15 <= len(found.steps) <= 60
                read.clear()
                assert reader.signals(RUN) == [NAME]
                assert sum(read) < 300, "names are looked up, not gathered from every rollup"
    assert max(most.values()) < 100, most


def test_a_file_of_the_version_before_is_rolled_up_a_bounded_piece_at_a_time(tmp_path, monkeypatch) -> None:
    path = tmp_path / "history.sqlite"
    values = [float(step) for step in range(600)]
    with small_buckets():
        written(path, values)
        caught_up(path)
        whole = stored(path)
        as_version_2(path)
        with HistoryReader(path) as reader:
            assert total(reader.series(RUN, 0, NAME, max_points=30)) == reference(values), "read as it is"
        monkeypatch.setattr(rollup, "MAX_FOLDS", 10)
        assert caught_up(path) >= len([level for level, _ in whole if level]) // 10
        assert stored(path) == whole


def test_an_old_run_is_rolled_up_beside_one_that_is_written(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with small_buckets():
        written(path, [float(step) for step in range(600)])
        caught_up(path)
        whole = stored(path)
        as_version_2(path)
        clock = ManualClock()
        store = HistoryStore(path, clock=clock)
        for step in range(1, 9):
            store.write(batch(record(step, run_id="new"), run_id="new"))
            clock.advance(2)
        store.close()
        assert stored(path).items() >= whole.items()


def test_a_run_resumed_under_its_old_name_is_seen_at_every_level_at_once(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with small_buckets():
        written(path, [1.0] * 400)
        written(path, [1.0, 1.0, 77.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], first=100, wall_ns=10**9)
        with HistoryReader(path) as reader:
            assert max(reader.series(RUN, 0, NAME, max_points=6).high) == 77.0
        assert {level for (level, _), found in stored(path).items() if found[1] == 77.0} == {0, 1, 2, 3, 4, 5}


def test_steps_whose_records_were_pruned_are_drawn_from_rollups_also_close_up(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    steps = rollup.BUCKET_STEPS * 20
    written(path, [5.0 if step == 130 else 1.0 for step in range(steps)], first=0)
    with sqlite3.connect(path) as raw:
        raw.execute("DELETE FROM records WHERE step < 640")
    raw.close()
    with HistoryReader(path) as reader:
        found = reader.series(RUN, 0, NAME, since_step=100, until_step=200, max_points=400)
        assert max(found.high) == 5.0
        assert reader.series(RUN, 0, NAME, since_step=700, until_step=800, max_points=400).steps[:2] == (700, 701)


def test_retention_takes_the_oldest_rollups_of_every_level(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with small_buckets():
        written(path, [1.0] * 400)
        store = HistoryStore(path, HistoryConfig(retention_days=0.001), ManualClock())
        store.write(batch(record(1, run_id="young"), run_id="young", wall_ns=2**62))
        store.close()
    raw = sqlite3.connect(path)
    while retention.prune(raw, now_ns=2**62, retention_days=0.001, max_bytes=10**9)[1]:
        pass
    assert raw.execute("SELECT count(*) FROM rollups").fetchone()[0] == 0
    raw.close()


@pytest.mark.parametrize("ranks", [(0, 1, 2, 3, 4, 5), (5, 2), (3,), (4, 4), (0, 9)])
@pytest.mark.parametrize("chunk", [2000, 30])
def test_several_ranks_read_at_once_give_what_each_gives_alone(tmp_path, monkeypatch, ranks, chunk) -> None:
    def value(rank: int, step: int) -> float:
        return math.nan if (rank, step) == (2, 77) else rank + step / 1000

    monkeypatch.setattr(series, "_CHUNK", chunk)
    path = tmp_path / "history.sqlite"
    store = HistoryStore(path, clock=ManualClock())
    for step in range(1, 201):
        for rank in range(6):
            if (step + rank) % 50:  # no rank has every step
                data = record(step, rank, {"data.samples": 4.0}, sequence=2 * step, kind=Kind.DATA)
                store.write(batch(data, record(step, rank, {NAME: value(rank, step)}, sequence=2 * step + 1)))
    store.close()
    with HistoryReader(path) as reader:
        for line, rank in zip(reader.lines(RUN, ranks, NAME), ranks, strict=True):
            steps = tuple(step for step in range(1, 201) if (step + rank) % 50 and rank < 6)
            assert (line.rank, line.steps) == (rank, steps)
            expected = [value(rank, step) for step in steps]
            assert [low for low in line.low if low == low] == [one for one in expected if one == one]
            assert sum(line.nonfinite) == sum(one != one for one in expected)
        close = reader.lines(RUN, ranks, NAME, since_step=50, until_step=60, max_points=5)
        assert all(len(line.steps) <= 5 for line in close)
