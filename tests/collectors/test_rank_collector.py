"""The rank collector against real rings written by real processes, killed, restarted and damaged."""

from __future__ import annotations

import os
import shutil
import time
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from collector_worlds import RankProcess

from grpo_sentinel.clock import ManualClock, SystemClock
from grpo_sentinel.collectors.ranks import RankCollector
from grpo_sentinel.protocol import Geometry, RankWriter, new_identity
from grpo_sentinel.protocol.layout import HEADER_BYTES
from grpo_sentinel.records import Ack, Frame, HaltState, Kind, Liveness, Mode, Phase
from grpo_sentinel.views import Cursor, RankBatch

Start = Callable[..., RankProcess]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


class Watch:
    """A collector with a clock moved by hand; every poll comes at a later moment."""

    def __init__(
        self, directory: Path, cursors: dict[int, Cursor] | None = None, late_rank_seconds: float = 2.0
    ) -> None:
        self.clock = ManualClock(wall_ns=time.time_ns())
        self.collector = RankCollector(directory, self.clock, cursors or {}, late_rank_seconds, dead_seconds=1.0)
        self.statuses: dict[int, object] = {}

    def poll(self, after: float = 0.25) -> RankBatch:
        self.clock.advance(after)
        return self.collector.poll()


def _rows(frames: Iterable[Frame]) -> list[tuple[int, tuple[int, ...]]]:
    return [(frame.step, tuple(frame.ranks)) for frame in frames]


def test_ranks_of_several_processes_are_aligned_by_step(run: Path, start_rank: Start) -> None:
    ranks = [start_rank(0), start_rank(1), start_rank(2)]
    watch = Watch(run)
    for rank in ranks:
        rank.tell("steps", 1, 40)
    batch = watch.poll()

    assert _rows(batch.frames) == [(step, (0, 1, 2)) for step in range(1, 41)]
    assert batch.frames[6].ranks[2] == {"gradient.norm_preclip": 7.0}
    assert len(batch.records) == 120
    assert batch.missed_records == batch.bad_slots == batch.late_records == 0
    assert {rank: status.last_step for rank, status in batch.ranks.items()} == {0: 40, 1: 40, 2: 40}
    assert all(status.liveness is Liveness.ALIVE for status in batch.ranks.values())
    assert watch.poll().frames == ()


def test_a_directory_that_is_not_there_yet_is_waited_for(tmp_path: Path, start_rank: Start) -> None:
    watch = Watch(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    assert watch.poll() == RankBatch()
    (tmp_path / "run").mkdir(mode=0o700)
    start_rank(0).tell("step", 1)

    assert _rows(watch.poll().frames) == [(1, (0,))]


def test_a_rank_that_appears_later_joins(run: Path, start_rank: Start) -> None:
    watch = Watch(run)
    first = start_rank(0)
    first.tell("step", 1)
    assert _rows(watch.poll().frames) == [(1, (0,))]
    second = start_rank(1)
    first.tell("step", 2)
    assert _rows(watch.poll().frames) == []
    second.tell("step", 2)
    assert _rows(watch.poll().frames) == [(2, (0, 1))]


def test_a_late_rank_is_missing_after_the_wait(run: Path, start_rank: Start) -> None:
    first, second = start_rank(0), start_rank(1)
    watch = Watch(run)
    first.tell("step", 1)
    assert watch.poll().frames == ()
    (frame,) = watch.poll(after=2.1).frames
    assert frame.missing == (1,)
    second.tell("step", 1)
    batch = watch.poll()

    assert batch.frames == ()
    assert batch.late_records == 1
    assert len(batch.records) == 1  # still a record: only the frame has gone


def test_a_rank_killed_is_dead_within_two_seconds_and_its_last_data_are_evidence(run: Path, start_rank: Start) -> None:
    first, second = start_rank(0), start_rank(1)
    collector = RankCollector(run, SystemClock())
    for rank in (first, second):
        rank.tell("step", 1)
        rank.tell("data", 2, 3 if rank is second else 0)
    assert _rows(collector.poll().frames) == [(1, (0, 1))]
    second.kill()
    killed = time.monotonic()

    while True:
        batch = collector.poll()
        if batch.ranks[1].liveness is Liveness.DEAD:
            break
        assert time.monotonic() < killed + 2, "death was not seen within two seconds"
        time.sleep(0.03)
    assert batch.frames[0].step == 2
    assert batch.frames[0].ranks[1] == {"data.out_of_vocabulary": 3}
    assert batch.ranks[0].liveness is Liveness.ALIVE
    assert batch.ranks[1].values["gradient.norm_preclip"] == 1
    assert batch.ranks[1].last_step == 1


def test_a_death_in_another_pid_namespace_is_seen_by_lock_and_heartbeat(run: Path, start_rank: Start) -> None:
    rank = start_rank(0)
    rank.tell("step", 1)
    watch = Watch(run)
    watch.poll()
    segment = next(iter(watch.collector._segments.values()))
    segment._reader.identity = replace(segment._reader.identity, pid_namespace=1)
    rank.kill()
    watch.clock.advance(5)

    assert watch.poll().ranks[0].liveness is Liveness.DEAD


def test_a_rank_that_finished_is_closed_and_says_why(run: Path, start_rank: Start) -> None:
    rank = start_rank(0)
    watch = Watch(run)
    watch.poll()
    rank.tell("step", 1)
    rank.tell("close")
    batch = watch.poll()

    assert _rows(batch.frames) == [(1, (0,))]
    assert batch.ranks[0].liveness is Liveness.CLOSED
    assert batch.ranks[0].closed_detail == "finished"


def test_a_collector_started_again_loses_nothing_and_repeats_nothing(run: Path, start_rank: Start) -> None:
    ranks = [start_rank(0), start_rank(1)]
    before = Watch(run)
    for rank in ranks:
        rank.tell("steps", 1, 5)
        rank.tell("event", 5)
    ranks[0].tell("data", 6, 0)
    ranks[0].tell("step", 6)
    ranks[1].tell("data", 6, 9)
    first = before.poll()
    assert _rows(first.frames) == [(step, (0, 1)) for step in range(1, 6)]
    cursors = {rank: status.cursor for rank, status in first.ranks.items()}

    ranks[1].tell("step", 6)
    for rank in ranks:
        rank.tell("steps", 7, 9)
        rank.tell("event", 9)
    second = Watch(run, cursors).poll()

    assert _rows(second.frames) == [(step, (0, 1)) for step in range(6, 10)]
    assert second.frames[0].ranks[1]["data.out_of_vocabulary"] == 9  # read by the one before
    assert [(record.rank, record.step) for record in second.records].count((1, 6)) == 1
    assert len(second.records) == 7
    assert {(event.rank, event.step) for event in second.events} == {(0, 9), (1, 9)}
    assert second.ranks[0].last_step == 9


def test_a_collector_started_again_after_the_run_ended_still_completes_the_open_step(
    run: Path, start_rank: Start
) -> None:
    ranks = [start_rank(0), start_rank(1)]
    for rank in ranks:
        rank.tell("data", 1, 4)
    cursors = {rank: status.cursor for rank, status in Watch(run).poll().ranks.items()}
    for rank in ranks:
        rank.tell("step", 1)
        rank.tell("close")
    (frame,) = Watch(run, cursors).poll().frames

    assert frame.ranks[0] == {"data.out_of_vocabulary": 4, "gradient.norm_preclip": 0}
    assert frame.ranks[1] == {"data.out_of_vocabulary": 4, "gradient.norm_preclip": 1}


def test_records_overwritten_while_nobody_read_are_counted_and_the_rest_is_kept(run: Path, start_rank: Start) -> None:
    rank = start_rank(0, slots=64)
    rank.tell("steps", 1, 10)
    cursors = {0: Watch(run).poll().ranks[0].cursor}
    rank.tell("steps", 11, 110)
    batch = Watch(run, cursors).poll()

    assert batch.missed_records == batch.ranks[0].missed_records == 36
    assert [frame.step for frame in batch.frames] == list(range(47, 111))


def test_the_ring_of_a_dead_run_is_read_as_a_black_box(run: Path, start_rank: Start) -> None:
    rank = start_rank(0)
    rank.tell("steps", 1, 3)
    rank.tell("data", 4, 1)
    rank.kill()
    batch = Watch(run).poll()

    assert batch.ranks[0].liveness is Liveness.DEAD
    assert [frame.step for frame in batch.frames] == [1, 2, 3, 4]


def test_a_restarted_rank_is_followed_into_its_new_segment_and_the_last_words_of_the_old_are_kept(
    run: Path, start_rank: Start
) -> None:
    old = start_rank(0)
    old.tell("steps", 1, 25)
    watch = Watch(run)
    watch.poll()
    old.tell("step", 26)
    old.tell("data", 27, 5)
    old.kill()
    new = start_rank(0)
    new.tell("steps", 21, 23)
    batch = watch.poll()

    assert _rows(batch.frames) == [(26, (0,)), (27, (0,)), (21, (0,)), (22, (0,)), (23, (0,))]
    assert batch.ranks[0].identity.pid == new.process.pid
    assert batch.ranks[0].liveness is Liveness.ALIVE
    assert batch.missed_records == 0
    new.tell("step", 24)
    assert _rows(watch.poll().frames) == [(24, (0,))]


def test_a_backlog_is_aligned_by_the_time_of_its_records_and_not_rank_after_rank(run: Path, start_rank: Start) -> None:
    ranks = [start_rank(0), start_rank(1)]
    steps = [1, 2, 3, 4, 2, 3, 4, 5]  # back to a checkpoint after step 1
    for step in steps:
        for rank in ranks:
            rank.tell("step", step)
    batch = Watch(run).poll()

    assert [record.step for record in batch.records if record.rank == 1] == steps
    assert _rows(batch.frames) == [(step, (0, 1)) for step in steps]
    assert batch.late_records == 0


def test_a_segment_replaced_while_the_daemon_was_away_loses_nothing_of_the_new_one(
    run: Path, start_rank: Start
) -> None:
    old = start_rank(0)
    old.tell("steps", 1, 30)
    cursors = {0: Watch(run).poll().ranks[0].cursor}
    old.kill()
    start_rank(0).tell("steps", 11, 50)

    assert [record.step for record in Watch(run, cursors).poll().records] == list(range(11, 51))


def test_a_corrupted_slot_is_counted_and_never_a_value(run: Path, start_rank: Start) -> None:
    start_rank(0).tell("steps", 1, 10)
    geometry = Geometry()
    at = HEADER_BYTES + geometry.name_bytes + 4 * geometry.slot_bytes + 70
    with (run / "rank-00000.ring").open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0xFF]))
    batch = Watch(run).poll()

    assert batch.bad_slots == batch.ranks[0].bad_slots == 1
    assert [frame.step for frame in batch.frames] == [1, 2, 3, 4, 6, 7, 8, 9, 10]


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"GRPOSNTL" + b"\x63\0\0\0" * 4, "version 99"), (b"junk" * 2000, "not a grpo-sentinel segment"), (b"", "not a")],
    ids=["version", "garbage", "empty"],
)
def test_a_segment_that_cannot_be_read_is_said_once_and_hides_no_other(
    run: Path, start_rank: Start, content: bytes, word: str
) -> None:
    good = start_rank(0)
    (run / "rank-00001.ring").write_bytes(content)
    watch = Watch(run)
    batch = watch.poll()
    assert word in batch.unreadable["rank-00001.ring"]
    assert watch.poll().unreadable == {}
    good.tell("step", 1)
    assert _rows(watch.poll().frames) == [(1, (0,))]

    (run / "rank-00001.ring").unlink()
    start_rank(1).tell("step", 2)  # repaired: it is read
    assert [record.step for record in watch.poll().records] == [2]


def test_a_segment_truncated_under_the_reader_is_said_and_let_go(run: Path, start_rank: Start) -> None:
    start_rank(0).tell("step", 1)
    watch = Watch(run)
    watch.poll()
    os.truncate(run / "rank-00000.ring", 5000)
    batch = watch.poll()

    assert "truncated" in batch.unreadable["rank-00000.ring"]
    assert batch.ranks == {}
    assert watch.poll().unreadable == {}


def test_evaluation_is_a_frame_of_its_own_and_not_among_the_newest_values(run: Path, start_rank: Start) -> None:
    ranks = [start_rank(0), start_rank(1)]
    for rank in ranks:
        rank.tell("generation", 1)
        rank.tell("eval", 1)
        rank.tell("step", 1)
    batch = Watch(run).poll()

    by_mode = {frame.mode: frame for frame in batch.frames}
    assert by_mode[Mode.TRAIN].ranks[0]["reward.mean"] == 0.25
    assert by_mode[Mode.EVALUATION].ranks[0] == {"reward.mean": 1.0}
    assert batch.ranks[0].values["reward.mean"] == 0.25


def test_the_status_of_a_rank_tells_where_it_is_and_how_far_behind(run: Path, start_rank: Start) -> None:
    fast, slow = start_rank(0), start_rank(1)
    fast.tell("steps", 1, 5)
    slow.tell("steps", 1, 3)
    slow.tell("phase", 4)
    status = Watch(run).poll().ranks

    assert status[1].heartbeat.step == 4
    assert status[1].heartbeat.phase is Phase.FORWARD
    assert status[1].values["sentinel.frame_skew_steps"] == 2
    assert status[0].values["sentinel.frame_skew_steps"] == 0
    assert status[0].updated_wall_ns > 0


def test_acknowledgements_reach_the_status(run: Path) -> None:
    run.mkdir(mode=0o700)
    writer = RankWriter(run, new_identity(0, 0, 1, "run"))
    ack = Ack(request_id=7, state=HaltState.VOTED, step=12, wall_ns=5)
    writer.acknowledge(ack)

    assert Watch(run).poll().ranks[0].acknowledgement == ack
    writer.close()


def test_eight_ranks_for_long_keep_memory_bounded(run: Path) -> None:
    run.mkdir(mode=0o700)
    writers = [RankWriter(run, new_identity(rank, rank, 8, "run"), Geometry(slots=64)) for rank in range(8)]
    watch = Watch(run)
    values = {f"policy.signal_{number}": float(number) for number in range(20)}

    def work(steps: range) -> int:
        frames = 0
        for step in steps:
            for writer in writers[: 7 if step % 3 else 8]:  # rank 7 is late in two steps of three
                writer.push(values, step=step, kind=Kind.DATA)
                writer.push(values, step=step)
            frames += len(watch.poll(after=0.1).frames)
        return frames

    tracemalloc.start()
    try:
        work(range(1, 150))
        before = tracemalloc.get_traced_memory()[0]
        assert work(range(150, 350)) >= 190
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        for writer in writers:
            writer.close()
    assert grown < 500_000


def test_files_of_an_earlier_larger_world_are_no_ranks_of_the_run_started_again(run: Path) -> None:
    for rank in range(3):
        RankWriter(run, replace(new_identity(rank, rank, 3, "run"), created_wall_ns=10)).close("halted")
    with_two = [RankWriter(run, new_identity(rank, rank, 2, "run")) for rank in range(2)]
    assert sorted(Watch(run).poll().ranks) == [0, 1]
    for writer in with_two:
        writer.close()
