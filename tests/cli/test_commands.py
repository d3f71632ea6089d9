"""`status`, `halt`, `checkpoint`, `doctor` as a person or a script would call them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_support import Started, cli, directory_of, last_step, step, until

from grpo_sentinel.daemon.claim import Claim, read_note
from grpo_sentinel.protocol import ControlReader
from grpo_sentinel.records import Action

RUN = "asked"


def config(tmp_path: Path) -> Path:
    path = tmp_path / "sentinel.yaml"
    path.write_text(json.dumps({
        "http": {"port": 0}, "collectors": {"nvml": {"enabled": False}}, "sinks": {"history": {"flush_seconds": 0.1}},
    }))  # fmt: skip
    return path


def watched(started: Started, tmp_path: Path, *arguments: object) -> object:
    started.cli("run", "--config", config(tmp_path))
    trainer = started.trainer(RUN, *arguments)
    until(lambda: (note := read_note(directory_of(RUN))) and note.url)
    return trainer


def test_status_shows_ranks_without_a_daemon_and_says_so(started: Started, tmp_path: Path) -> None:
    trainer = started.trainer(RUN, "--stdin")
    for _ in range(4):
        step(trainer)
    body = json.loads(cli("status", "--json").stdout)
    assert body["run_id"] == RUN
    assert body["daemon"] is False
    assert body["ranks"]["0"]["last_step"] == 4
    assert body["ranks"]["0"]["liveness"] == "alive"
    text = cli("status", RUN, "--wide").stdout  # the width of the values decides whether a pipe has room for pids
    assert "no daemon watches it" in text
    assert "alive" in text
    assert f" {trainer.pid} " in text


def test_status_shows_findings_and_the_request_also_when_all_are_dead(started: Started, tmp_path: Path) -> None:
    sidecar = started.cli("run", "--config", config(tmp_path))
    trainer = started.trainer(RUN, "--stdin", "--bad-from", 3, "--output-dir", tmp_path / "out")
    until(lambda: read_note(directory_of(RUN)))
    for _ in range(5):
        step(trainer)
    until(lambda: (directory_of(RUN) / "control").exists())
    step(trainer)
    assert trainer.wait(10) == 0
    until(lambda: json.loads(cli("status", "--json").stdout)["halt"]["state"] == "done")
    sidecar.kill()
    sidecar.wait(10)
    body = json.loads(cli("status", RUN, "--json").stdout)
    assert body["daemon"] is False
    assert body["halt"]["state"] == "done"
    assert any(finding["layer"] == "gradient" and finding["ranks"] == [0] for finding in body["findings"])
    assert "checkpoint-6" in cli("status", RUN).stdout


def test_a_nan_is_strict_json(started: Started) -> None:
    trainer = started.trainer(RUN, "--stdin", "--bad-from", 1)
    step(trainer)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    body = json.loads(cli("status", "--json").stdout, parse_constant=refuse)
    assert body["ranks"]["0"]["values"]["gradient.norm_preclip"] == "NaN"


def test_watch_shows_again_until_it_is_interrupted(started: Started) -> None:
    trainer = started.trainer(RUN, "--stdin")
    step(trainer)
    process = started.cli("status", "--watch", "--json")
    assert process.stdout is not None
    seen = 0
    while seen < 2:
        seen += '"run_id": "asked",' in process.stdout.readline()
    process.send_signal(2)
    assert process.wait(10) == 130


def test_halt_through_the_daemon_waits_for_the_checkpoint(started: Started, tmp_path: Path) -> None:
    trainer = watched(started, tmp_path, "--output-dir", tmp_path / "out")
    done = cli("halt", RUN, "--wait", 20, "--reason", "enough")
    assert done.returncode == 0, done.stderr
    assert f"done at step {last_step(RUN)}: {tmp_path / 'out'}/checkpoint-" in done.stdout
    assert trainer.wait(10) == 0  # type: ignore[attr-defined]
    assert "has ended" in cli("halt", RUN).stderr


def test_checkpoint_lets_training_go_on(started: Started, tmp_path: Path) -> None:
    trainer = watched(started, tmp_path, "--output-dir", tmp_path / "out")
    assert "request 1: done" in cli("checkpoint", "--wait", 20).stdout
    assert "request 2: done" in cli("checkpoint", RUN, "--wait", 20).stdout
    assert trainer.poll() is None  # type: ignore[attr-defined]
    assert len(list((tmp_path / "out").glob("checkpoint-*"))) == 2


def test_halt_without_a_daemon_writes_the_control_file_itself(started: Started, tmp_path: Path) -> None:
    trainer = started.trainer(RUN, "--output-dir", tmp_path / "out")
    done = cli("halt", "--now", "--wait", 20)
    assert done.returncode == 0, done.stderr
    assert trainer.wait(10) == 0
    reader = ControlReader(directory_of(RUN))
    assert reader.read().action is Action.HALT_NOW  # type: ignore[union-attr]
    reader.close()
    assert not list((tmp_path / "out").glob("*")), "asked to stop at once, it saves nothing"


def test_a_held_run_without_a_word_from_its_daemon_is_left_alone(started: Started) -> None:
    started.trainer(RUN, "--stdin")
    claim = Claim.take(directory_of(RUN))
    assert claim is not None
    done = cli("halt", RUN)
    claim.release()
    assert done.returncode == 3
    assert "says not where it answers" in done.stderr
    assert not (directory_of(RUN) / "control").exists()


def test_waiting_too_short_says_where_the_request_stands(started: Started) -> None:
    started.trainer(RUN, "--deaf")
    done = cli("halt", "--wait", 0.5)
    assert done.returncode == 2
    assert "is requested after 0.5 s" in done.stderr


def test_several_living_runs_must_be_told_apart(started: Started) -> None:
    for run in ("one", "two"):
        started.trainer(run, "--stdin")
    done = cli("halt")
    assert done.returncode == 2
    assert "2 runs are alive" in done.stderr
    assert cli("status", "one").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status"], "there is no run in"),
        (["status", "nosuch"], "there is no run nosuch"),
        (["halt", "nosuch"], "there is no run nosuch"),
        (["run", "--run-dir", "/no/such"], "/no/such is not a directory"),
        (["status", "--config", "/no/such.yaml"], "cannot read the configuration"),
        (["nonsense"], "No such command"),
        (["launch"], "Missing argument"),
        (["status", "--nonsense"], "No such option"),
    ],
)
def test_every_mistake_is_one_sentence_and_exit_code_2(arguments: list[str], words: str) -> None:
    done = cli(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("group", ["check", "snapshot", "rules", "notify"])
def test_a_group_without_a_command_prints_its_help_as_it_is(group: str) -> None:
    asked, bare = cli(group, "--help"), cli(group)
    assert bare.returncode == 2
    assert bare.stderr == asked.stdout
    assert bare.stderr.count("\n") > 5


def test_incident_alone_lists_the_incidents(tmp_path: Path) -> None:
    bare, listed = (cli("incident", *words, env={"XDG_STATE_HOME": str(tmp_path)}) for words in ([], ["list"]))
    assert (bare.returncode, bare.stdout) == (0, listed.stdout)
    assert "no incident in" in bare.stdout
    assert cli("incident", "show", "nosuch", env={"XDG_STATE_HOME": str(tmp_path)}).returncode == 2


def test_a_bug_is_one_line_with_a_crash_log(tmp_path: Path) -> None:
    code = (
        "import sys, grpo_sentinel.cli.status as s, grpo_sentinel.cli as c\n"
        "s.look = lambda *a: 1 / 0\n"
        "sys.exit(c.main(['status']))"
    )
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 70
    assert done.stderr.count("\n") == 1
    log = next(tmp_path.glob("grpo-sentinel-crash-*.log"))
    assert str(log) in done.stderr
    assert "ZeroDivisionError" in log.read_text()


def test_doctor_tells_what_is_there_and_the_remedy_for_what_is_not(tmp_path: Path) -> None:
    done = cli("doctor", "--json")
    body = json.loads(done.stdout)
    assert done.returncode == (0 if body["good"] else 1)
    checks = {one["name"]: one for one in body["checks"]}
    assert "psutil" in checks["sidecar packages"]["found"]
    assert checks["ring directory"]["found"].startswith(str(tmp_path / "rings"))
    assert checks["state directory"]["found"].startswith(str(tmp_path / "state"))
    assert all(one["remedy"] for one in body["checks"] if one["state"] == "missing")


def test_doctor_exits_1_when_something_that_matters_is_missing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = cli("doctor", env={"XDG_STATE_HOME": str(blocked), "GRPO_SENTINEL_DIR": str(blocked / "x")})
    assert done.returncode == 1
    assert "MISSING" in done.stdout
    assert "set GRPO_SENTINEL_DIR to a writable directory" in done.stdout


def test_help_is_fast_and_imports_no_heavy_package() -> None:
    code = (
        "import sys, grpo_sentinel.cli as c\n"
        "c.main(['--help'])\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('pydantic', 'rich', 'yaml', 'torch', 'starlette')))"
    )
    import subprocess

    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip().endswith("[]")
    assert time.perf_counter() - began < 3
    for word in ("launch", "run", "status", "halt", "checkpoint", "doctor"):
        assert word in done.stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_no_failure(closed: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m grpo_sentinel.cli launch --no-daemon -- {sys.executable} -c 'exit(7)' {closed}"
    assert subprocess.run(["sh", "-c", command], cwd=tmp_path, timeout=60, check=False).returncode == 7
    command = f"{sys.executable} -m grpo_sentinel.cli doctor {closed}"
    assert subprocess.run(["sh", "-c", command], cwd=tmp_path, timeout=60, check=False).returncode in (0, 1)


def test_the_package_is_the_command_line_where_its_script_is_not_on_the_path() -> None:
    command = [sys.executable, "-m", "grpo_sentinel", "nonsense"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.startswith("grpo-sentinel: No such command 'nonsense'")
