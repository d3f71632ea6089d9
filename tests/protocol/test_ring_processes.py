"""Real processes: a live reader, kill -9 in mid-write, forked children, who is alive."""

from __future__ import annotations

import os
import signal
import time

import pytest
from ring_support import until

from grpo_sentinel.errors import SegmentError
from grpo_sentinel.protocol import Cursor, RankReader, RankWriter, list_segments, new_identity
from grpo_sentinel.protocol.liveness import AliveProbe
from grpo_sentinel.protocol.places import alive_path
from grpo_sentinel.records import Liveness


def test_a_live_reader_in_another_process_never_gets_a_wrong_record(child, tmp_path):
    """A ring of 8 slots, lapped all the time: 64 equal values per record or none."""
    count = 60_000
    writer = child("flood", tmp_path, count)
    assert writer.line() == "ready"
    reader, cursor = RankReader(tmp_path / "rank-00003.ring"), Cursor()
    taken = missed = bad = last = 0
    deadline = time.monotonic() + 60
    writer.tell()
    while cursor.record < count:
        assert time.monotonic() < deadline
        batch = reader.poll(cursor)
        cursor = batch.cursor
        for record in batch.records:
            assert record.step == record.sequence > last
            assert len(record.values) == 64
            assert set(record.values.values()) == {float(record.step)}
            last = record.step
        taken, missed, bad = taken + len(batch.records), missed + batch.missed_records, bad + batch.bad_slots
    reader.close()
    assert taken + missed + bad == count
    assert taken > 100  # it did read while the other wrote
    assert missed > 100  # and was lapped
    assert bad == 0


def test_a_rank_killed_in_mid_write_costs_one_sample_and_no_more(child, tmp_path):
    """SIGKILL between the copy of record 101 and its sequence: 100 is there, so are the 62 before it."""
    process = child("die_in_mid_write", tmp_path, 101)
    assert process.wait() == -signal.SIGKILL
    reader = RankReader(tmp_path / "rank-00003.ring")
    batch = reader.poll(Cursor(36, 0))
    assert [record.step for record in batch.records] == list(range(38, 101))
    assert all(set(record.values.values()) == {float(record.step)} for record in batch.records)
    assert (batch.missed_records, batch.bad_slots) == (1, 0)
    assert batch.events[0].body == {"last": "words"}
    assert reader.liveness() is Liveness.DEAD
    assert reader.closed is None
    reader.close()


@pytest.mark.parametrize("attempt", range(6))
def test_the_black_box_of_a_rank_killed_at_any_moment_is_whole_but_for_one_sample(child, tmp_path, attempt):
    process = child("flood_forever", tmp_path)
    assert process.line() == "ready"
    reader = RankReader(tmp_path / "rank-00003.ring")
    before = reader.poll().cursor.record
    until(lambda: reader.poll(Cursor(before + 1)).cursor.record > before + 50 * attempt, "the child to go on")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    batch = reader.poll()
    assert len(batch.records) >= 63
    assert all(set(record.values.values()) == {float(record.step)} for record in batch.records)
    assert batch.bad_slots == 0
    steps = [record.step for record in batch.records]
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    assert reader.heartbeat().step >= steps[-1] - 1
    reader.close()


def test_death_by_kill_is_seen_within_two_seconds_with_a_forked_child_left_over(child, tmp_path):
    process = child("hold_with_child", tmp_path)
    left_over = int(process.line())
    try:
        reader = RankReader(tmp_path / "rank-00003.ring")
        assert reader.liveness() is Liveness.ALIVE
        os.kill(process.pid, signal.SIGKILL)  # not waited for: it stays a zombie
        assert until(lambda: reader.liveness() is Liveness.DEAD, "death to be seen") < 2
        os.kill(left_over, 0)  # the child is still there
        reader.close()
    finally:
        os.kill(left_over, signal.SIGKILL)


def test_a_rank_that_closes_is_closed_and_not_dead(child, tmp_path):
    process = child("hold", tmp_path)
    assert process.line() == "ready"
    reader = RankReader(tmp_path / "rank-00003.ring")
    process.tell()
    assert process.line() == "closed"
    assert reader.liveness() is Liveness.CLOSED
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert reader.liveness() is Liveness.CLOSED
    assert reader.closed == "told to"
    reader.close()


def test_out_of_sight_a_free_lock_alone_kills_nobody_and_a_stopped_heartbeat_does(child, tmp_path):
    """A writer in another pid namespace: its pid says nothing here."""
    process = child("hold_elsewhere", tmp_path)
    assert process.line() == "ready"
    reader = RankReader(tmp_path / "rank-00003.ring")
    beat = reader.heartbeat().updated_wall_ns
    assert reader.liveness(wall_ns=beat + 10**12) is Liveness.ALIVE  # the lock outweighs a long generation
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert reader.liveness(wall_ns=beat + 10**8) is Liveness.UNKNOWN
    assert reader.liveness(wall_ns=beat + 2 * 10**9) is Liveness.DEAD
    assert reader.liveness(wall_ns=beat + 2 * 10**9, dead_seconds=5) is Liveness.UNKNOWN
    reader.close()


def test_a_reader_in_the_writers_own_process_does_not_drop_the_lock(child, tmp_path):
    process = child("read_own", tmp_path)
    for _ in range(3):
        assert process.line() == "alive True"
        process.tell()
    assert process.line() == "closed"
    ring = tmp_path / "rank-00003.ring"
    reader = RankReader(ring)
    probe = AliveProbe(alive_path(ring), reader.identity)
    assert probe.held()
    probe.close()
    reader.close()


def test_a_reader_opened_before_its_process_became_the_successor_does_not_drop_the_lock(child, tmp_path):
    first = child("hold", tmp_path)
    assert first.line() == "ready"
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    second = child("restart_beside_a_reader", tmp_path)
    assert second.line() == "dead"
    second.tell()
    assert second.line() == "closed"
    reader = RankReader(tmp_path / "rank-00003.ring")
    probe = AliveProbe(alive_path(reader.path), reader.identity)
    assert probe.held()
    probe.close()
    reader.close()


def test_a_reader_of_the_predecessor_is_not_fooled_by_the_successors_lock(child, tmp_path):
    first = child("hold", tmp_path)
    assert first.line() == "ready"
    old = RankReader(tmp_path / "rank-00003.ring")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    second = child("hold", tmp_path)
    assert second.line() == "ready"
    assert old.replaced
    assert old.liveness() is Liveness.DEAD
    new = RankReader(old.path)
    assert new.liveness() is Liveness.ALIVE
    assert [record.sequence for record in new.poll(old.poll().cursor).records] == [2]
    old.close()
    new.close()


def test_a_second_living_writer_in_one_place_is_refused_with_a_remedy(child, tmp_path, make):
    process = child("hold", tmp_path)
    assert process.line() == "ready"
    with pytest.raises(SegmentError, match=r"living process.*GRPO_SENTINEL_RUN_ID"):
        RankWriter(tmp_path, new_identity(3, 3, 8, "run"))
    reader = RankReader(tmp_path / "rank-00003.ring")
    assert reader.identity.pid == process.pid
    assert reader.liveness() is Liveness.ALIVE
    reader.close()
    make(rank=4)
    with pytest.raises(SegmentError, match="living process"):
        RankWriter(tmp_path, new_identity(4, 4, 8, "run"))
    assert len(list_segments(tmp_path)) == 2


def test_a_forked_child_writes_nothing_and_its_exit_closes_nothing(child, tmp_path):
    process = child("fork_and_exit", tmp_path)
    assert process.line() == "child gone"
    reader = RankReader(tmp_path / "rank-00003.ring")
    assert reader.liveness() is Liveness.ALIVE
    assert reader.heartbeat().step == 0
    assert reader.poll().events == ()
    process.tell()
    assert process.line() == "pushed"
    assert [(record.sequence, record.step) for record in reader.poll().records] == [(1, 1), (2, 3)]
    probe = AliveProbe(alive_path(reader.path), reader.identity)
    assert probe.held()
    probe.close()
    process.tell()
    assert process.wait() == 0
    assert reader.closed == "at exit"
    reader.close()
