"""TensorBoard files hold what was written: checked by an own reader, by protobuf, and by TensorBoard where it is."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import socket
import struct
import subprocess
import sys
import urllib.request

import pytest
from bad_sinks import eventually
from full_disk import full_after
from sentinel_batches import batch, finding, record

from grpo_sentinel.config import TensorBoardConfig
from grpo_sentinel.records import Mode
from grpo_sentinel.sinks import tensorboard_events as events
from grpo_sentinel.sinks.tensorboard import TensorBoardSink, tag_of


def bitwise_crc32c(data: bytes) -> int:
    """The checksum from its definition, bit by bit, apart from the writer's table."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def checked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frames(path) -> list[bytes]:
    data, out, at = path.read_bytes(), [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8)[0] == checked(bitwise_crc32c(data[at : at + 8]))
        body = data[at + 12 : at + 12 + size]
        assert struct.unpack_from("<I", data, at + 12 + size)[0] == checked(bitwise_crc32c(body))
        out.append(body)
        at += size + 16
    return out


def fields(data: bytes) -> list[tuple[int, object]]:
    """Take a protocol buffer apart into (field number, value)."""

    def varint(at):
        value = shift = 0
        while True:
            value |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 0x80:
                return value, at

    out, at = [], 0
    while at < len(data):
        key, at = varint(at)
        if key & 7 == 0:
            value, at = varint(at)
        else:
            size = {1: 8, 5: 4}.get(key & 7)
            if size is None:
                size, at = varint(at)
            value, at = data[at : at + size], at + size
            value = struct.unpack("<d" if size == 8 else "<f", value)[0] if key & 7 in (1, 5) else value
        out.append((key >> 3, value))
    return out


def scalars(path):
    """(step, tag) -> value of one event file."""
    out = {}
    for body in frames(path)[1:]:
        event = dict(fields(body))
        for _, value in fields(event[5]):
            parts = dict(fields(value))
            out[event[2], parts[1].decode()] = parts.get(2)
    return out


def files(directory):
    return sorted(directory.rglob("events.out.tfevents.*"))


def test_the_checksum_is_the_one_of_the_standard():
    assert events.crc32c(b"123456789") == 0xE3069283
    assert events.crc32c(bytes(32)) == 0x8A9136AA


def test_scalars_of_every_rank_stand_under_its_own_run(tmp_path):
    sink = TensorBoardSink(tmp_path, TensorBoardConfig(), "node-a")
    values = {"policy.loss": 0.5, "reward.func_mean[accuracy]": math.nan, "gradient.norm_preclip": 1e300}
    sink.write(batch(record(1, values=values), record(1, rank=1), record(2**40, values={"policy.loss": -math.inf})))
    sink.write(batch(record(3, mode=Mode.EVALUATION)))
    sink.close()
    (first,) = files(tmp_path / "run-1" / "rank-0")
    assert dict(fields(frames(first)[0]))[3] == b"brain.Event:2"
    found = scalars(first)
    assert found[1, "policy/loss"] == 0.5
    assert math.isnan(found[1, "reward/func_mean/accuracy"])
    assert found[1, "gradient/norm_preclip"] == math.inf  # too large for float32
    assert found[2**40, "policy/loss"] == -math.inf
    assert found[3, "eval/policy/loss"] == 3
    assert scalars(*files(tmp_path / "run-1" / "rank-1")) == {(1, "policy/loss"): 1}


def test_only_the_first_rank_is_written_when_asked_so(tmp_path):
    sink = TensorBoardSink(tmp_path, TensorBoardConfig(ranks="first"), "n")
    sink.write(batch(record(1, rank=1), cursors={0: None}))
    sink.write(batch(record(1, rank=0), record(1, rank=1)))
    sink.close()
    assert [path.parent.name for path in files(tmp_path)] == ["rank-0"]


def test_a_finding_is_a_text_with_what_to_do(tmp_path):
    sink = TensorBoardSink(tmp_path, TensorBoardConfig(), "n")
    sink.write(batch(findings=(finding(),)))
    sink.close()
    (path,) = files(tmp_path / "run-1" / "findings")
    event = dict(fields(frames(path)[1]))
    value = dict(fields(dict(fields(event[5]))[1]))
    assert (event[2], value[1]) == (13, b"gradient/nan_gradient")
    assert dict(fields(dict(fields(value[9]))[1]))[1] == b"text"
    text = dict(fields(value[8]))[8].decode()
    for part in ("critical, firing", "step 12", "rank 1", "a gradient is not finite", "look at the loss of rank 1"):
        assert part in text


def test_the_next_file_begins_at_the_size_limit(tmp_path):
    sink = TensorBoardSink(tmp_path, TensorBoardConfig(max_bytes=4096), "n")
    for step in range(1, 201):
        sink.write(batch(record(step)))
    sink.close()
    found = files(tmp_path)
    assert len(found) > 1
    assert all(path.stat().st_size <= 4096 for path in found)
    assert sorted(step for path in found for step, _ in scalars(path)) == list(range(1, 201))


def test_a_full_disk_leaves_no_torn_record(tmp_path):
    sink = TensorBoardSink(tmp_path, TensorBoardConfig(), "n")
    sink.write(batch(record(1)))
    (path,) = files(tmp_path)
    with full_after(path.stat().st_size + 20), pytest.raises(OSError, match="too large"):
        sink.write(batch(record(2)))
    sink.write(batch(record(2)))
    sink.close()
    assert list(scalars(path)) == [(1, "policy/loss"), (2, "policy/loss")]


def test_tags_group_by_layer():
    assert tag_of("reward.func_mean[a/b]") == "reward/func_mean/a/b"
    assert tag_of("no layer at all") == "no layer at all"


def test_an_independent_implementation_of_the_format_agrees(tmp_path):
    proto = pytest.importorskip("tensorboardX.proto.event_pb2")
    sink = TensorBoardSink(tmp_path, TensorBoardConfig(), "n")
    sink.write(batch(record(5, values={"policy.loss": 0.25}), findings=(finding(),)))
    sink.close()
    one, two = (proto.Event.FromString(frames(path)[1]) for path in files(tmp_path))
    text, scalar = (one, two) if one.summary.value[0].HasField("tensor") else (two, one)
    assert (scalar.step, scalar.summary.value[0].tag, scalar.summary.value[0].simple_value) == (5, "policy/loss", 0.25)
    assert text.summary.value[0].metadata.plugin_data.plugin_name == "text"
    assert b"a gradient is not finite" in text.summary.value[0].tensor.string_val[0]
    assert next(iter(text.summary.value[0].tensor.tensor_shape.dim)).size == 1


def test_tensorboard_itself_reads_it(tmp_path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    sink = TensorBoardSink(tmp_path, TensorBoardConfig(), "n")
    for step in range(1, 4):
        sink.write(batch(record(step)))
    sink.close()
    accumulator = loader.EventAccumulator(str(tmp_path / "run-1" / "rank-0")).Reload()
    assert [(point.step, point.value) for point in accumulator.Scalars("policy/loss")] == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs tensorboard, which shows the files")
def test_the_real_server_shows_every_rank_the_evaluation_and_the_findings(tmp_path):
    sink = TensorBoardSink(tmp_path / "logs", TensorBoardConfig(), "n")
    for step in range(1, 51):
        values = {"policy.loss": math.nan if step == 7 else step / 2, "reward.func_mean[accuracy]": 0.5}
        sink.write(batch(*(record(step, rank=rank, values=values) for rank in range(2))))
    sink.write(batch(record(50, mode=Mode.EVALUATION), findings=(finding(),)))
    with tensorboard(tmp_path / "logs") as ask:
        tags = ask("scalars/tags")
        assert set(tags) == {"run-1/rank-0", "run-1/rank-1"}
        assert set(tags["run-1/rank-0"]) == {"policy/loss", "reward/func_mean/accuracy", "eval/policy/loss"}
        points = ask("scalars/scalars?run=run-1/rank-1&tag=policy/loss")
        assert [step for _, step, _ in points] == list(range(1, 51)), "while the sink is still open"
        assert [step for _, step, value in points if value == "NaN"] == [7]
        assert points[-1][2] == 25
        (said,) = ask("text/text?run=run-1/findings&tag=gradient/nan_gradient")
        assert "a gradient is not finite" in said["text"]
    sink.close()


@contextlib.contextmanager
def tensorboard(folder):
    """A TensorBoard over a folder; gives a function that asks its plugins."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    argv = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", str(port), "--load_fast=false"]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)

    def ask(what):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/data/plugin/{what}", timeout=10) as answer:
            return json.loads(answer.read())

    def loaded():
        assert process.poll() is None
        try:
            return len(ask("scalars/tags")) == 2 and ask("text/tags")
        except (OSError, ValueError):
            return False

    try:
        eventually(loaded, "TensorBoard has read the files", 60)
        yield ask
    finally:
        process.terminate()
        process.wait(20)
