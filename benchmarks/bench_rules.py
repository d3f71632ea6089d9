"""All rules together: processor time per record, and whether step 100,000 costs what step 1,000 does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from benchmarks import healthy
from benchmarks.record import record as store
from grpo_sentinel.records import Frame
from grpo_sentinel.rules import Engine, load_rules

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


def _microseconds(engine: Engine, frames: Sequence[Frame]) -> float:
    started = time.process_time()
    for frame in frames:
        engine.frame(frame)
    return (time.process_time() - started) / len(frames) * 1e6


def _early_and_late(rules: object) -> tuple[float, float]:
    """Time blocks around step 1,000 and step 100,000 of one engine: cost must not depend on the run's length."""
    frames = list(healthy.run("gaussian", 1000))
    engine = Engine(rules, run_id="healthy")  # type: ignore[arg-type]
    early = late = float("inf")
    for turn in range(100):
        for start in range(0, 1000, 250):
            cost = _microseconds(
                engine, [_at(frame, turn * 1000 + frame.step) for frame in frames[start : start + 250]]
            )
            if turn == 1:
                early = min(early, cost)
            elif turn == 99:
                late = min(late, cost)
    return early, late


def _at(frame: Frame, step: int) -> Frame:
    return Frame(run_id=frame.run_id, step=step, mode=frame.mode, wall_ns=step * 10**10, ranks=frame.ranks)


if __name__ == "__main__":
    main()
