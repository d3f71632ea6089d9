"""`launch`: training starts whatever is wrong with us, and its exit code and signals are its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_support import HERE, Started, cli, directory_of, until

from grpo_sentinel.cli import sidecar as sidecars
from grpo_sentinel.cli.salvage import salvage
from grpo_sentinel.daemon.claim import read_note

FAKE = HERE / "fake_trainer.py"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sentinel.yaml"
    body = {"http": {"port": 0}, "launch": {"linger_seconds": 0.5}, "collectors": {"nvml": {"enabled": False}}}
    path.write_text(json.dumps(body))
    return path


def launch(
    config: Path, *command: object, run: str = "run", timeout: float = 60, **env: str
) -> subprocess.CompletedProcess[str]:
    return cli("launch", "--config", config, "--run-id", run, "--", *command, timeout=timeout, env=env)


def test_a_halted_run_returns_83_and_tells_where_the_checkpoint_is(config: Path, tmp_path: Path) -> None:
    done = launch(config, sys.executable, FAKE, "--output-dir", tmp_path / "out", "--save-steps", 5, "--bad-from", 150)
    assert done.returncode == 83, done.stderr
    assert "was halted with exit code 83" in done.stderr
    assert str(tmp_path / "out" / "checkpoint-") in done.stderr
    assert "kept from before the onset" in done.stderr
    assert "history.sqlite" in done.stderr


def test_a_run_resumed_under_its_name_after_a_halt_goes_on_and_can_be_halted_again(
    config: Path, tmp_path: Path
) -> None:
    bad = (sys.executable, FAKE, "--output-dir", tmp_path / "out", "--save-steps", 5, "--bad-from", 30)
    assert launch(config, *bad).returncode == 83
    resumed = launch(config, sys.executable, FAKE, "--steps", 60)
    assert resumed.returncode == 0, resumed.stderr
    assert "halted" not in resumed.stderr
    assert "nothing above a note was found" in resumed.stderr, "the summary is of this launch"
    again = launch(config, *bad)
    assert again.returncode == 83, again.stderr
    assert "request 2 (checkpoint-and-halt) by" in again.stderr


def test_no_line_is_said_twice(config: Path, tmp_path: Path) -> None:
    place = tmp_path / "out"
    done = launch(config, sys.executable, FAKE, "--output-dir", place, "--bad-from", 60, "--lost-weights")
    assert done.returncode == 83, done.stderr
    lines = done.stderr.splitlines()
    assert sum("nothing to keep" in line for line in lines) == 1
    assert sorted(set(lines)) == sorted(lines)


def test_a_halt_that_is_only_said_is_said_once_though_a_checkpoint_is_kept_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "dry.yaml"
    path.write_text(json.dumps({"http": {"port": 0}, "halting": {"dry_run": True}}))
    done = launch(path, sys.executable, FAKE, "--output-dir", tmp_path / "out", "--save-steps", 5, "--bad-from", 60,
                  "--steps", 120)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "kept from before the onset" in done.stderr
    assert sum("grpo-sentinel: dry run: would have halted" in line for line in done.stderr.splitlines()) == 1


@pytest.mark.parametrize("code", [0, 3])
def test_the_trainers_own_exit_code_is_returned(config: Path, code: int) -> None:
    done = launch(config, sys.executable, FAKE, "--steps", 3, "--exit-code", code)
    assert done.returncode == code
    assert f"ended with exit code {code}" in done.stderr or "no summary" in done.stderr


def test_a_command_killed_by_a_signal_gives_128_plus_its_number(config: Path) -> None:
    done = launch(config, sys.executable, FAKE, "--kill-self-at", 5)
    assert done.returncode == 128 + signal.SIGKILL


def test_a_command_that_does_not_exist_is_one_line(config: Path) -> None:
    done = launch(config, "/no/such/program")
    assert done.returncode == 127
    assert done.stderr.count("\n") == 1
    assert "/no/such/program" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
def test_signals_go_through_to_the_command_once(
    request: pytest.FixtureRequest, started: Started, config: Path, tmp_path: Path, number: signal.Signals
) -> None:
    seen = tmp_path / "seen"
    if signal.getsignal(number) is signal.SIG_IGN:  # the tests run under nohup, and launch would respect that
        signal.signal(number, signal.SIG_DFL)
        request.addfinalizer(lambda: signal.signal(number, signal.SIG_IGN))
    process = started.cli(
        "launch", "--no-daemon", "--config", config, "--run-id", "run", "--", sys.executable, FAKE,
        "--signals-to", seen, "--exit-code", 7,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    process.send_signal(number)
    until(seen.exists)
    if number is not signal.SIGTERM:
        process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 7
    assert seen.read_text().split() == list(dict.fromkeys([number.name, "SIGTERM"]))


def test_the_agent_is_switched_on_by_environment_alone(config: Path, tmp_path: Path) -> None:
    body = json.loads(config.read_text())
    config.write_text(json.dumps({**body, "agent": {"gate": "halt", "vote_every": 4}}))
    done = cli(
        "launch", "--no-daemon", "--config", config, "--", sys.executable, "-c",
        "import os, json; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('GRPO_SENTINEL')}))",
        env={"SLURM_JOB_ID": "4711"},
    )  # fmt: skip
    given = json.loads(done.stdout)
    assert given["GRPO_SENTINEL"] == "1"
    assert given["GRPO_SENTINEL_RUN_ID"] == "4711"
    assert given["GRPO_SENTINEL_DIR"] == str(tmp_path / "rings")
    settings = json.loads(given["GRPO_SENTINEL_SETTINGS"])
    assert (settings["gate"], settings["vote_every"]) == ("halt", 4)
    pytest.importorskip("torch")
    from grpo_sentinel.agent.settings import settings_from_environment

    assert settings_from_environment(given).gate == "halt"


@pytest.mark.parametrize(
    ("command", "name"),
    [(["torchrun", "--rdzv-id", "job7", "t.py"], "job7"), (["torchrun", "--rdzv_id=job8"], "job8"), (["python"], "")],
)
def test_the_rendezvous_names_the_run_on_every_node(command: list[str], name: str) -> None:
    from grpo_sentinel.cli.launch import base_run_id

    assert base_run_id({"TORCHELASTIC_RUN_ID": "none"}, command) == name
    assert base_run_id({"GRPO_SENTINEL_RUN_ID": "mine"}, command) == "mine"


def test_a_bad_config_is_said_and_training_runs(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("halting:\n  cooldown_seconds: soon\n")
    done = launch(bad, sys.executable, "-c", "print('trained')")
    assert (done.returncode, done.stdout.strip()) == (0, "trained")
    assert "bad.yaml line 2" in done.stderr
    assert "training starts" in done.stderr


@pytest.mark.parametrize("kind", ["a misspelled key", "a rule that cannot be read", "no yaml", "nothing mistaken"])
def test_a_mistake_in_the_config_never_halts_a_run_that_was_to_be_left_alone(tmp_path: Path, kind: str) -> None:
    quiet = {"http": {"port": 0}, "launch": {"linger_seconds": 0.5}, "collectors": {"nvml": {"enabled": False}}}
    texts = {
        "a misspelled key": json.dumps({**quiet, "halting": {"dry_run": True, "nonfinite_update": 5}}),
        "a rule that cannot be read": json.dumps({**quiet, "rules": {"override": {"x": {"action": "nothing"}}}}),
        "no yaml": "halting: {dry_run: true",
        "nothing mistaken": json.dumps(quiet),
    }
    path = tmp_path / "sentinel.yaml"
    path.write_text(texts[kind])
    done = launch(
        path, sys.executable, FAKE, "--output-dir", tmp_path / "out", "--save-steps", 5, "--bad-from", 100,
        "--steps", 180,
    )  # fmt: skip
    if kind == "nothing mistaken":
        assert done.returncode == 83, "the same run is halted where nobody asked otherwise"
        return
    assert done.returncode == 0, done.stderr
    assert "was halted" not in done.stderr
    assert "runs with halting.dry_run: true" in done.stderr
    assert "dry run" in done.stderr
    assert "the sidecar ended" not in done.stderr, "it watches all the same"


def test_every_mistake_of_a_config_is_named_and_every_valid_setting_holds(tmp_path: Path) -> None:
    path = tmp_path / "sentinel.yaml"
    path.write_text(
        "agent:\n  gate: of\n  vote_every: 4\n  capture_byte: 7\n"
        "launch:\n  on_notice: {USR1: checkpoint, FOO: checkpoint}\n  halted_exit_code: 9\n"
        "incidents:\n  log_files: [a.log, [b], {c: 1}]\n  samples: off\n"
    )
    found = salvage(path)
    assert [one.split(": ", 1)[1].split(",")[0].split(":")[0] for one in found.mistakes] == [
        "agent.gate", "unknown setting agent.capture_byte", "incidents.log_files.1", "incidents.log_files.2",
        "launch.on_notice.FOO.[key]",
    ]  # fmt: skip
    assert [one.split(" line ")[1].split(":")[0] for one in found.mistakes] == ["2", "4", "9", "9", "6"]
    assert "got 7; did you mean capture_bytes?" in found.mistakes[1]
    assert found.held_back == ("agent.gate: off",), "the gate is not to do more than what may have been meant"
    config = found.config
    assert (config.agent.gate, config.agent.vote_every, config.launch.halted_exit_code) == ("off", 4, 9)
    assert (config.launch.on_notice, config.incidents.log_files) == ({"USR1": "checkpoint"}, ("a.log",))
    assert not config.halting.dry_run
    refused = cli("run", "--once", "--config", path)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 5), "the sidecar alone refuses the file, line by line"


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("halting:\n  dry_rum: true\n", ("halting.dry_run: true",)),
        ("halting: on\n", ("halting.dry_run: true", "halting.pin_checkpoints: false")),
        ("halting:\n  pin_checkpoint: false\n", ("halting.dry_run: true", "halting.pin_checkpoints: false")),
        ("http:\n  host: 0.0.0.0\n  read_tokn: s3cret\n", ("http.host: 127.0.0.1",)),
        ("sinks:\n  wandb:\n    enabled: true\n    mode: ofline\n", ("sinks.wandb: off",)),
        ("halt:\n  dry_run: true\n", ("halting.dry_run: true",)),
        ("agent:\n  dry_run: true\n", ("halting.dry_run: true",)),
        ("- 1\n", ("halting.dry_run: true",)),
        ("a: 2026-13-45\n", ("halting.dry_run: true",)),
        ("agent:\n  enabld: false\n", ("agent.enabled: false",)),
        ("incidents:\n  samples: none\n", ("incidents.samples: off",)),
        ("http:\n  port: many\n", ()),
        ("agent: {gate: off, capture: off, local_gradients: off}\nincidents: {samples: off}\n", None),
    ],
)
def test_a_mistake_holds_back_what_it_may_have_meant_and_no_more(
    tmp_path: Path, text: str, held: tuple[str, ...] | None
) -> None:
    path = tmp_path / "sentinel.yaml"
    path.write_text(text)
    found = salvage(path)
    assert bool(found.mistakes) == (held is not None), "a bare off, which YAML takes for false, is no mistake"
    assert found.held_back == (held or ())
    assert "s3cret" not in "".join(found.mistakes)
    assert found.config.halting.dry_run == ("halting.dry_run: true" in found.held_back)
    assert found.config.http.host == "127.0.0.1"
    assert not found.config.sinks.wandb.enabled
    if held is None:
        assert (found.config.agent.gate, found.config.incidents.samples) == ("off", "off")


@pytest.mark.parametrize("kind", ["missing", "read-only", "full"])
def test_without_a_place_for_rings_training_runs_and_that_is_said_first_and_last(tmp_path: Path, config: Path, kind: str) -> None:
    place = tmp_path / "place"
    if kind == "missing":
        (tmp_path / "file").write_text("")
        place = tmp_path / "file" / "sub"
    elif kind == "read-only":
        place = Path("/proc/sys")
    else:
        place.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], check=False, capture_output=True
        )
        if mounted.returncode:
            pytest.skip("needs the right to mount a small tmpfs")
    try:
        done = launch(config, sys.executable, "-c", "print('trained')", GRPO_SENTINEL_DIR=str(place))
    finally:
        if kind == "full":
            subprocess.run(["umount", place], check=True)
    assert (done.returncode, done.stdout.strip()) == (0, "trained")
    first, last = done.stderr.splitlines()
    assert str(place) in first
    assert "Training starts unwatched" in first
    assert ("`grpo-sentinel rings` lists" in first) is (kind == "full")
    assert "nothing was watched" in last


def test_kill_9_of_the_sidecar_leaves_training_alone_and_starts_it_again(started: Started, config: Path) -> None:
    process = started.cli(
        "launch", "--config", config, "--run-id", "run", "--", sys.executable, FAKE, "--steps", 10_000
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    first = until(lambda: read_note(directory_of("run")))
    os.kill(first.pid, signal.SIGKILL)
    second = until(lambda: (note := read_note(directory_of("run"))) and note.pid != first.pid and note)
    assert process.poll() is None
    assert second.pid != first.pid
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    assert "started again, training goes on" in (process.stderr.read() if process.stderr else "")


@pytest.mark.parametrize(("steady", "starts"), [(60.0, 4), (0.0, 6)])
def test_a_sidecar_that_dies_is_started_three_times_in_a_row_and_anew_when_it_had_been_steady(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steady: float, starts: int
) -> None:
    monkeypatch.setattr(sidecars, "_STEADY_SECONDS", steady)
    told: list[str] = []
    monkeypatch.setattr(sidecars, "say", told.append)
    note = tmp_path / "starts"
    sidecar = sidecars.Sidecar(["sh", "-c", f"echo . >> {note}"])
    sidecar.start(os.getpid())

    def done() -> bool:
        sidecar.look()
        return "unwatched" in told[-1] or note.read_text().count(".") >= starts if told else False

    until(done)
    assert note.read_text().count(".") == starts
    sidecar.end()


def test_kill_9_of_the_launcher_leaves_no_sidecar_behind_for_ever(started: Started, config: Path) -> None:
    process = started.cli("launch", "--config", config, "--run-id", "run", "--", sys.executable, FAKE, "--steps", 500)
    assert process.stdout is not None
    process.stdout.readline()
    note = until(lambda: read_note(directory_of("run")))
    process.kill()
    began = time.monotonic()
    until(lambda: read_note(directory_of("run")) is None, seconds=60, what=f"daemon {note.pid} ends")
    assert time.monotonic() - began > 1, "it stays while the trainer lives"


def test_a_script_without_a_trainer_is_told_how_to_attach(config: Path) -> None:
    done = launch(config, sys.executable, "-c", "pass")
    assert done.returncode == 0
    assert "no trainer attached" in done.stderr
