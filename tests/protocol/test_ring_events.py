"""Events: any body goes in, strict JSON lies in the ring, the same or a marked cut body comes out."""

from __future__ import annotations

import json
import math
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ring_support import SMALL

from grpo_sentinel.protocol import RankReader, RankWriter, new_identity
from grpo_sentinel.protocol.jsonsafe import decode, encode, encode_within

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
bodies = st.dictionaries(
    st.text() | st.just("$float"),
    st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.just("$float"), inner, max_size=4),
        max_leaves=12,
    ),
    max_size=5,
)


def same(left, right):
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


def strictly(data: bytes):
    """Parse as any other JSON reader would: NaN and Infinity are errors."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(data, parse_constant=refuse)


@settings(max_examples=150, deadline=None)
@given(body=bodies)
def test_any_body_comes_back_the_same_through_strict_json(body):
    data = encode(body)
    strictly(data)
    assert same(decode(data), body)


@settings(max_examples=150, deadline=None)
@given(body=bodies, limit=st.integers(40, 400))
def test_a_body_never_exceeds_its_limit_and_stays_json_and_says_when_it_was_cut(body, limit):
    data, cut = encode_within(body, limit)
    assert len(data) <= limit
    assert strictly(data).get("_cut", False) is (cut or body.get("_cut", False))
    assert cut or same(decode(data), body)


@settings(max_examples=40, deadline=None)
@given(bodies=st.lists(bodies, max_size=8))
def test_events_come_out_in_order_and_the_oldest_are_counted_as_missed(bodies):
    with tempfile.TemporaryDirectory() as directory:
        writer = RankWriter(Path(directory), new_identity(0, 0, 1, "run"), SMALL)
        reader = RankReader(writer.path)
        before = reader.poll().cursor
        for step, body in enumerate(bodies, 1):
            writer.event("note", body, step=step)
        batch = reader.poll(before)
        writer.close()
        reader.close()
    kept = bodies[-SMALL.event_slots :]
    assert [event.step for event in batch.events] == list(range(len(bodies) - len(kept) + 1, len(bodies) + 1))
    assert all(event.truncated or same(event.body, body) for event, body in zip(batch.events, kept, strict=True))
    assert batch.missed_events == len(bodies) - len(kept)
    assert batch.bad_slots == 0


def test_a_long_traceback_keeps_its_beginning_and_its_end(make):
    writer, reader = make(None)
    text = "Traceback (most recent call last)\n" + "  frame\n" * 5000 + "ValueError: loss is nan"
    writer.event("exception", {"type": "ValueError", "traceback": text}, step=3)
    (event,) = reader.poll().events
    assert event.truncated
    assert event.body["_cut"] is True
    assert event.body["type"] == "ValueError"
    assert event.body["traceback"].startswith("Traceback")
    assert event.body["traceback"].endswith("ValueError: loss is nan")


def test_a_burst_of_events_evicts_no_record(make):
    writer, reader = make()
    writer.push({"a": 1.0}, step=1)
    for step in range(100):
        writer.event("note", {"n": step}, step=step)
    batch = reader.poll()
    assert [record.step for record in batch.records] == [1]
    assert len(batch.events) == SMALL.event_slots


def test_a_huge_body_costs_little_and_is_cut(make):
    writer, reader = make(None)
    wide = {f"k{i}": {f"j{j}": ["x" * 100] * 100 for j in range(20)} for i in range(200)}
    start = time.process_time()
    writer.event("config", {"text": "y" * 50_000_000, "list": list(range(1_000_000)), "wide": wide}, step=1)
    assert time.process_time() - start < 0.5
    (event,) = reader.poll().events
    assert event.truncated


def test_a_body_that_contains_itself_or_strange_objects_raises_nothing(make):
    class Silent:
        def __str__(self):
            raise RuntimeError("no text")

    body = {"object": Silent(), "set": {1}, "bytes": b"x", "huge": 10**5000, 7: "seven", "surrogate": "\ud800"}
    body["self"] = body
    writer, reader = make(None)
    writer.event("note", body, step=1)
    (event,) = reader.poll().events
    assert event.truncated
    assert event.body["object"] == "<Silent>"
    assert event.body["set"] == [1]
    assert event.body["7"] == "seven"


@pytest.mark.parametrize("body", [None, 3, "text", object()])
def test_an_event_of_nonsense_raises_nothing_and_a_good_one_still_follows(make, body):
    writer, reader = make()
    writer.event("note", body, step=1)
    writer.event("note" * 100, {"ok": 1}, step="x")
    writer.event("\x00" * 1000, {"text": "x" * 10_000}, step=2)
    writer.event("note", {"ok": 2}, step=3)
    batch = reader.poll()
    assert set(batch.events[0].body) == {"value"}
    assert batch.events[-1].body == {"ok": 2}
    assert [event.step for event in batch.events] == [1, 2, 3]  # a step that is no number loses its event, counted
    assert writer.pushes_lost == 1
    assert batch.bad_slots == 0
