"""What the rules keep does not grow with the run."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType

from benchmarks import healthy
from grpo_sentinel.records import Frame
from grpo_sentinel.rules import Engine, load_rules


def test_memory_of_the_engine_is_the_same_after_1000_and_after_3000_steps() -> None:
    engine = Engine(load_rules(), run_id="r")
    sizes = {}
    for frame in healthy.run("gaussian", 1000):
        engine.frame(frame)
    sizes[1000] = _objects(engine)
    for turn in (1, 2):
        for frame in healthy.run("gaussian", 1000, seed=turn):
            later = Frame(
                run_id="r", step=frame.step + turn * 1000, mode=frame.mode, wall_ns=frame.wall_ns, ranks=frame.ranks
            )
            engine.frame(later)
    sizes[3000] = _objects(engine)
    assert sizes[3000] <= 1.05 * sizes[1000], sizes


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
