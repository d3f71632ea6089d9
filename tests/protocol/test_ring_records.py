"""Records: what is pushed comes out, bit for bit, once, in order."""

from __future__ import annotations

import math
import struct
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ring_support import SMALL

from grpo_sentinel.errors import SegmentError
from grpo_sentinel.protocol import Cursor, Geometry, RankReader, RankWriter, new_identity
from grpo_sentinel.records import Ack, HaltState, Kind, Mode, Phase

NAN_WITH_PAYLOAD = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_DEAD_BEEF))[0]
names = st.text(min_size=0, max_size=30)
numbers = st.floats(width=64) | st.just(NAN_WITH_PAYLOAD) | st.integers(-(2**53), 2**53) | st.booleans()
records = st.dictionaries(names, numbers, max_size=60)


def bits(values: dict[str, float]) -> dict[str, bytes]:
    # A lone surrogate is no UTF-8: it travels as its escape.
    return {k.encode("utf-8", "backslashreplace").decode(): struct.pack("<d", v) for k, v in values.items()}


@settings(max_examples=60, deadline=None)
@given(pushed=st.lists(records, max_size=12))
def test_any_numbers_under_any_names_come_out_bit_for_bit(pushed):
    with tempfile.TemporaryDirectory() as directory:
        writer = RankWriter(Path(directory), new_identity(0, 0, 1, "run"), Geometry(name_bytes=1 << 20))
        reader = RankReader(writer.path)
        for step, values in enumerate(pushed, 1):
            writer.push(values, step=step)
        batch = reader.poll()
        writer.close()
        reader.close()
    assert [bits(record.values) for record in batch.records] == [bits(values) for values in pushed]
    assert [record.step for record in batch.records] == list(range(1, len(pushed) + 1))
    assert batch.missed_records == batch.bad_slots == 0


@settings(max_examples=60, deadline=None)
@given(rounds=st.lists(st.lists(st.integers(0, 60), max_size=14), max_size=6))
def test_every_record_is_either_returned_once_or_counted_as_missed(rounds):
    """Wrap-around, split records (14 values fit a slot) and a cursor, against a plain list."""
    with tempfile.TemporaryDirectory() as directory:
        writer = RankWriter(Path(directory), new_identity(0, 0, 1, "run"), SMALL)
        reader, cursor, step = RankReader(writer.path), Cursor(), 0
        for sizes in rounds:
            expected, slots = [], 0
            for size in sizes:
                step += 1
                size = min(size, SMALL.values_per_slot * (SMALL.slots // 2))
                writer.push({f"s{i}": step + i for i in range(size)}, step=step)
                parts = max(1, -(-size // SMALL.values_per_slot))
                slots += parts
                expected.append((step, size, parts))
            batch = reader.poll(cursor)
            cursor = batch.cursor
            room, whole = SMALL.slots, []
            for entry in reversed(expected):
                room -= entry[2]
                if room < 0:
                    break
                whole.insert(0, entry)
            returned = [record for record in batch.records if record.step in {entry[0] for entry in whole}]
            assert [(record.step, len(record.values)) for record in returned] == [entry[:2] for entry in whole]
            for record in batch.records:
                assert all(value == record.step + int(name[1:]) for name, value in record.values.items())
            assert batch.missed_records == max(0, slots - SMALL.slots)
            assert batch.bad_slots == 0
        assert reader.poll(cursor).records == ()
        writer.close()
        reader.close()


def test_all_fields_of_a_record_come_out(make):
    writer, reader = make()
    writer.push({"a": 1}, step=7, kind=Kind.DATA, mode=Mode.EVALUATION, micro_batch=3, generation=12)
    (record,) = reader.poll().records
    assert (record.run_id, record.rank, record.sequence, record.step) == ("run", 3, 1, 7)
    assert (record.kind, record.mode, record.micro_batch, record.generation) == (Kind.DATA, Mode.EVALUATION, 3, 12)
    assert record.wall_ns > 1e18
    assert record.monotonic_ns > 0


def test_the_segment_names_its_writer(make):
    writer, reader = make()
    assert reader.identity == writer.identity


def test_a_record_too_large_for_one_slot_comes_out_whole(make):
    writer, reader = make()
    values = {f"s{i}": float(i) for i in range(50)}
    writer.push(values, step=1)
    writer.push({"a": 1.0}, step=2)
    batch = reader.poll()
    assert [record.values for record in batch.records] == [values, {"a": 1.0}]
    assert batch.cursor.record == 5  # four slots and one
    assert [record.sequence for record in batch.records] == [1, 5]


def test_a_record_larger_than_half_the_ring_loses_its_last_values_and_says_so(make):
    writer, reader = make()
    writer.push({f"s{i}": float(i) for i in range(500)}, step=1)
    (record,) = reader.poll().records
    assert len(record.values) == SMALL.values_per_slot * 4
    assert writer.values_dropped == reader.losses["values_dropped"] == 500 - len(record.values)


def test_a_name_table_that_is_full_drops_only_the_new_names_and_counts_each_once(make):
    writer, reader = make(Geometry(slots=8, slot_bytes=256, name_bytes=64))
    for step in range(1, 4):
        writer.push({f"name_{i}": float(i) for i in range(8)}, step=step)
    assert [set(record.values) for record in reader.poll().records] == [{"name_0", "name_1", "name_2", "name_3"}] * 3
    assert writer.names_overflow == reader.losses["names_overflow"] == 4
    assert writer.values_dropped == 12


def test_what_is_no_number_is_dropped_and_counted_and_the_rest_arrives(make):
    class Hostile:
        def __float__(self):
            raise RuntimeError("no")

    writer, reader = make()
    writer.push({"a": 1.0, "b": None, "c": "3", "d": Hostile(), "e": 10**400, 5: 2.0, "f": True}, step=1)
    (record,) = reader.poll().records
    assert record.values == {"a": 1.0, "f": 1.0}
    assert writer.values_dropped == 5


@pytest.mark.parametrize("values", [None, 7, object(), [1, 2]])
def test_a_push_of_nonsense_raises_nothing_and_is_counted(make, values):
    writer, reader = make()
    writer.push(values, step=1)
    writer.push({"a": 1.0}, step="two")
    writer.push({"a": 1.0}, step=3)
    assert [record.step for record in reader.poll().records] == [3]
    assert writer.pushes_lost == reader.losses["pushes_lost"] == 2


def test_a_step_out_of_range_is_brought_into_range(make):
    writer, reader = make()
    writer.push({"a": 1.0}, step=1 << 80, micro_batch=-4)
    (record,) = reader.poll().records
    assert (record.step, record.micro_batch) == ((1 << 63) - 1, 0)


def test_a_push_from_a_signal_handler_inside_a_push_is_dropped_and_breaks_nothing(make):
    writer, reader = make()

    class Interrupting:
        def __float__(self):
            writer.push({"b": 1.0}, step=99)
            return 5.0

    writer.push({"a": Interrupting()}, step=1)
    assert [(record.step, dict(record.values)) for record in reader.poll().records] == [(1, {"a": 5.0})]
    assert writer.pushes_lost >= 1


def test_threads_that_push_at_once_lose_and_mix_nothing(make):
    writer, reader = make(Geometry(slots=4096, slot_bytes=256))
    barrier = threading.Barrier(4)

    def push(thread: int) -> None:
        barrier.wait(10)
        for number in range(1, 501):
            writer.push({"thread": thread, "number": number, "again": number}, step=number)
            writer.event("note", {"thread": thread}, step=number)

    threads = [threading.Thread(target=push, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    batch = reader.poll()
    assert [record.sequence for record in batch.records] == list(range(1, 2001))
    for thread in range(4):
        own = [record for record in batch.records if record.values["thread"] == thread]
        assert [record.values["number"] for record in own] == list(range(1, 501))
        assert all(record.values["again"] == record.step for record in own)
    assert batch.cursor.event == 2000
    assert batch.bad_slots == writer.pushes_lost == 0


def test_the_order_of_the_same_names_does_not_matter(make):
    writer, reader = make()
    writer.push({"a": 1.0, "b": 2.0}, step=1)
    writer.push({"b": 3.0, "a": 4.0}, step=2)
    writer.push({"a": 5.0, "c": 6.0}, step=3)
    writer.push(MappingProxyType({"c": 7.0, "a": 8.0}), step=4)
    assert [dict(record.values) for record in reader.poll().records] == [
        {"a": 1.0, "b": 2.0},
        {"a": 4.0, "b": 3.0},
        {"a": 5.0, "c": 6.0},
        {"a": 8.0, "c": 7.0},
    ]


def test_a_push_of_a_defaultdict_leaves_it_as_it_was(make):
    writer, reader = make()
    writer.push({"a": 1.0, "b": 2.0}, step=1)
    values = defaultdict(float, {"a": 3.0, "c": 4.0})
    writer.push(values, step=2)
    assert dict(values) == {"a": 3.0, "c": 4.0}
    assert dict(reader.poll().records[1].values) == {"a": 3.0, "c": 4.0}


def test_a_reader_resumes_at_its_cursor_after_a_restart(make):
    writer, reader = make()
    for step in range(1, 4):
        writer.push({"a": step}, step=step)
    cursor = reader.poll().cursor
    reader.close()
    for step in range(4, 7):
        writer.push({"a": step}, step=step)
    again = RankReader(writer.path)
    assert [record.step for record in again.poll(cursor).records] == [4, 5, 6]
    again.close()


def test_a_cursor_beyond_the_head_starts_over(make):
    writer, reader = make()
    writer.push({"a": 1}, step=1)
    batch = reader.poll(Cursor(1000, 1000))
    assert [record.step for record in batch.records] == [1]
    assert batch.missed_records == batch.missed_events == 0


def test_a_restarted_rank_replaces_its_segment_and_cursors_stay_valid(tmp_path):
    first = RankWriter(tmp_path, new_identity(3, 3, 8, "run"), SMALL)
    old = RankReader(first.path)
    for step in range(1, 6):
        first.push({"a": step}, step=step)
    cursor = old.poll().cursor
    first.push({"a": 6}, step=6)
    first.close("crashed")
    assert not old.replaced
    second = RankWriter(tmp_path, new_identity(3, 3, 8, "run"), SMALL)
    second.push({"other": 1}, step=1)
    assert old.replaced
    assert [record.step for record in old.poll(cursor).records] == [6]  # the old mapping stays readable
    new = RankReader(second.path)
    batch = new.poll(cursor)
    assert [(record.sequence, dict(record.values)) for record in batch.records] == [(7, {"other": 1.0})]
    assert batch.missed_records == 1  # record 6 went with the old file, for a reader that comes only now
    assert new.poll().missed_records == 0
    for one in (old, new, second):
        one.close()


def test_heartbeat_acknowledgement_and_closing_note_come_out(make):
    writer, reader = make()
    assert reader.heartbeat().phase is Phase.IDLE
    assert reader.acknowledgement() is None
    assert reader.closed is None
    writer.phase(Phase.BACKWARD, 12)
    first = reader.heartbeat()
    writer.phase(Phase.BACKWARD, 12)
    second = reader.heartbeat()
    assert (second.step, second.phase) == (12, Phase.BACKWARD)
    assert second.phase_since_wall_ns == first.phase_since_wall_ns
    assert second.updated_wall_ns > first.updated_wall_ns
    ack = Ack(request_id=4, state=HaltState.DONE, step=9, wall_ns=123, detail="/ckpt/é" * 100)
    writer.acknowledge(ack)
    assert reader.acknowledgement() == ack
    writer.close("halted by rule")
    assert reader.closed == "halted by rule"


def test_a_closed_writer_swallows_every_call(make):
    writer, reader = make()
    writer.close()
    writer.close()
    writer.push({"a": 1}, step=1)
    writer.event("note", {}, step=1)
    writer.phase(Phase.FORWARD, 1)
    assert reader.poll().records == ()
    assert reader.closed == "finished"


def test_eight_default_segments_fit_in_a_quarter_of_a_container(tmp_path):
    writers = [RankWriter(tmp_path, new_identity(rank, rank, 8, "run")) for rank in range(8)]
    blocks = sum(file.stat().st_blocks * 512 for file in tmp_path.iterdir())
    for writer in writers:
        writer.close()
    assert 8 * Geometry().total_bytes <= 64 * 2**20 // 4
    assert blocks <= 64 * 2**20 // 4


@pytest.mark.parametrize(
    "wrong", [{"slots": 0}, {"slot_bytes": 100}, {"event_slot_bytes": 8}, {"name_bytes": 65}, {"slots": "many"}]
)
def test_a_geometry_that_cannot_work_is_refused_by_name(wrong):
    with pytest.raises(SegmentError, match=next(iter(wrong))):
        Geometry(**wrong)


def test_infinities_nan_and_negative_zero_are_told_apart(make):
    writer, reader = make()
    writer.push({"a": math.inf, "b": -math.inf, "c": math.nan, "d": -0.0}, step=1)
    values = reader.poll().records[0].values
    assert values["a"] == math.inf
    assert values["b"] == -math.inf
    assert math.isnan(values["c"])
    assert math.copysign(1, values["d"]) == -1
