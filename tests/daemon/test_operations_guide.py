"""What docs/operations.md says: its commands run as they stand, its units and Slurm scripts do what is written there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from run_support import Started, directory_of, until

from grpo_sentinel.config import Config
from grpo_sentinel.daemon.claim import is_claimed, read_note
from grpo_sentinel.daemon.daemon import STUCK_SECONDS
from grpo_sentinel.daemon.tidy import KEEP_SECONDS, KEEP_SECONDS_WHEN_TIGHT
from grpo_sentinel.protocol import Geometry

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "operations.md").read_text()
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
RUN = "4711"


def shell_blocks(document: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", document, re.MULTILINE | re.DOTALL)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The command line under its own name, as an installation has it."""
    path = tmp_path / "bin" / "grpo-sentinel"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m grpo_sentinel.cli "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without XDG variables, so that places are those of the guide."""
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_command_of_the_guide_runs_and_tells_what_the_guide_says(
    started: Started, home: Path, program: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "sentinel.yaml"
    settings.write_text("http: {port: 0}\ncollectors: {nvml: {enabled: false}}\n")
    started.cli("run", "--config", settings)
    started.trainer(RUN)
    note = until(lambda: read_note(directory_of(RUN)), what="the daemon claims the run")
    state = home / ".local" / "state" / "grpo-sentinel"
    until(lambda: (state / "history.sqlite").exists(), what="the history is made")
    where = {"http://127.0.0.1:9477": note.url, "/dev/shm": os.environ["GRPO_SENTINEL_DIR"]}
    env = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    told = []
    blocks = shell_blocks(GUIDE)
    for block in blocks:
        for written, here in where.items():
            block = block.replace(written, here)
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", block],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        told.append(done.stdout)
    health, reading, sizes, gone = told
    assert '{"live":true,"healthy":true,"problems":[]}' in health.replace(" ", "")
    assert RUN in health
    assert json.loads(reading)["runs"][0]["run_id"] == RUN
    assert all(word in sizes for word in ("ring directory", "state directory", "port"))
    assert gone == ""
    assert not state.exists()


def test_the_targets_for_prometheus_are_those_of_sidecars_that_live(started: Started, tmp_path: Path) -> None:
    settings = tmp_path / "sentinel.yaml"
    settings.write_text("http: {port: 0}\ncollectors: {nvml: {enabled: false}}\n")
    first = started.cli("run", "--config", settings)
    started.trainer(RUN)
    note = until(lambda: read_note(directory_of(RUN)), what="the daemon claims the run")
    (block,) = [
        one for one in shell_blocks((ROOT / "docs" / "prometheus.md").read_text()) if "file" in one or "targets" in one
    ]
    block = block.replace("/tmp/", f"{tmp_path}/").replace("/dev/shm", os.environ["GRPO_SENTINEL_DIR"])

    def targets() -> list[str]:
        subprocess.run(["bash", "-ec", block], check=True, timeout=60)
        (found,) = json.loads((tmp_path / "grpo-sentinel-targets.json").read_text())
        return found["targets"]

    assert targets() == [note.url.removeprefix("http://")]
    first.kill()
    first.wait(10)
    assert (directory_of(RUN) / "daemon.json").exists(), "a dead one leaves its note"
    assert targets() == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_has_nothing_to_say_about_the_units(unit: Path, tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir(mode=0o700)
    copy = tmp_path / unit.name.replace("@", "@root")
    copy.write_text(unit.read_text().replace("/opt/grpo-sentinel/bin/grpo-sentinel", "/bin/true"))
    whose = "--system" if "@" in unit.name else "--user"
    done = subprocess.run(
        ["systemd-analyze", "verify", whose, str(copy)], env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "runtime")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "ExecStart=/opt/grpo-sentinel/bin/grpo-sentinel run\n" in unit.read_text()
    assert "RestartPreventExitStatus=2\n" in unit.read_text()


def test_figures_of_the_guide_are_those_of_the_code() -> None:
    config = Config()
    assert f"{Geometry().total_bytes / 1e6:.1f} MB a rank" in GUIDE
    assert f"stood still for {STUCK_SECONDS:.0f} seconds" in GUIDE
    assert f"{config.sinks.history.max_bytes / 1e9:.0f} GB, {config.sinks.history.retention_days:.0f} days" in GUIDE
    assert f"{config.incidents.max_bytes / 1e9:.0f} GB, {config.incidents.max_incidents} (`incidents`)" in GUIDE
    captures = f"{config.agent.capture_files} files of {config.agent.capture_bytes / 1e6:.0f} MB a rank"
    assert captures in GUIDE
    assert f"{config.halting.max_pins} a run (`halting.max_pins`)" in GUIDE
    assert f"newest {config.agent.segment_slots} records" in GUIDE
    assert (KEEP_SECONDS, KEEP_SECONDS_WHEN_TIGHT) == (7 * 86400, 600)
    assert "after a week, or after 10 minutes" in " ".join(GUIDE.split())


def _slurm(script: str, program: Path, tmp_path: Path) -> int:
    env = {
        **os.environ, "SLURM_JOB_ID": RUN, "SLURM_JOB_UID": str(os.getuid()), "GRPO_SENTINEL_PROGRAM": str(program),
        "GRPO_SENTINEL_CONFIG": str(tmp_path / "sentinel.yaml"), "GRPO_SENTINEL_NOTES": str(tmp_path / "notes"),
    }  # fmt: skip
    argv = ["bash", str(ROOT / "deploy" / "slurm" / script)]
    return subprocess.run(argv, env=env, timeout=60, check=False, stdin=subprocess.DEVNULL).returncode


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="a prolog needs root and setpriv")
def test_the_prolog_starts_a_sidecar_of_the_job_and_the_epilog_ends_it(
    started: Started, program: Path, tmp_path: Path
) -> None:
    (tmp_path / "sentinel.yaml").write_text("http: {port: 0}\ncollectors: {nvml: {enabled: false}}\n")
    assert _slurm("prolog.sh", program, tmp_path) == 0
    pid = int((tmp_path / "notes" / f"{RUN}.pid").read_text())
    started.also([pid])
    trainer = started.trainer(RUN)
    assert until(lambda: read_note(directory_of(RUN)), what="the job's run is watched").pid == pid
    trainer.kill()
    trainer.wait(10)
    assert _slurm("epilog.sh", program, tmp_path) == 0
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]
    assert not is_claimed(directory_of(RUN))
    assert list((tmp_path / "notes").iterdir()) == []


def test_no_job_fails_for_the_sake_of_its_sidecar(tmp_path: Path) -> None:
    for script in ("prolog.sh", "epilog.sh"):
        assert _slurm(script, tmp_path / "not-installed", tmp_path) == 0
    (tmp_path / "notes").mkdir(exist_ok=True)
    (tmp_path / "notes" / f"{RUN}.pid").write_text(str(os.getpid()))
    assert _slurm("epilog.sh", tmp_path / "not-installed", tmp_path) == 0, "and ends no process that is not its sidecar"


def test_a_run_that_is_switched_off_leaves_no_ring(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "grpo_sentinel.cli", "launch", "--", sys.executable, "-c", "import os; print(os.environ['GRPO_SENTINEL'])"],
        env={**os.environ, "GRPO_SENTINEL": "0"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "0\n")
