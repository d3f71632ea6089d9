"""The shipped prolog and epilog under a real Slurm: a sidecar outside the job, which watches it to its end and goes."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from one_node import Slurm, until, usable

from grpo_sentinel.history import HistoryReader
from grpo_sentinel.protocol import run_dir

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(usable()), reason=usable() or "a Slurm can be started")]
ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests" / "halting" / "fake_trainer.py"


def wrapped(script: str, folder: Path) -> str:
    """The shipped script with places of this test's own, since Slurm gives a prolog next to no environment."""
    return f"""#!/bin/bash
export GRPO_SENTINEL_PROGRAM={folder}/grpo-sentinel GRPO_SENTINEL_CONFIG={folder}/sentinel.yaml
export GRPO_SENTINEL_NOTES={folder}/notes
exec bash {ROOT}/deploy/slurm/{script}
"""


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    files = {
        "grpo-sentinel": f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m grpo_sentinel.cli "$@"\n',
        "prolog.sh": wrapped("prolog.sh", tmp_path),
        "epilog.sh": wrapped("epilog.sh", tmp_path),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "sentinel.yaml").write_text(
        f"ring_dir: {tmp_path}/rings\nstate_dir: {tmp_path}/state\nhttp: {{port: 0}}\ncollectors: {{nvml: {{enabled: false}}}}\n"
    )
    with tempfile.TemporaryDirectory(prefix="slurm-one-") as folder:
        cluster = Slurm(Path(folder) / "s")
        with (cluster.folder / "slurm.conf").open("a") as conf:
            conf.write(f"Prolog={tmp_path}/prolog.sh\nEpilog={tmp_path}/epilog.sh\nPrologFlags=Alloc\n")
        with cluster:
            yield cluster


def test_a_job_without_launch_is_watched_to_its_end_and_leaves_no_sidecar(slurm: Slurm, tmp_path: Path) -> None:
    script = f"""export PYTHONPATH={ROOT}:$PYTHONPATH GRPO_SENTINEL_DIR={tmp_path}/rings
unset GRPO_SENTINEL_RUN_ID
exec {sys.executable} {FAKE} --steps 300 --bad-from 280
"""
    job = slurm.submit(script)
    note = tmp_path / "notes" / f"{job}.pid"
    directory = tmp_path / "rings" / f"grpo-sentinel-{os.getuid()}" / job
    until(lambda: (directory / "daemon.json").exists(), 90, f"the job is watched: {slurm.job(job)}")
    pid = int(note.read_text())
    until(lambda: slurm.job(job).get("JobState") not in ("RUNNING", "PENDING", "COMPLETING"), 90, "the end of the job")
    until(lambda: not note.exists() and not Path(f"/proc/{pid}").exists(), 60, "the epilog ends the sidecar")
    with HistoryReader(tmp_path / "state" / "history.sqlite") as reader:
        assert "grad_nonfinite" in {finding.rule for finding in reader.findings(job)}
    assert run_dir(tmp_path / "rings", job) == directory
    assert "idle" in until(lambda: slurm.say("sinfo", "-h", "-o", "%T"), 30, "the node"), "no prolog drained it"
