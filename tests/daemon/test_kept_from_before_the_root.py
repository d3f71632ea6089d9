"""What is kept and shown as from before the onset is from before that of the root, not of a late consequence."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from run_support import finding

from grpo_sentinel.cli import main
from grpo_sentinel.cli.summary import write_summary
from grpo_sentinel.config import Config, HaltingConfig, HistoryConfig, IncidentsConfig
from grpo_sentinel.daemon.background import Background
from grpo_sentinel.daemon.pins import Pins
from grpo_sentinel.daemon.places import state_dir
from grpo_sentinel.history import HistoryReader, HistoryStore, history_path
from grpo_sentinel.incidents.gather import Gatherer, Known
from grpo_sentinel.incidents.model import About, State
from grpo_sentinel.incidents.report import facts as incident_facts
from grpo_sentinel.protocol import RankWriter, choose_root, new_identity, run_dir
from grpo_sentinel.records import Action, EventRecord, Finding, FindingState, Severity
from grpo_sentinel.reporting.gather import gather
from grpo_sentinel.reporting.words import facts
from grpo_sentinel.views import HaltStatus, SinkBatch, Snapshot

ROOT = finding("replicas_differ", Action.ALERT, onset=40)
LATE = replace(
    finding("vote_saw_mismatch", Action.ALERT, onset=64, root_id=ROOT.finding_id), layer="sentinel", wall_ns=2
)


@pytest.fixture
def background() -> Iterator[Background]:
    one = Background("test")
    yield one
    one.close(10)


class Kept:
    """The pins of a run that saves every 20 steps."""

    def __init__(self, tmp_path: Path, background: Background, newest: int) -> None:
        self.told: list[str] = []
        self._background = background
        self._pins = Pins("run", HaltingConfig(), tmp_path / "state", background, self.told.append)
        for step in range(20, newest + 1, 20):
            folder = tmp_path / "out" / f"checkpoint-{step}"
            folder.mkdir(parents=True)
            (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
            (folder / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
        body = {"output_dir": str(tmp_path / "out")}
        event = EventRecord(run_id="run", rank=0, sequence=1, step=0, wall_ns=1, kind="config", body=body)
        self._pins.observe([event])

    def after(self, *findings: Finding) -> str:
        """Give the name of the copy that is shown once these have been considered."""
        self._pins.consider(findings)
        done = threading.Event()
        assert self._background.submit("wait", lambda: done.set())  # type: ignore[func-returns-value]
        assert done.wait(10)
        self._background.settle()
        return Path(self.told[-1]).name if self.told else ""


def test_a_consequence_keeps_nothing_that_is_newer_than_its_root(tmp_path: Path, background: Background) -> None:
    kept = Kept(tmp_path, background, 60)
    assert kept.after(ROOT) == "checkpoint-20", "that of step 40 holds the update of step 40"
    assert kept.after(LATE) == "checkpoint-20"
    assert kept.after(replace(LATE, state=FindingState.RESOLVED)) == "checkpoint-20"
    assert [path.name for path in (tmp_path / "sentinel-pinned" / "run").glob("checkpoint*")] == ["checkpoint-20"]


def test_a_critical_finding_of_another_kind_does_not_outdate_harm_that_goes_on(
    tmp_path: Path, background: Background
) -> None:
    kept = Kept(tmp_path, background, 100)
    kept.after(ROOT)
    other = finding("reward_constant", Action.ALERT, onset=90)
    assert kept.after(other) == "checkpoint-20", "the replicas differ since step 40 and still do"
    kept.after(replace(ROOT, state=FindingState.RESOLVED), replace(other, state=FindingState.RESOLVED))
    again = replace(finding("reward_constant", Action.ALERT, onset=95), wall_ns=other.wall_ns + 1)
    assert kept.after(again) == "checkpoint-80", "what was harmed before is over"


def test_a_root_that_is_a_warning_and_over_still_dates_what_followed(tmp_path: Path, background: Background) -> None:
    kept = Kept(tmp_path, background, 40)
    jump = finding("lr_jump", Action.ALERT, onset=40, severity=Severity.WARNING)
    assert kept.after(jump) == "checkpoint-20"
    kept.after(replace(jump, state=FindingState.RESOLVED))
    followed = finding("reward_constant", Action.ALERT, onset=43, root_id=jump.finding_id)
    assert kept.after(followed) == "checkpoint-20"


def test_an_earlier_root_that_turns_up_late_replaces_what_is_shown(tmp_path: Path, background: Background) -> None:
    kept = Kept(tmp_path, background, 60)
    assert kept.after(replace(LATE, root_id="")) == "checkpoint-60"
    root = replace(ROOT, severity=Severity.WARNING)
    assert kept.after(root, LATE) == "checkpoint-20"


def stored(tmp_path: Path, run: str) -> Path:
    """A history as a sidecar left it that kept a spoiled checkpoint last."""
    path = history_path(state_dir(Config()), socket.gethostname())
    path.parent.mkdir(parents=True, exist_ok=True)
    store = HistoryStore(path, HistoryConfig())
    now = time.time_ns()
    for wall, step, found in ((now, 20, ROOT), (now + 1, 60, LATE)):
        kept = str(tmp_path / "sentinel-pinned" / run / f"checkpoint-{step}")
        halt = HaltStatus(pinned_checkpoint=kept, updated_wall_ns=wall)
        store.write(
            SinkBatch(
                run_id=run, node="n", wall_ns=wall, findings=(replace(found, run_id=run, wall_ns=wall),), halt=halt
            )
        )
    store.close()
    return path


def test_every_view_shows_the_copy_from_before_the_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = "run-7"
    started_ns = time.time_ns()
    directory = run_dir(choose_root(), run)
    writer = RankWriter(directory, new_identity(0, 0, 1, run))
    writer.close("finished")
    path = stored(tmp_path, run)
    good = str(tmp_path / "sentinel-pinned" / run / "checkpoint-20")

    with HistoryReader(path) as reader:
        latest = reader.latest(run)
        assert latest.halt.pinned_checkpoint == good
        assert dict(facts(gather(reader, run)))["kept from before the onset"] == good
    said: list[str] = []
    write_summary(Config(), choose_root(), run, started_ns, 0, halted=False, say=said.append)
    (line,) = [one for one in said if "kept from before the onset" in one]
    assert good in line
    assert main(["status", run]) == 0
    assert f"kept from before the onset: {good}" in " ".join(capsys.readouterr().out.split())

    about = About(
        incident_id="1", run_id=run, node="n", state=State.OPEN, opened_wall_ns=1, updated_wall_ns=1, title="t",
        root_id=ROOT.finding_id, onset_step=40, last_step=64,
    )  # fmt: skip
    live = Snapshot(run_id=run, halt=HaltStatus(pinned_checkpoint=good.replace("-20", "-60")))
    known = Known(
        about=about, members=frozenset(), findings=(), transitions=(), snapshot=live, directory=directory
    )  # fmt: skip
    source = Gatherer(state_dir=tmp_path, config=IncidentsConfig(), history=path, sentinel={}).source(known)
    assert dict(incident_facts(source))["kept from rotation"] == good
