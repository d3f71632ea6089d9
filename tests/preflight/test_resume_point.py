"""Which checkpoint a restart should use, chosen from what is on the disk and what the history says."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import struct
from pathlib import Path

import pytest
import sentinel_batches as made

from grpo_sentinel.cli import main
from grpo_sentinel.clock import SystemClock
from grpo_sentinel.halting.checkpoints import scan_directory
from grpo_sentinel.halting.pin import pin
from grpo_sentinel.history import HistoryReader, HistoryStore, history_path
from grpo_sentinel.preflight.resume import ResumePoint, resume_point
from grpo_sentinel.records import Finding, FindingState, Severity
from grpo_sentinel.views import Snapshot

START_NS = 1_700_000_000_000_000_000


class Place:
    """An output directory and a history that knows the runs which saved into it."""

    def __init__(self, tmp_path: Path) -> None:
        self.state = tmp_path / "state" / "grpo-sentinel"
        self.output = tmp_path / "out"
        self.output.mkdir()
        self.path = history_path(self.state, socket.gethostname())
        self.clock = SystemClock()

    def save(self, step: int, value: float = 1.0, *, at_s: float = 0.0, within: Path | None = None) -> Path:
        path = (within or self.output) / f"checkpoint-{step}"
        path.mkdir(parents=True)
        header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
        (path / "model.safetensors").write_bytes(
            len(header).to_bytes(8, "little") + header + struct.pack("<2f", 1.0, value)
        )
        (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        written = START_NS + round((at_s or step) * 1e9)
        os.utime(path / "trainer_state.json", ns=(written, written))
        return path

    def run(self, *findings: Finding, name: str = "run-1", started_s: float = 0.0, output: Path | None = None) -> None:
        store = HistoryStore(self.path, clock=self.clock)
        wall_ns = START_NS + round(started_s * 1e9)
        snapshot = Snapshot(run_id=name, wall_ns=wall_ns, context={"output_dir": str(output or self.output)})
        store.write(made.batch(run_id=name, wall_ns=wall_ns, snapshot=snapshot, findings=findings))
        store.close()

    def own_run(self, name: str, *paths: Path, started_s: float = 0.0) -> None:
        """A run of a loop of one's own: no `output_dir`, and `paths` reported by `checkpoint_saved`."""
        store = HistoryStore(self.path, clock=self.clock)
        wall_ns = START_NS + round(started_s * 1e9)
        events = tuple(
            made.event(number, "checkpoint", {"path": str(path)}, run_id=name) for number, path in enumerate(paths, 1)
        )
        store.write(made.batch(run_id=name, wall_ns=wall_ns, snapshot=Snapshot(run_id=name), events=events))
        store.close()

    def save_own(self, step: int) -> Path:
        """Weights and moments in a directory that does not say itself whether its save has ended."""
        path = self.save(step)
        (path / "trainer_state.json").unlink()
        named = path.rename(path.with_name(f"step_{step}"))
        shutil.copy(named / "model.safetensors", named / "optim.safetensors")
        return named

    def choose(self, **options: bool) -> ResumePoint:
        with HistoryReader(self.path) as reader:
            return resume_point(self.output, [(reader, self.state)], **options)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr("grpo_sentinel.history.store.retention.prune", lambda *_, **__: (0, False))  # old dates here
    return Place(tmp_path)


def finding(onset: int, **changes: object) -> Finding:
    given = {"finding_id": f"f:{onset}:{changes.get('rule', '')}", "onset_step": onset, "step": onset + 1}
    return made.finding(**{**given, "wall_ns": START_NS + onset * 10**9, **changes})


def test_the_newest_whole_finite_one_from_before_the_onset(place: Place) -> None:
    for step, value in ((10, 1.0), (20, 1.0), (30, math.nan), (40, 1.0), (50, 1.0)):
        place.save(step, value)
    (place.output / "checkpoint-20" / "trainer_state.json").unlink()
    place.run(finding(41))
    found = place.choose()
    assert found.path == (place.output / "checkpoint-40").resolve()
    assert [one.step for one in found.rejected] == [50]
    place.run(finding(40))
    found = place.choose()
    assert found.step == 10
    why = {one.step: one.why for one in found.rejected}
    assert "not from before step 40" in why[40]
    assert "NaN or infinite" in why[30]
    assert "the save has not ended" in why[20]


def test_without_findings_the_newest_good_one_and_it_is_said_that_nobody_watched(place: Place) -> None:
    place.save(10)
    place.save(20)
    found = resume_point(place.output, [(None, place.state)])
    assert found.step == 20
    assert any("findings could not be considered" in reason for reason in found.reasons)


def test_the_onset_of_the_root_counts_not_that_of_what_followed(place: Place) -> None:
    for step in (10, 20, 30):
        place.save(step)
    root = finding(15, rule="reward_off", severity=Severity.WARNING, layer="reward")
    place.run(root, finding(35, root_id=root.finding_id))
    assert place.choose().step == 10


def test_a_dead_rank_or_a_full_memory_harms_no_weights_and_a_diverged_replica_does(place: Place) -> None:
    for step in (10, 20):
        place.save(step)
    place.run(
        finding(20, layer="time", rule="rank_dead", signal=""), finding(15, layer="memory", rule="leak", signal="")
    )
    assert place.choose().step == 20
    place.run(finding(16, layer="sentinel", rule="replica_mismatch", signal="sentinel.replica_mismatch"))
    assert place.choose().step == 10


def test_what_the_gate_kept_out_harms_no_weights_and_what_it_came_from_may(place: Place) -> None:
    for step in (10, 20):
        place.save(step)
    stopped = finding(15, rule="grad_nonfinite", severity=Severity.WARNING)
    place.run(stopped, finding(15, rule="nonfinite_updates", root_id=stopped.finding_id))
    assert place.choose().step == 20, "the updates were skipped: these are the weights from before"
    place.run(finding(16, rule="weights_nonfinite", layer="optimizer"))
    assert place.choose().step == 10


def test_an_older_finding_that_fires_on_counts_and_a_resolved_one_can_be_ignored(place: Place) -> None:
    for step in (10, 20, 30, 40):
        place.save(step)
    resolved = finding(15, rule="spike", state=FindingState.RESOLVED)
    place.run(resolved, finding(35, rule="collapse", state=FindingState.RESOLVED, wall_ns=START_NS + 10**12))
    assert place.choose().step == 30
    assert place.choose(ignore_resolved=True).step == 40
    place.run(finding(25, rule="dead"))
    assert place.choose().step == 20


def test_a_resumed_run_is_not_judged_by_the_findings_of_the_run_before(place: Place) -> None:
    for step in (10, 20, 30):
        place.save(step)
    place.run(finding(15))
    assert place.choose().step == 10
    place.run(name="run-1-r2", started_s=100.0)
    for step in (40, 50):
        place.save(step, at_s=100.0 + step)
    assert place.choose().step == 50


def test_a_pinned_copy_is_used_when_rotation_took_the_original(place: Place) -> None:
    place.save(10)
    (old,) = scan_directory(place.output)
    kept = pin(old, place.output.parent / "sentinel-pinned" / "run-1", "t")
    place.run(finding(15))
    assert place.choose().path == old.path
    old.path.rename(place.output / "gone")
    place.save(20)
    found = place.choose()
    assert (found.path, found.pinned) == (kept, True)


def test_the_command_prints_the_path_alone_and_exits_1_when_there_is_none(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.save(10)
    place.run(finding(15))
    assert main(["resume-point", str(place.output)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{place.output / 'checkpoint-10'}\n"
    assert "from before step 15 of run run-1" in said.err
    assert main(["resume-point", "run-1"]) == 0
    assert main(["resume-point", str(place.output / "checkpoint-10")]) == 0
    assert main(["resume-point"]) == 0
    capsys.readouterr()
    place.run(finding(5))
    assert main(["resume-point", "run-1", "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert (body["schema"], body["version"], body["path"]) == ("grpo-sentinel/resume-point", 1, None)
    assert body["rejected"][0]["step"] == 10
    assert body["runs"][0]["before_step"] == 5
    assert main(["resume-point", "no-such-run"]) == 2
    assert "neither a directory nor a run" in capsys.readouterr().err


def test_a_history_that_cannot_be_read_is_an_error_and_not_a_clean_bill(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.save(10)
    place.path.parent.mkdir(parents=True, exist_ok=True)
    place.path.write_bytes(b"not a database, not at all" * 100)
    assert main(["resume-point", str(place.output)]) == 2
    assert "history" in capsys.readouterr().err


def test_what_a_loop_of_ones_own_reported_is_believed_by_its_directory_and_by_its_run(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = [place.save_own(step) for step in (10, 20)]
    half = place.save_own(30)
    place.own_run("own", *saved)
    for words in ([str(place.output)], ["own"], []):
        assert main(["resume-point", *words]) == 0, words
        said = capsys.readouterr()
        assert said.out == f"{saved[-1]}\n"
        assert f"not {half}: " in said.err, "it was not reported"
        assert "run own has no critical finding that touches weights" in said.err


def test_the_newest_run_without_a_known_directory_is_said_and_no_other_runs_is_taken(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume-point"]) == 2
    assert "holds no run yet" in capsys.readouterr().err
    place.save(10)
    place.run(name="before")
    place.own_run("silent", started_s=100.0)
    assert main(["resume-point"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "the output directory of the newest run, silent, is not known" in said.err
    assert "checkpoint_saved" in said.err
    assert main(["resume-point", "before"]) == 0
