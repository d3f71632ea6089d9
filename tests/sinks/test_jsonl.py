"""JSON lines are strict, whole, rotate by size, and survive a full disk and a torn end."""

from __future__ import annotations

import json
import math

import pytest
from full_disk import full_after
from sentinel_batches import RUN, batch, event, finding, record, sample

from grpo_sentinel.config import JsonlConfig
from grpo_sentinel.records import Action, HaltState
from grpo_sentinel.sinks.jsonl import MAX_OPEN, JsonlSink, safe_name
from grpo_sentinel.views import HaltStatus, SinkBatch


def refuse(literal):
    raise AssertionError(f"not strict JSON: {literal}")


def read(path):
    text = path.read_text(encoding="utf-8")
    assert text == "" or text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


@pytest.fixture
def sink(tmp_path):
    made = JsonlSink(tmp_path, JsonlConfig())
    yield made
    made.close()


def test_every_part_of_a_batch_becomes_a_line_that_any_parser_takes(sink, tmp_path):
    values = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.1, "x[\ud800]": 1.0}
    halt = HaltStatus(request_id=1, state=HaltState.REQUESTED, action=Action.HALT_NOW)
    sink.write(
        batch(record(7, values=values), events=(event(),), findings=(finding(),), samples=(sample(),), halt=halt)
    )
    lines = read(tmp_path / "run-1.jsonl")
    assert [line["type"] for line in lines] == ["step", "event", "finding", "sample", "request"]
    assert {line["run_id"] for line in lines} == {RUN}
    assert {line["node"] for line in lines} == {"node-a"}
    step = lines[0]
    assert (step["step"], step["rank"], step["kind"]) == (7, 0, "step")
    assert step["values"] == {"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 0.1, "x[?]": 1.0}
    assert lines[2]["severity"] == "critical"
    assert lines[4]["action"] == "halt_now"


def test_files_are_set_aside_by_size_and_only_so_many_are_kept(tmp_path):
    tmp_path = tmp_path / "out"
    sink = JsonlSink(tmp_path, JsonlConfig(max_bytes=4096, keep_files=2))
    for step in range(1, 201):
        sink.write(batch(record(step)))
    sink.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["run-1.jsonl", "run-1.jsonl.1", "run-1.jsonl.2"]
    assert all(path.stat().st_size <= 4096 for path in tmp_path.iterdir())
    steps = [line["step"] for name in reversed(names) for line in read(tmp_path / name)]
    assert steps == list(range(steps[0], 201))  # the newest, in order, without a hole


def test_nothing_is_kept_when_no_file_may_be_kept(tmp_path):
    tmp_path = tmp_path / "out"
    sink = JsonlSink(tmp_path, JsonlConfig(max_bytes=4096, keep_files=0))
    for step in range(1, 101):
        sink.write(batch(record(step)))
    sink.close()
    assert [path.name for path in tmp_path.iterdir()] == ["run-1.jsonl"]
    assert read(tmp_path / "run-1.jsonl")[-1]["step"] == 100


def test_a_full_disk_costs_the_batch_and_leaves_no_half_of_it(sink, tmp_path):
    sink.write(batch(record(1)))
    size = (tmp_path / "run-1.jsonl").stat().st_size
    with full_after(size + 100), pytest.raises(OSError, match="too large"):
        sink.write(batch(record(2), record(3)))
    assert (tmp_path / "run-1.jsonl").stat().st_size == size
    sink.write(batch(record(2), record(3)))  # room again: the retry doubles nothing
    assert [line["step"] for line in read(tmp_path / "run-1.jsonl")] == [1, 2, 3]


def test_a_torn_line_at_the_end_is_cut_off_when_the_file_is_taken_up_again(tmp_path):
    path = tmp_path / "run-1.jsonl"
    path.write_text('{"step":1}\n{"step":2,"val')
    sink = JsonlSink(tmp_path, JsonlConfig())
    sink.write(batch(record(3)))
    sink.close()
    assert [line["step"] for line in read(path)] == [1, 3]


def test_many_runs_are_kept_apart_with_a_bounded_number_of_open_files(sink, tmp_path):
    for number in range(3 * MAX_OPEN):
        sink.write(SinkBatch(run_id=f"r{number % (2 * MAX_OPEN)}", node="n", wall_ns=0, records=(record(number),)))
    assert len(sink._files) == MAX_OPEN
    assert [line["step"] for line in read(tmp_path / "r3.jsonl")] == [3, 3 + 2 * MAX_OPEN]


def test_run_ids_make_safe_and_different_file_names():
    odd = ["../../etc/passwd", "a/b", "a_b", "a:b", "", ".hidden", "\ud800", "x" * 500]
    names = [safe_name(name) for name in odd]
    assert len(set(names)) == len(odd)
    assert all("/" not in name and name and not name.startswith(".") and len(name) < 120 for name in names)
