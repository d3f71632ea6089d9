"""A real Slurm of one node: notice, scancel, requeue. What the batch script sees is what `launch` gives."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from one_node import Slurm, until, usable

from grpo_sentinel.history import HistoryReader
from grpo_sentinel.protocol import RankReader, list_segments, run_dir

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(usable()), reason=usable() or "a Slurm can be started")]

FAKE = Path(__file__).parents[1] / "halting" / "fake_trainer.py"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with tempfile.TemporaryDirectory(prefix="slurm-one-") as folder, Slurm(Path(folder) / "s") as cluster:
        yield cluster


class Job:
    """A fake trainer under `launch`, as a batch job that execs it."""

    def __init__(self, slurm: Slurm, folder: Path, *trainer: object, notice: dict[str, str] | None = None) -> None:
        self.slurm, self.folder = slurm, folder
        config = folder / "sentinel.yaml"
        launch = {"linger_seconds": 1, "on_notice": notice or {}}
        body = {"http": {"port": 0}, "launch": launch, "collectors": {"nvml": {"enabled": False}},
                "state_dir": str(folder / "state"), "ring_dir": str(folder / "rings")}  # fmt: skip
        config.write_text(json.dumps(body))
        (folder / "rings").mkdir(exist_ok=True)
        words = [sys.executable, "-m", "grpo_sentinel.cli", "launch", "--config", config, "--", sys.executable, FAKE]
        command = " ".join(map(str, [*words, "--output-dir", folder / "out", *trainer]))
        script = f"export PYTHONPATH={ROOT}:$PYTHONPATH\nunset GRPO_SENTINEL_RUN_ID GRPO_SENTINEL_DIR\nexec {command}\n"
        self.id = slurm.submit(script, "--requeue")

    def watched(self, run: str) -> RankReader:
        """Wait until a run's rank steps and its sidecar has seen it."""
        directory = run_dir(self.folder / "rings", run)
        try:
            until(lambda: list_segments(directory) and (directory / "daemon.json").exists(), 90, f"run {run}, watched")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.slurm.job(self.id)}\n{self.slurm.output()[-3000:]}") from None
        reader = RankReader(list_segments(directory)[0])
        until(lambda: reader.heartbeat().step > 20, 60, "steps")
        return reader

    def ended(self, seconds: float = 90) -> dict[str, str]:
        until(
            lambda: self.slurm.job(self.id).get("JobState") in ("COMPLETED", "FAILED", "CANCELLED"),
            seconds, f"the end of the job: {self.slurm.job(self.id)}",
        )  # fmt: skip
        return self.slurm.job(self.id)

    def findings(self, run: str) -> set[str]:
        with HistoryReader(self.folder / "state" / "history.sqlite") as reader:
            return {finding.rule for finding in reader.findings(run)}


@pytest.fixture(autouse=True)
def _no_leftovers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GRPO_SENTINEL")]:
        monkeypatch.delenv(name)


def test_a_notice_makes_a_checkpoint_and_slurm_sees_exit_code_83(slurm: Slurm, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, notice={"USR1": "checkpoint-and-halt"})
    job.watched(job.id).close()
    slurm.say("scancel", "--signal=USR1", "--batch", job.id)
    seen = job.ended()
    assert (seen["JobState"], seen["ExitCode"]) == ("FAILED", "83:0"), slurm.output()[-3000:]
    (saved,) = (tmp_path / "out").glob("checkpoint-*")
    assert json.loads((saved / "trainer_state.json").read_text())["global_step"] == int(saved.name[11:])
    assert f"JobId={job.id}" in (slurm.folder / "jobcomp.txt").read_text()
    assert "rank_dead" not in job.findings(job.id)


def test_scancel_ends_the_job_as_somebody_wanted_it(slurm: Slurm, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path)
    job.watched(job.id).close()
    slurm.say("scancel", "--signal=TERM", "--batch", job.id)
    seen = job.ended()
    assert seen["ExitCode"] in ("143:0", "0:15"), seen
    assert "rank_dead" not in job.findings(job.id)
    assert "run_ended_by_signal" in job.findings(job.id)


def test_a_requeued_job_is_a_run_of_its_own_that_names_its_parent(slurm: Slurm, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, "--save-steps", 10, notice={"TERM": "checkpoint-and-halt"})
    job.watched(job.id).close()
    slurm.say("scontrol", "requeue", job.id)
    until(lambda: slurm.job(job.id).get("JobState") == "PENDING", 60, "the job to be queued again")
    slurm.say("scontrol", "update", f"JobId={job.id}", "StartTime=now")
    again = job.watched(f"{job.id}-r1")
    assert again.identity.parent_run_id == job.id
    again.close()
    assert "rank_dead" not in job.findings(job.id)
    slurm.say("scancel", "--signal=TERM", "--batch", job.id)
    assert job.ended()["ExitCode"] == "83:0", slurm.output()[-3000:]
