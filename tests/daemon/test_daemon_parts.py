"""Parts of the daemon on their own: pins, replay, tidying, background work, claims."""

from __future__ import annotations

import json
import os
import shutil
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from run_support import finding, until

from grpo_sentinel.clock import SystemClock
from grpo_sentinel.config import Config, HaltingConfig, HistoryConfig, RuleOverride, RulesConfig
from grpo_sentinel.daemon import parts
from grpo_sentinel.daemon.background import Background
from grpo_sentinel.daemon.claim import Claim, DaemonNote, is_claimed, read_note
from grpo_sentinel.daemon.pins import Pins
from grpo_sentinel.daemon.places import belongs_to, run_directories, state_dir
from grpo_sentinel.daemon.resume import resume
from grpo_sentinel.daemon.tidy import KEEP_SECONDS, ROOM_BYTES, tidy
from grpo_sentinel.daemon.watch import RunWatch
from grpo_sentinel.history import HistoryStore
from grpo_sentinel.protocol import RankWriter, new_identity, run_dir
from grpo_sentinel.records import Action, EventRecord, FindingState, Kind, Mode, Severity, StepRecord
from grpo_sentinel.rules import Engine, load_rules
from grpo_sentinel.views import SinkBatch


def checkpoint(output: Path, step: int, value: float = 1.0) -> Path:
    path = output / f"checkpoint-{step}"
    path.mkdir(parents=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + struct.pack("<f", value))
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


@pytest.fixture
def background() -> Iterator[Background]:
    one = Background("test")
    yield one
    one.close(10)


def pins(tmp_path: Path, background: Background, told: list[str], **settings: object) -> Pins:
    made = Pins("run", HaltingConfig(**settings), tmp_path / "state", background, told.append)  # type: ignore[arg-type]
    made.observe([event("config", {"output_dir": str(tmp_path / "out")})])
    return made


def event(kind: str, body: dict[str, object], step: int = 0) -> EventRecord:
    return EventRecord(run_id="run", rank=0, sequence=1, step=step, wall_ns=1, kind=kind, body=body)


def settled(background: Background) -> None:
    """Wait until the jobs so far are done, then run what they left to the loop."""
    done = threading.Event()
    assert background.submit("wait", lambda: done.set())  # type: ignore[func-returns-value]
    assert done.wait(10)
    background.settle()


def test_the_newest_finite_checkpoint_from_before_the_onset_is_kept(tmp_path: Path, background: Background) -> None:
    for step, value in ((2, 1.0), (4, 1.0), (6, float("nan")), (8, 1.0)):
        checkpoint(tmp_path / "out", step, value)
    told: list[str] = []
    one = pins(tmp_path, background, told)
    one.consider([finding(onset=8)])
    settled(background)
    assert told == [str(tmp_path / "sentinel-pinned" / "run" / "checkpoint-4")]
    assert [path.name for path in (tmp_path / "sentinel-pinned" / "run").glob("checkpoint*")] == ["checkpoint-4"]


def test_a_place_that_cannot_be_written_beside_is_replaced_by_the_state_directory(
    tmp_path: Path, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(tmp_path / "out", 4)
    made, real = [], Path.mkdir

    def refuse(self: Path, *arguments: object, **options: object) -> None:
        if "sentinel-pinned" in str(self):
            raise PermissionError(13, "read-only", str(self))
        made.append(self)
        real(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", refuse)
    told: list[str] = []
    one = pins(tmp_path, background, told)
    one.consider([finding(onset=8)])
    settled(background)
    assert told == [str(tmp_path / "state" / "pinned" / "run" / "checkpoint-4")]


def test_an_incident_pins_once_a_critical_finding_pins_again_and_the_number_is_bounded(
    tmp_path: Path, background: Background
) -> None:
    for step in range(1, 60):
        checkpoint(tmp_path / "out", step)
    told: list[str] = []
    one = pins(tmp_path, background, told)
    mild = finding("mild", Action.ALERT, onset=10, severity=Severity.WARNING)
    one.consider([mild, finding("second", Action.ALERT, onset=12, severity=Severity.WARNING)])
    settled(background)
    assert [Path(path).name for path in told] == ["checkpoint-9"], "the second belongs to the same incident"
    one.consider([finding("grave", Action.ALERT, onset=20)])
    settled(background)
    assert Path(told[-1]).name == "checkpoint-19"
    over = replace(finding("grave", Action.ALERT, onset=20), state=FindingState.RESOLVED)
    for onset in (30, 40, 50):
        more = finding("more", onset=onset)
        one.consider([over, more])
        over = replace(more, state=FindingState.RESOLVED)
        settled(background)
    assert len(told) == HaltingConfig().max_pins
    one.consider([replace(mild, state=FindingState.RESOLVED), finding("n", Action.NOTE, severity=Severity.NOTE)])


def test_a_checkpoint_that_two_findings_of_one_turn_ask_for_is_told_once(
    tmp_path: Path, background: Background, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint(tmp_path / "out", 4)
    told: list[str] = []
    one = pins(tmp_path, background, told)
    one.consider([finding("grave", onset=8), finding("graver", onset=9)])
    settled(background)
    assert len(told) == len(one.paths) == 1
    assert caplog.text.count("kept ") == 1


def test_nothing_is_missed_when_rotation_takes_a_checkpoint_that_is_kept_already(
    tmp_path: Path, background: Background, caplog: pytest.LogCaptureFixture
) -> None:
    saved = checkpoint(tmp_path / "out", 8)
    told: list[str] = []
    one = pins(tmp_path, background, told)
    one.consider([finding("first", Action.ALERT, onset=12)])
    settled(background)
    shutil.rmtree(saved)
    one.consider([finding("grave", onset=12)])
    settled(background)
    assert len(told) == 1
    assert "nothing to keep" not in caplog.text
    one.consider([finding("earlier", onset=5)])
    settled(background)
    assert "nothing to keep" in caplog.text


def test_nothing_is_kept_when_it_is_switched_off(tmp_path: Path, background: Background) -> None:
    checkpoint(tmp_path / "out", 4)
    told: list[str] = []
    pins(tmp_path, background, told, pin_checkpoints=False).consider([finding(onset=8)])
    settled(background)
    assert not told


def record(step: int, bad: bool, rank: int = 0) -> StepRecord:
    values = {"gradient.nonfinite_tensors": float(bad), "gradient.norm_preclip": float("nan") if bad else 1.0}
    return StepRecord(
        run_id="run", rank=rank, sequence=step, step=step, kind=Kind.STEP, mode=Mode.TRAIN, micro_batch=0, generation=0,
        monotonic_ns=step, wall_ns=step, values=values,
    )  # fmt: skip


def test_a_replayed_engine_stands_where_the_old_one_stood(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    store = HistoryStore(path, HistoryConfig())
    records = [record(step, bad=step >= 9) for step in range(1, 11)]
    records.append(record(11, bad=False, rank=0))
    records.insert(0, record(1, bad=False, rank=1))
    records += [record(step, bad=step >= 9, rank=1) for step in range(2, 11)]  # rank 1 has not closed step 11 yet
    store.write(SinkBatch(run_id="run", node="n", wall_ns=time.time_ns(), records=tuple(records)))
    store.close()
    engine = Engine(load_rules(RulesConfig()), run_id="run")
    resume(engine, path, "run")
    assert {one.rule for one in engine.active()} >= {"grad_nonfinite"}
    assert "nonfinite_updates" not in {one.rule for one in engine.active()}, "two of three so far"
    from grpo_sentinel.records import Frame

    third = Frame(
        run_id="run", step=11, mode=Mode.TRAIN, wall_ns=1, ranks={rank: record(11, True).values for rank in (0, 1)}
    )
    assert "nonfinite_updates" in {one.rule for one in engine.frame(third)}
    assert resume(Engine(load_rules(RulesConfig()), run_id="x"), tmp_path / "none.sqlite", "x") == ({}, {})


def test_the_halting_sections_numbers_reach_the_rule_unless_an_override_names_them() -> None:
    said: list[str] = []

    def count(config: Config) -> object:
        rules = parts.rules(config, lambda key, text: said.append(text))
        return next(rule for rule in rules if rule.name == "nonfinite_updates").detect["count"]

    assert count(Config()) == 3
    five = HaltingConfig(nonfinite_updates=5)
    assert count(Config(halting=five)) == 5
    named = RulesConfig(override={"nonfinite_updates": RuleOverride(parameters={"count": 7})})
    assert count(Config(halting=five, rules=named)) == 7
    assert not said


def test_rings_of_ended_runs_go_after_a_week_or_when_room_is_short(tmp_path: Path) -> None:
    made = []
    for name in ("old", "new", "held"):
        directory = run_dir(tmp_path, name)
        RankWriter(directory, new_identity(0, 0, 1, name)).close()
        made.append(directory)
    old, new, held = made
    ring = old / "rank-00000.ring"
    now = ring.stat().st_mtime
    os.utime(ring, (now - 2 * KEEP_SECONDS, now - 2 * KEEP_SECONDS))
    claim = Claim.take(held)
    assert claim is not None
    assert tidy(made, now + 1, lambda _: ROOM_BYTES) == [old]
    assert tidy([new, held], now + 700, lambda _: ROOM_BYTES - 1) == [new], "the held one stays"
    claim.release()
    assert run_directories([tmp_path]) == [held]


def test_a_failing_job_is_counted_and_the_next_one_runs(background: Background) -> None:
    def fail() -> None:
        raise OSError("disk")

    ran = threading.Event()
    background.submit("failing", fail)
    background.submit("next", lambda: ran.set())  # type: ignore[func-returns-value]
    assert ran.wait(10)
    assert background.errors == 1


def test_a_claim_is_exclusive_and_its_note_dies_with_it(tmp_path: Path) -> None:
    claim = Claim.take(tmp_path)
    assert claim is not None
    assert Claim.take(tmp_path) is None
    claim.publish(DaemonNote(pid=1, url="http://x", act_token="t", started_wall_ns=3))
    assert read_note(tmp_path) == DaemonNote(pid=1, url="http://x", act_token="t", started_wall_ns=3)
    assert (tmp_path / "daemon.json").stat().st_mode & 0o777 == 0o600
    claim.release()
    assert not is_claimed(tmp_path)
    assert read_note(tmp_path) is None
    until(lambda: Claim.take(tmp_path))


def test_places_follow_configuration_and_environment(tmp_path: Path) -> None:
    assert state_dir(Config(), {"XDG_STATE_HOME": "/x"}) == Path("/x/grpo-sentinel")
    assert state_dir(Config(state_dir="/y"), {}) == Path("/y")
    assert belongs_to(Path("/r/job"), "job")
    assert belongs_to(Path("/r/job-r2"), "job")
    assert not belongs_to(Path("/r/job-rest"), "job")


@pytest.mark.parametrize("on", [True, False])
def test_a_sink_that_is_switched_on_is_fed_by_the_daemon_and_one_that_is_off_is_not(tmp_path: Path, on: bool) -> None:
    config = Config.model_validate({"sinks": {"jsonl": {"enabled": on, "directory": str(tmp_path / "lines")}}})
    sinks = parts.Sinks(config, tmp_path, "node-a", SystemClock())
    record = StepRecord(
        run_id="run-1", rank=0, sequence=1, step=7, kind=Kind.STEP, mode=Mode.TRAIN, micro_batch=0, generation=0,
        monotonic_ns=1, wall_ns=1_700_000_000_000_000_000, values={"reward.mean": 0.5},
    )  # fmt: skip
    sinks.publish(SinkBatch(run_id="run-1", node="node-a", wall_ns=record.wall_ns, records=(record,)))
    sinks.close(10)
    written = "".join(path.read_text() for path in tmp_path.glob("lines/**/*") if path.is_file())
    assert ('"reward.mean"' in written) is on


def test_a_finding_that_fires_on_unchanged_is_said_once_and_anew_after_it_has_resolved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    watch = RunWatch.__new__(RunWatch)
    watch._told = {}
    one = finding("grave")
    for each in (one, one, replace(one, finding_id="another"), replace(one, severity=Severity.WARNING)):
        watch._tell(each)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2, lines
    for each in (
        replace(one, state=FindingState.RESOLVED),
        replace(one, finding_id="another", state=FindingState.RESOLVED),
    ):
        watch._tell(each)
    watch._tell(one)
    assert caplog.records[-1].getMessage() == lines[0]
