"""What the rules keep, and what they do for a step, does not grow with the run."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType, FunctionType, ModuleType
from typing import Any

import pytest

from benchmarks import healthy
from grpo_sentinel.records import Frame
from grpo_sentinel.rules import Engine, load_rules

BLOCK = 500


@pytest.fixture(scope="module")
def aged() -> dict[int, tuple[int, int]]:
    """Step -> objects that the engine holds then, and calls that the next 100 steps take."""
    engine = Engine(load_rules(), run_id="r")
    block = list(healthy.run("gaussian", BLOCK))
    figures = {}
    for turn in range(20_000 // BLOCK + 1):
        if turn * BLOCK in (1000, 20_000):
            objects = _objects(engine)
            figures[turn * BLOCK] = (objects, _calls(engine, _at(block[:100], turn * BLOCK)))
            continue
        for frame in _at(block, turn * BLOCK):
            engine.frame(frame)
    return figures


def test_memory_of_the_engine_is_the_same_after_1000_and_after_20000_steps(aged: dict[int, tuple[int, int]]) -> None:
    assert aged[20_000][0] <= 1.02 * aged[1000][0], aged


def test_a_step_takes_as_many_calls_at_20000_as_at_1000(aged: dict[int, tuple[int, int]]) -> None:
    assert aged[20_000][1] <= 1.02 * aged[1000][1], aged


def test_rules_that_a_step_does_not_concern_are_not_asked() -> None:
    engine = Engine(load_rules(), run_id="r")
    frames = [
        Frame(run_id="r", step=step, mode=frame.mode, wall_ns=step, ranks={0: {"policy.entropy_max_nats": 11.0}})
        for step, frame in enumerate(healthy.run("gaussian", 60), 1)
    ]
    for frame in frames[:50]:
        engine.frame(frame)
    assert _calls(engine, frames[50:]) < 10 * 60  # asking every rule would be several hundred a step


def _at(frames: Sequence[Frame], offset: int) -> list[Frame]:
    return [replace(frame, step=offset + frame.step, wall_ns=(offset + frame.step) * 10**10) for frame in frames]


def _calls(engine: Engine, frames: Sequence[Frame]) -> int:
    """Count Python and built-in calls: a measure of work that no busy machine disturbs."""
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for frame in frames:
            engine.frame(frame)
    finally:
        sys.setprofile(before)
    return count


def _objects(root: object) -> int:
    """Count what is reachable from an object, code and classes left out."""
    seen: set[int] = set()
    todo = [root]
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, type | ModuleType | FunctionType):
            continue
        seen.add(id(item))
        todo += gc.get_referents(item)
    return len(seen)
