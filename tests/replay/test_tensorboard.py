"""Our own reader of TensorBoard files: against the files of a real writer, and against damage of every kind."""

from __future__ import annotations

import contextlib
import math
import struct
from pathlib import Path

import past_runs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_sentinel.history.sources import Progress, open_path
from grpo_sentinel.history.sources.tensorboard import Damaged, fields, scalars
from grpo_sentinel.history.sources.tfrecord import MAX_SCALAR_RECORD, masked_crc, records


def test_the_checksum_is_castagnoli_s_masked_as_tensorflow_does() -> None:
    # CRC-32C of "123456789" is 0xe3069283 (RFC 3720); masked by rotation and addition
    crc = 0xE3069283
    assert masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_files_of_a_real_writer_are_read(tmp_path: Path) -> None:
    writers = pytest.importorskip("tensorboardX")
    import numpy

    writer = writers.SummaryWriter(str(tmp_path / "run"))
    for step in range(1, 21):
        writer.add_scalar("train/loss", 0.1 * step, step)
        writer.add_scalar("train/grad_norm", float("nan") if step == 7 else 1.5, step)
        writer.add_scalar("eval/reward", 0.25, step)
        writer.add_text("note", "hello", step)
        writer.add_histogram("weights", numpy.arange(200_000), step)
    writer.close()
    (source,) = open_path(tmp_path / "run")
    progress = Progress()
    frames = list(source.items(progress))
    train = [frame for frame in frames if frame.mode.name == "TRAIN"]
    assert [frame.step for frame in train] == list(range(1, 21))
    assert math.isclose(train[4].ranks[0]["policy.loss"], 0.5, rel_tol=1e-6)
    assert math.isnan(train[6].ranks[0]["gradient.norm_preclip"])
    assert frames[1].ranks[0]["reward.mean"] == 0.25
    assert progress.notes == []


def test_scalars_that_are_tensors_are_read() -> None:
    for dtype, data in ((1, struct.pack("<f", 2.5)), (2, struct.pack("<d", 2.5))):
        tensor = bytes([0x08, dtype, 0x22, len(data)]) + data
        value = b"\x0a\x01x" + b"\x42" + bytes([len(tensor)]) + tensor
        summary = b"\x0a" + bytes([len(value)]) + value
        message = b"\x10\x03\x2a" + bytes([len(summary)]) + summary
        assert list(scalars(iter([message]))) == [(3, 0.0, "x", 2.5)]


def test_damage_costs_the_record_it_hits_and_is_counted(tmp_path: Path) -> None:
    path = past_runs.event_file(tmp_path, broken=False)
    whole = bytearray(path.read_bytes())
    with path.open("rb") as file:
        count = sum(1 for _ in records(file, Progress()))
    whole[whole.index(b"train/", 3000)] ^= 1
    path.write_bytes(bytes(whole))
    progress = Progress()
    with path.open("rb") as file:
        assert sum(1 for _ in records(file, progress)) == count - 1
    assert progress.notes == ["1 records are damaged (CRC) and were left out"]


def test_a_torn_last_record_is_normal(tmp_path: Path) -> None:
    path = past_runs.event_file(tmp_path, broken=False)
    path.write_bytes(path.read_bytes()[:-7])
    progress = Progress()
    with path.open("rb") as file:
        assert sum(1 for _ in records(file, progress)) == 1 + 6 * past_runs.STEPS - 1
    assert progress.notes == []


def test_a_record_that_claims_to_be_huge_costs_no_memory(tmp_path: Path) -> None:
    head = struct.pack("<Q", 1 << 60)
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(head + struct.pack("<I", masked_crc(head)) + b"x" * (MAX_SCALAR_RECORD + 10))
    with path.open("rb") as file:
        assert list(records(file, Progress())) == []


@given(st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_no_bytes_make_the_message_reader_fail_otherwise_than_by_its_own_error(data: bytes) -> None:
    with contextlib.suppress(Damaged):
        list(fields(data))
    assert len(list(scalars(iter([data])))) <= 400


@given(st.binary(max_size=120), st.integers(0, 400), st.integers(0, 255))
@settings(max_examples=100, deadline=None)
def test_no_flipped_byte_makes_the_file_reader_fail(tail: bytes, at: int, value: int) -> None:
    import io

    data = bytearray(b"".join(past_runs.record(past_runs.scalar(step, "train/loss", 0.5)) for step in range(1, 6)) + tail)
    data[at % len(data)] = value
    found = list(scalars(records(io.BytesIO(bytes(data)), Progress())))
    assert len(found) <= 6
