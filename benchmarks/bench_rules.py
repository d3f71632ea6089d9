"""All rules together: processor time per record, and whether step 100,000 costs what step 1,000 does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from benchmarks import healthy
from benchmarks.record import record as store
from grpo_sentinel.records import Frame
from grpo_sentinel.rules import Engine, RuleSet, load_rules

Record = Callable[..., None]


def main(record: Record = store) -> None:
    """Measure and store the figures."""
    rules = load_rules()
    for ranks in (1, 8):
        frames = list(healthy.run("gaussian", 400, ranks=ranks))
        engine = Engine(rules, run_id="healthy")
        cost = min(_microseconds(engine, frames[start : start + 100]) for start in range(0, 400, 100)) / ranks
        name = "rules_us_per_record" + ("" if ranks == 1 else f"_{ranks}_ranks")
        record(
            name,
            cost,
            "us",
            peer=f"limit 500 us, {len(rules)} rules, {len(frames[0].ranks[0])} signals",
            peer_value=500.0,
        )
    early, late = _early_and_late(rules)
    record("rules_us_at_step_100000", late, "us", peer="at step 1000", peer_value=early)
    record("rules_cost_step_100000_over_step_1000", late / early, "", peer="limit 1.1")
    if late > 1.1 * early:
        raise AssertionError(f"a record costs {late:.0f} us at step 100,000 and {early:.0f} us at step 1,000")


def _microseconds(engine: Engine, frames: Sequence[Frame]) -> float:
    started = time.process_time()
    for frame in frames:
        engine.frame(frame)
    return (time.process_time() - started) / len(frames) * 1e6


def _early_and_late(rules: RuleSet) -> tuple[float, float]:
    """Time two engines by turns on the same frames, one at step 1,000 and one at step 100,000: noise hits both."""
    frames = list(healthy.run("gaussian", 1000))
    young, old = Engine(rules, run_id="young"), Engine(rules, run_id="old")
    for turn in range(100):
        for frame in frames:
            old.frame(_at(frame, turn * 1000 + frame.step))
    for frame in frames:
        young.frame(_at(frame, frame.step))
    early, late = [], []
    for start in range(0, 1000, 50):
        block = frames[start : start + 50]
        early.append(_microseconds(young, [_at(frame, 1000 + frame.step) for frame in block]))
        late.append(_microseconds(old, [_at(frame, 100_000 + frame.step) for frame in block]))
    return median(early), median(late)


def _at(frame: Frame, step: int) -> Frame:
    return Frame(run_id=frame.run_id, step=step, mode=frame.mode, wall_ns=step * 10**10, ranks=frame.ranks)


if __name__ == "__main__":
    main()
