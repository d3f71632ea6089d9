"""A real Slurm of one node: notice, scancel, requeue. What the batch script sees is what `launch` gives."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from one_node import Slurm, until, usable

from grpo_sentinel.history import HistoryReader, history_path
from grpo_sentinel.protocol import RankReader, list_segments, run_dir
from grpo_sentinel.records import HaltState

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(usable()), reason=usable() or "a Slurm can be started")]

FAKE = Path(__file__).parents[1] / "halting" / "fake_trainer.py"
ROOT = Path(__file__).parents[2]
AGAIN = 84


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with tempfile.TemporaryDirectory(prefix="slurm-one-") as folder, Slurm(Path(folder) / "s") as cluster:
        yield cluster


class Job:
    """A fake trainer under `launch`, as a batch job that execs it, or acts on its exit code with `requeue`."""

    def __init__(
        self, slurm: Slurm, folder: Path, *trainer: object, notice: dict[str, str] | None = None,
        options: tuple[str, ...] = (), requeue: bool = False,
    ) -> None:  # fmt: skip
        self.slurm, self.folder = slurm, folder
        config = folder / "sentinel.yaml"
        launch = {"linger_seconds": 1, "on_notice": notice or {}, "notice_exit_code": AGAIN if requeue else None}
        body = {"http": {"port": 0}, "launch": launch, "collectors": {"nvml": {"enabled": False}},
                "state_dir": str(folder / "state"), "ring_dir": str(folder / "rings")}  # fmt: skip
        config.write_text(json.dumps(body))
        (folder / "rings").mkdir(exist_ok=True)
        words = [sys.executable, "-m", "grpo_sentinel.cli", "launch", "--config", config, "--", sys.executable, FAKE]
        command = " ".join(map(str, [*words, "--output-dir", folder / "out", *trainer]))
        requeueing = f"""{command} &
trap "kill -USR1 $!" USR1  # Slurm tells the batch shell alone
while wait $!; code=$?; kill -0 $! 2>/dev/null; do :; done
[ $code = {AGAIN} ] && scontrol requeue $SLURM_JOB_ID
exit $code"""
        point = f"{sys.executable} -m grpo_sentinel.cli resume-point --config {config} {folder / 'out'}"
        script = f"""export PYTHONPATH={ROOT}:$PYTHONPATH
unset GRPO_SENTINEL_RUN_ID GRPO_SENTINEL_DIR
{point} > {folder}/resumes-${{SLURM_RESTART_COUNT:-0}}
{requeueing if requeue else f"exec {command}"}
"""
        self.id = slurm.submit(script, "--requeue", *options)

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


@pytest.mark.parametrize(("asked", "requeue"), [("checkpoint", False), ("checkpoint-and-halt", True)])
def test_a_job_that_a_better_partition_preempts_is_saved_requeued_and_resumed(
    slurm: Slurm, tmp_path: Path, asked: str, requeue: bool
) -> None:
    """It saves and goes on until Slurm requeues it, or ends at once and has itself requeued by its exit code."""
    job = Job(slurm, tmp_path, notice={"USR1": asked}, options=("--exclusive", "--signal=B:USR1@20"), requeue=requeue)
    job.watched(job.id).close()
    urgent = slurm.submit("sleep 1", "--partition=urgent", "--exclusive")
    until(lambda: slurm.job(urgent).get("JobState") == "COMPLETED", 120, f"the urgent job: {slurm.job(urgent)}")
    until(lambda: slurm.job(job.id).get("JobState") in ("PENDING", "RUNNING"), 60, "the job to be queued again")
    assert int(slurm.job(job.id)["Restarts"]) == 1
    (saved,) = (tmp_path / "out").glob("checkpoint-*")
    with HistoryReader(history_path(tmp_path / "state", socket.gethostname())) as reader:
        done = {one.request_id: one for one in reader.requests(job.id)}
    assert [(one.state, one.step) for one in done.values()] == [(HaltState.DONE, int(saved.name[11:]))]
    assert "rank_dead" not in job.findings(job.id)
    slurm.say("scontrol", "update", f"JobId={job.id}", "StartTime=now")
    again = job.watched(f"{job.id}-r1")
    assert again.identity.parent_run_id == job.id
    again.close()
    assert (tmp_path / "resumes-0").read_text() == ""
    assert (tmp_path / "resumes-1").read_text().strip() == str(saved)
    slurm.say("scancel", job.id)
    job.ended()
