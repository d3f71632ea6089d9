"""A resumed run goes on with the levels of the run that it was resumed from, and with none of its findings."""

from __future__ import annotations

import time
from pathlib import Path

from grpo_sentinel.config import HistoryConfig
from grpo_sentinel.daemon.resume import inherit
from grpo_sentinel.history import HistoryStore
from grpo_sentinel.records import Finding, Frame, Kind, Mode, StepRecord
from grpo_sentinel.rules import Engine, load_rules
from grpo_sentinel.views import SinkBatch


def stored(path: Path, run_id: str, norms: list[float]) -> None:
    store, now = HistoryStore(path, HistoryConfig()), time.time_ns()  # what is old is thinned out
    records = tuple(
        StepRecord(
            run_id=run_id, rank=0, sequence=step, step=step, kind=Kind.STEP, mode=Mode.TRAIN, micro_batch=0,
            generation=0, monotonic_ns=step, wall_ns=now + step, values={"gradient.norm_preclip": norm},
        )
        for step, norm in enumerate(norms, 1)
    )  # fmt: skip
    store.write(SinkBatch(run_id=run_id, node="n", wall_ns=now, records=records))
    store.flush()
    store.close()


def first_step(engine: Engine, norm: float) -> list[Finding]:
    row = {"gradient.norm_preclip": norm}
    return engine.frame(Frame(run_id="child", step=61, mode=Mode.TRAIN, wall_ns=10**12, ranks={0: row}))


def test_a_spike_in_the_first_step_after_a_resume_is_seen_against_the_parents_level(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    stored(path, "parent", [1.0 + 0.01 * (step % 7) for step in range(60)])
    engine = Engine(load_rules(), run_id="child")
    assert inherit(engine, path, "parent")
    (finding,) = first_step(engine, 80.0)
    assert (finding.rule, finding.run_id, finding.step, finding.onset_step) == ("grad_spike", "child", 61, 61)
    assert first_step(Engine(load_rules(), run_id="child"), 80.0) == []


def test_what_fired_in_the_parent_does_not_fire_in_the_child(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    stored(path, "parent", [1.0] * 40 + [float("nan")] * 5)
    engine = Engine(load_rules(), run_id="child")
    assert inherit(engine, path, "parent")
    assert engine.active() == ()
    assert first_step(engine, 1.0) == []
    again = first_step(engine, float("nan"))
    assert [finding.rule for finding in again] == ["grad_nonfinite"]
    assert again[0].onset_step == 61


def test_a_parent_that_the_history_does_not_know_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    engine = Engine(load_rules(), run_id="child")
    assert not inherit(engine, path, "parent")
    stored(path, "other", [1.0])
    assert not inherit(engine, path, "parent")
