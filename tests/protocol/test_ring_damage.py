"""Damage: a slot that does not check is counted and never returned; a file that is no segment is one sentence."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ring_support import SMALL

from grpo_sentinel.errors import SegmentError
from grpo_sentinel.protocol import RankReader, RankWriter, new_identity
from grpo_sentinel.protocol.layout import HEADER_BYTES, PREAMBLE, STEP_HEAD


@pytest.fixture
def black_box(tmp_path: Path) -> Path:
    """A closed segment with eight records, where record s holds {"a": s, "b": s}, and four events."""
    writer = RankWriter(tmp_path, new_identity(3, 3, 8, "run"), SMALL)
    for step in range(1, 9):
        writer.push({"a": step, "b": step}, step=step)
    for step in range(1, 5):
        writer.event("note", {"n": step}, step=step)
    writer.close()
    return writer.path


def look(path: Path):
    reader = RankReader(path)
    batch = reader.poll()
    reader.close()
    return batch


def overwrite(path: Path, at: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, data, at)
    os.close(descriptor)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(record=st.integers(1, 8), at=st.integers(0, 16 + STEP_HEAD.size + 23), flip=st.integers(1, 255))
def test_one_flipped_byte_anywhere_in_a_record_costs_that_record_only(black_box, record, at, flip):
    offset = SMALL.steps_at + (record - 1) * SMALL.slot_bytes + at
    original = black_box.read_bytes()[offset]
    overwrite(black_box, offset, bytes([original ^ flip]))
    batch = look(black_box)
    overwrite(black_box, offset, bytes([original]))
    assert [each.step for each in batch.records] == [step for step in range(1, 9) if step != record]
    assert all(each.values == {"a": each.step, "b": each.step} for each in batch.records)
    assert batch.bad_slots + batch.missed_records == 1


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(min_size=1, max_size=SMALL.slot_bytes), at=st.integers(0, SMALL.slots * SMALL.slot_bytes))
def test_garbage_over_the_ring_never_becomes_a_value(black_box, data, at):
    original = black_box.read_bytes()
    overwrite(black_box, SMALL.steps_at + at, data)
    batch = look(black_box)
    overwrite(black_box, 0, original)
    assert all(each.values == {"a": each.step, "b": each.step} for each in batch.records)
    assert len(batch.records) + batch.bad_slots + batch.missed_records + batch.missed_events + len(batch.events) == 12


def test_a_torn_record_is_a_counted_miss(black_box):
    """The second half of record 3 is still that of an older one."""
    overwrite(black_box, SMALL.steps_at + 2 * SMALL.slot_bytes + 16 + STEP_HEAD.size, struct.pack("<d", 99.0))
    batch = look(black_box)
    assert [each.step for each in batch.records] == [1, 2, 4, 5, 6, 7, 8]
    assert batch.bad_slots == 1


def test_an_old_body_under_a_new_sequence_is_refused(black_box):
    overwrite(
        black_box, SMALL.steps_at, black_box.read_bytes()[SMALL.steps_at + SMALL.slot_bytes :][: SMALL.slot_bytes]
    )
    overwrite(black_box, SMALL.steps_at, struct.pack("<Q", 1))
    assert [each.step for each in look(black_box).records] == [2, 3, 4, 5, 6, 7, 8]


def test_a_damaged_event_costs_that_event_only(black_box):
    overwrite(black_box, SMALL.events_at + SMALL.event_slot_bytes + 48, b"\xff\xff")
    batch = look(black_box)
    assert [event.step for event in batch.events] == [1, 3, 4]
    assert batch.bad_slots == 1


def test_a_damaged_name_costs_the_records_that_use_it_and_raises_nothing(black_box):
    overwrite(black_box, HEADER_BYTES + 6, b"z")
    batch = look(black_box)
    assert batch.records == ()
    assert batch.bad_slots == 8


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.write_bytes(b""), "not a grpo-sentinel segment"),
        (lambda path: path.write_bytes(os.urandom(100_000)), "not a grpo-sentinel segment"),
        (lambda path: os.truncate(path, 20_000), "truncated: 20000 of"),
        (lambda path: os.truncate(path, 1_000), "truncated: 1000 of"),
        (lambda path: os.truncate(path, 100), "damaged header"),
        (lambda path: overwrite(path, 8, struct.pack("<I", 2)), "protocol version 2, this release reads 1"),
        (lambda path: overwrite(path, PREAMBLE.size + 40, b"?"), "damaged header"),
        (lambda path: overwrite(path, 12, b"\xff\xff\xff\xff"), "damaged header"),
        (lambda path: path.unlink(), "cannot be opened"),
        (lambda path: (path.unlink(), path.mkdir()), "not a regular file"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "not a regular file"),
        (lambda path: (path.rename(path.with_name("x")), path.symlink_to("x")), "cannot be opened"),
    ],
    ids=[
        "empty",
        "random",
        "cut",
        "cut in words",
        "cut in header",
        "version",
        "crc",
        "length",
        "gone",
        "dir",
        "fifo",
        "link",
    ],
)
def test_a_file_that_is_no_whole_segment_is_refused_in_one_sentence(black_box, damage, says):
    damage(black_box)
    with pytest.raises(SegmentError, match=says) as caught:
        RankReader(black_box)
    assert str(black_box) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_truncated_while_it_is_read_is_an_error_and_no_sigbus(black_box):
    reader = RankReader(black_box)
    os.truncate(black_box, 5000)
    with pytest.raises(SegmentError, match="was truncated"):
        reader.poll()
    reader.close()


def test_a_new_writer_replaces_garbage_in_its_place(black_box):
    black_box.write_bytes(b"garbage")
    writer = RankWriter(black_box.parent, new_identity(3, 3, 8, "run"), SMALL)
    writer.push({"a": 1.0}, step=1)
    assert [each.step for each in look(black_box).records] == [1]
    writer.close()
