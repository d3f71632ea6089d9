"""The control file: the newest whole word, or none at all."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_sentinel.errors import SegmentError
from grpo_sentinel.protocol import ControlReader, write_control
from grpo_sentinel.protocol.control import decode_control, encode_control
from grpo_sentinel.records import Action, ControlWord

words = st.builds(
    ControlWord,
    request_id=st.integers(0, 2**63),
    action=st.sampled_from(Action),
    deadline_wall_ns=st.integers(0, 2**63),
    reason=st.text(max_size=300),
    requested_by=st.text(max_size=40),
    skip_above_norm=st.floats(min_value=0),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written=st.lists(words, max_size=4))
def test_a_reader_that_stays_open_sees_every_word_as_written(tmp_path, written):
    reader = ControlReader(tmp_path)
    for word in written:
        write_control(tmp_path, word)
        assert reader.read() == word
        assert reader.read() == word
    reader.close()


def test_no_file_is_no_word_and_a_file_that_comes_later_is_found(tmp_path):
    reader = ControlReader(tmp_path)
    assert reader.read() is None
    assert ControlReader(tmp_path / "missing").read() is None
    write_control(tmp_path, ControlWord(request_id=1))
    assert reader.read() == ControlWord(request_id=1)
    assert math.isinf(reader.read().skip_above_norm)
    (tmp_path / "control").unlink()
    assert reader.read() is None
    write_control(tmp_path, ControlWord(request_id=2))
    assert reader.read().request_id == 2
    reader.close()
    assert reader.read().request_id == 2
    reader.close()


@settings(max_examples=150, deadline=None)
@given(word=words, at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_one_flipped_byte_makes_it_no_word(word, at, flip):
    data = bytearray(encode_control(word))
    at %= len(data)
    if 20 <= at < 24:
        return  # reserved
    data[at] ^= flip
    assert decode_control(bytes(data)) is None
    assert decode_control(bytes(data)[:at]) is None


@pytest.mark.parametrize("data", [b"", b"x", os.urandom(5000), encode_control(ControlWord(request_id=1))[:-1]])
def test_a_damaged_file_is_no_word_until_a_good_one_comes(tmp_path, data):
    write_control(tmp_path, ControlWord(request_id=1))
    reader = ControlReader(tmp_path)
    assert reader.read().request_id == 1
    (tmp_path / "control").write_bytes(data)  # in place, as only a stranger would
    assert reader.read() is None
    write_control(tmp_path, ControlWord(request_id=2))
    assert reader.read().request_id == 2
    reader.close()


@pytest.mark.parametrize(
    "stranger", [lambda path: path.mkdir(), os.mkfifo, lambda path: path.symlink_to("/etc/passwd")]
)
def test_something_that_is_no_file_is_no_word_and_blocks_nothing(tmp_path, stranger):
    stranger(tmp_path / "control")
    reader = ControlReader(tmp_path)
    assert reader.read() is None
    reader.close()


def test_a_reason_too_long_is_cut_and_the_request_still_arrives(tmp_path):
    write_control(tmp_path, ControlWord(request_id=3, action=Action.HALT_NOW, reason="because " * 5000))
    word = ControlReader(tmp_path).read()
    assert (word.request_id, word.action) == (3, Action.HALT_NOW)
    assert word.reason.startswith("because")


def test_a_reader_beside_a_busy_writer_sees_only_whole_words_in_order(tmp_path):
    done = threading.Event()

    def write() -> None:
        for number in range(1, 1001):
            write_control(tmp_path, ControlWord(request_id=number, reason=str(number) * 50))
        done.set()

    write_control(tmp_path, ControlWord(request_id=0))
    writer = threading.Thread(target=write)
    reader, last = ControlReader(tmp_path), 0
    writer.start()
    while not done.is_set():
        word = reader.read()
        assert word is not None
        assert word.request_id >= last
        assert word.request_id == 0 or word.reason == str(word.request_id) * 50
        last = word.request_id
    writer.join(30)
    assert reader.read().request_id == 1000
    reader.close()
    assert [path.name for path in tmp_path.iterdir() if "control" in path.name] == ["control"]


def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(SegmentError, match="control cannot be written"):
        write_control(tmp_path / "missing", ControlWord(request_id=1))


def test_reading_every_step_leaks_no_descriptor(tmp_path):
    reader = ControlReader(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(50):
        write_control(tmp_path, ControlWord(request_id=number))
        reader.read()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1
    reader.close()
