"""Under Kubernetes: SIGTERM to the first process of the container, the grace period, SIGKILL."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest
import yaml
from kubelet import Container, usable
from run_support import Started, directory_of, last_step, until

from grpo_sentinel.history import HistoryReader, history_path
from grpo_sentinel.preflight.checkpoint import Resumable, check_checkpoint
from grpo_sentinel.records import HaltState

pytestmark = pytest.mark.skipif(bool(usable()), reason=usable() or "containers can be played")

TESTS = Path(__file__).parents[1]
FAKE = TESTS / "halting" / "fake_trainer.py"
TORCHRUN = Path(sys.executable).with_name("torchrun")
JOB, SETTINGS = yaml.safe_load_all((TESTS.parent / "deploy" / "kubernetes" / "job.yaml").read_text())


def settings(folder: Path, **launch: object) -> Path:
    path = folder / "sentinel.yaml"
    body = {"linger_seconds": 0.5, "on_notice": {"TERM": "checkpoint-and-halt"}, **launch}
    path.write_text(json.dumps({"http": {"port": 0}, "launch": body, "collectors": {"nvml": {"enabled": False}}}))
    return path


def trainer(folder: Path, config: Path, *command: object, name: str = "run") -> Container:
    words = [sys.executable, "-m", "grpo_sentinel.cli", "launch", "--config", config, "--run-id", name, "--"]
    return Container(folder / "trainer.log", *words, *command)


def stepping(container: Container, *, past: int = 10, watched: bool = True) -> None:
    """Wait until the run steps, and a sidecar sees it."""
    try:
        until(lambda: directory_of("run").is_dir() and last_step("run") > past, 60, "steps")
        until(lambda: not watched or (directory_of("run") / "daemon.json").exists(), 30, "a watched run")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{container.said()}") from None


def history() -> HistoryReader:
    return HistoryReader(history_path(Path(os.environ["XDG_STATE_HOME"]) / "grpo-sentinel", socket.gethostname()))


def saved(folder: Path) -> list[Path]:
    return sorted((folder / "out").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))


def test_the_first_process_of_a_container_saves_and_ends_within_the_grace_period(tmp_path: Path) -> None:
    fake = (sys.executable, FAKE, "--output-dir", tmp_path / "out")
    with trainer(tmp_path, settings(tmp_path), *fake) as container:
        stepping(container)
        code, seconds = container.stop(30)
        assert code == 83, container.said()
        assert seconds < 20
    (path,) = saved(tmp_path)
    state = json.loads((path / "trainer_state.json").read_text())
    assert state["global_step"] == int(path.name[11:])


@pytest.mark.slow
@pytest.mark.torch
def test_two_real_ranks_under_torchrun_save_at_one_step_when_the_pod_is_to_go(tmp_path: Path) -> None:
    words = [TORCHRUN, "--standalone", "--nproc-per-node=2", TESTS / "kubernetes" / "saving_ranks.py", tmp_path / "out"]
    with trainer(tmp_path, settings(tmp_path), *words) as container:
        stepping(container, past=5)
        code, seconds = container.stop(60)
        said = container.said()
    assert code == 83, said
    assert seconds < 45
    (path,) = saved(tmp_path)
    assert check_checkpoint(path).resumable is Resumable.YES, check_checkpoint(path).reasons
    with history() as reader:
        ends = [one for one in reader.requests("run") if one.state is HaltState.DONE]
    assert [one.step for one in ends] == [int(path.name[11:])]


@pytest.mark.slow
def test_a_run_that_does_not_answer_gets_the_signal_itself_before_the_grace_period_is_over(tmp_path: Path) -> None:
    fake = (sys.executable, FAKE, "--output-dir", tmp_path / "out", "--deaf")
    with trainer(tmp_path, settings(tmp_path, notice_seconds=2), *fake) as container:
        stepping(container)
        code, seconds = container.stop(30)
        assert code == 143, container.said()
        assert 2 <= seconds < 15
        assert "the command runs on 2 s after SIGTERM" in container.said()
    assert saved(tmp_path) == []


@pytest.mark.slow
def test_what_outlives_the_grace_period_is_killed_and_no_checkpoint_is_claimed(tmp_path: Path) -> None:
    ignoring = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.argv = sys.argv[1:]; "
    ignoring += "import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    config = settings(tmp_path, notice_seconds=1)
    run = [sys.executable, "-m", "grpo_sentinel.cli", "run", "--config", config]
    words = [sys.executable, "-m", "grpo_sentinel.cli", "launch", "--config", config, "--no-daemon", "--run-id", "run"]
    fake = [sys.executable, "-c", ignoring, FAKE, "--output-dir", tmp_path / "out", "--deaf"]
    with (
        Container(tmp_path / "sidecar.log", *run) as sidecar,
        Container(tmp_path / "trainer.log", *words, "--", *fake) as container,
    ):
        stepping(container)
        code, seconds = container.stop(4)
        assert (code, seconds >= 4) == (137, True), container.said()
        until(lambda: "ended by signal 15" in sidecar.said(), 30, "the sidecar sees the end as one that was wanted")
        assert sidecar.stop(20)[0] == 0, sidecar.said()
    assert saved(tmp_path) == []
    with history() as reader:
        (request,) = {one.request_id: one for one in reader.requests("run")}.values()
        found = {one.rule for one in reader.findings("run")}
    assert request.state in (HaltState.FAILED, HaltState.FINISHED)
    assert ("run_ended_by_signal" in found, "rank_dead" in found) == (True, False)


@pytest.mark.slow
def test_orphans_that_come_to_the_first_process_leave_no_zombies(tmp_path: Path) -> None:
    script = "for i in $(seq 20); do (sleep 0.2 &); done; touch READY; sleep 60".replace(
        "READY", str(tmp_path / "here")
    )
    with trainer(tmp_path, settings(tmp_path), "sh", "-c", script) as container:
        until((tmp_path / "here").exists, 30, "the command")
        first = container.first
        children = Path(f"/proc/{first}/task/{first}/children")

        def states() -> list[str]:
            found = []
            for pid in children.read_text().split():
                try:
                    found.append(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
                except OSError:
                    continue
            return found

        until(lambda: len(states()) <= 2, 30, "orphans are gone: the command and the sidecar are left")
        assert "Z" not in states()


@pytest.mark.slow
def test_the_pod_of_the_example_is_watched_and_saved_by_its_own_command_lines(tmp_path: Path) -> None:
    """Two containers with namespaces of their own: rings, user and loopback are all that they share here."""
    pod = JOB["spec"]["template"]["spec"]
    (sidecar_spec,), (trainer_spec,) = pod["initContainers"], pod["containers"]
    said = yaml.safe_load(SETTINGS["data"]["sentinel.yaml"])
    config = tmp_path / "sentinel.yaml"
    places = {"ring_dir": os.environ["GRPO_SENTINEL_DIR"], "state_dir": str(tmp_path / "made"), "http": {"port": 0}}
    config.write_text(json.dumps({**said, **places}))

    def ours(words: list[str]) -> list[str]:
        return [str(config) if word == "/etc/grpo-sentinel/sentinel.yaml" else word for word in words]

    program = [sys.executable, "-m", "grpo_sentinel.cli"]
    command = trainer_spec["command"]
    head = ours(command[1 : command.index("--")])
    fake = [sys.executable, FAKE, "--output-dir", tmp_path / "out"]
    env = {"GRPO_SENTINEL_RUN_ID": "run"}
    with (
        Container(tmp_path / "sidecar.log", *program, *ours(sidecar_spec["args"])) as sidecar,
        Container(tmp_path / "trainer.log", *program, *head, "--", *fake, env=env) as container,
    ):
        stepping(container)
        code, _ = container.stop(60)
        assert code in JOB["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"], container.said()
        until(lambda: "done at step" in sidecar.said(), 20, "the sidecar follows the request to its end")
        assert sidecar.stop(20)[0] == 0, sidecar.said()
    assert len(saved(tmp_path)) == 1


@pytest.mark.slow
def test_a_hook_before_the_signal_halts_a_trainer_that_no_launch_runs(tmp_path: Path, started: Started) -> None:
    config = settings(tmp_path)
    program = [sys.executable, "-m", "grpo_sentinel.cli"]
    with Container(tmp_path / "sidecar.log", *program, "run", "--config", config), Container(
        tmp_path / "trainer.log", sys.executable, FAKE, "--output-dir", tmp_path / "out",
        env={"GRPO_SENTINEL_RUN_ID": "run"},
    ) as container:  # fmt: skip
        stepping(container)
        hook = started.cli("halt", "run", "--config", config, "--wait", 30)
        assert hook.wait(40) == 0
        assert container.wait(20) == 0
    assert len(saved(tmp_path)) == 1


@pytest.fixture
def started() -> object:
    with Started() as processes:
        yield processes
