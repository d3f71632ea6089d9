"""The sidecar as a process beside real rings: what it must not lose, must not do, and must survive."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from run_support import HERE, Started, cli, directory_of, last_step, step, until

from grpo_sentinel.daemon.claim import is_claimed, read_note
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.history import HistoryReader
from grpo_sentinel.protocol import ControlReader, Geometry, RankWriter, new_identity
from grpo_sentinel.records import Action, HaltState

RUN = "watched"


def config(tmp_path: Path, **sections: object) -> Path:
    """Write a configuration with a free port and quick commits, changed by `sections`."""
    body: dict[str, object] = {
        "http": {"port": 0},
        "sinks": {"history": {"flush_seconds": 0.1}},
        "collectors": {"nvml": {"enabled": False}},
        **sections,
    }
    path = tmp_path / "sentinel.yaml"
    path.write_text(json.dumps(body))  # JSON is YAML
    return path


def daemon(started: Started, tmp_path: Path, *arguments: object, **sections: object) -> subprocess.Popen[str]:
    log = (tmp_path / "daemon.log").open("a")
    process = started.python(
        "-m", "grpo_sentinel.cli", "run", "--config", config(tmp_path, **sections), *arguments, stderr=log
    )
    log.close()
    return process


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "daemon.log").read_text()


def history(tmp_path: Path) -> HistoryReader:
    return HistoryReader(tmp_path / "state" / "grpo-sentinel" / "history.sqlite")


def stored_steps(tmp_path: Path, run: str = RUN) -> list[int]:
    try:
        with history(tmp_path) as reader:
            return [record.step for record in reader.records(run, rank=0) if "policy.loss" in record.values]
    except SentinelError:
        return []


def end(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(20)


def test_a_rule_becomes_a_request_a_checkpoint_and_a_clean_halt(started: Started, tmp_path: Path) -> None:
    process = daemon(started, tmp_path)
    trainer = started.trainer(RUN, "--stdin", "--output-dir", tmp_path / "out", "--save-steps", 2, "--bad-from", 6)
    until(lambda: read_note(directory_of(RUN)), what="the daemon claims the run")
    for _ in range(8):
        step(trainer)
    until(lambda: (directory_of(RUN) / "control").exists(), what="the third non-finite gradient makes a request")
    step(trainer)
    assert trainer.wait(10) == 0
    until(lambda: [one for one in requests(tmp_path) if one.state is HaltState.DONE], what="the halt is recorded")
    done = requests(tmp_path)[-1]
    assert (done.action, done.step) == (Action.CHECKPOINT_AND_HALT, 9)
    assert done.detail == str(tmp_path / "out" / "checkpoint-9")
    pinned = until(lambda: requests(tmp_path)[-1].pinned_checkpoint, what="a checkpoint is pinned")
    assert Path(pinned).name == "checkpoint-4", "the newest from before the onset at step 6"
    assert end(process) == 0
    assert not is_claimed(directory_of(RUN))


def requests(tmp_path: Path) -> list[object]:
    try:
        with history(tmp_path) as reader:
            return list(reader.requests(RUN))
    except SentinelError:
        return []


def test_kill_9_of_the_daemon_and_a_restart_lose_no_record_in_the_ring(started: Started, tmp_path: Path) -> None:
    first = daemon(started, tmp_path)
    trainer = started.trainer(RUN, "--stdin", "--slots", 256)
    for _ in range(20):
        step(trainer)
    until(lambda: len(stored_steps(tmp_path)) >= 5, what="some steps are committed")
    first.kill()
    first.wait(10)
    assert not is_claimed(directory_of(RUN))
    assert read_note(directory_of(RUN)) is None, "the note of a dead daemon counts for nothing"
    for _ in range(60):
        step(trainer)
    second = daemon(started, tmp_path)
    until(lambda: len(stored_steps(tmp_path)) >= 80, what="all steps are committed")
    assert stored_steps(tmp_path) == list(range(1, 81)), "each once, none missing"
    assert trainer.poll() is None
    assert end(second) == 0


def test_a_restarted_daemon_goes_on_with_the_request_and_asks_no_second_time(started: Started, tmp_path: Path) -> None:
    first = daemon(started, tmp_path)
    trainer = started.trainer(RUN, "--stdin", "--bad-from", 3, "--deaf")
    until(lambda: read_note(directory_of(RUN)))
    for _ in range(8):
        step(trainer)
    until(lambda: (directory_of(RUN) / "control").exists())
    until(lambda: requests(tmp_path))
    first.kill()
    first.wait(10)
    second = daemon(started, tmp_path)
    until(lambda: read_note(directory_of(RUN)))
    for _ in range(5):
        step(trainer)
    until(lambda: len(stored_steps(tmp_path)) >= 13)
    reader = ControlReader(directory_of(RUN))
    word = reader.read()
    reader.close()
    assert word is not None
    assert word.request_id == 1
    assert end(second) == 0


def test_a_killed_rank_is_reported_within_two_seconds_with_its_last_steps(started: Started, tmp_path: Path) -> None:
    daemon(started, tmp_path)
    trainer = started.trainer(RUN, "--stdin")
    for _ in range(5):
        step(trainer)
    until(lambda: len(stored_steps(tmp_path)) == 5)
    trainer.kill()
    killed = time.monotonic()
    trainer.wait(10)

    def told() -> list[object]:
        with history(tmp_path) as reader:
            return [one for one in reader.findings(RUN) if one.severity > 0 and 0 in one.ranks]

    until(told, seconds=2.0 - (time.monotonic() - killed), what="a finding names the dead rank")
    assert stored_steps(tmp_path) == [1, 2, 3, 4, 5]


def test_several_runs_are_watched_by_one_daemon(started: Started, tmp_path: Path) -> None:
    process = daemon(started, tmp_path)
    trainers = {run: started.trainer(run, "--stdin") for run in ("alpha", "beta")}
    for trainer in trainers.values():
        step(trainer)
    for run in trainers:
        until(lambda run=run: stored_steps(tmp_path, run) == [1], what=f"run {run} is recorded")  # type: ignore[misc]
        note = read_note(directory_of(run))
        assert note is not None
        assert note.pid == process.pid
        assert (directory_of(run) / "daemon.json").stat().st_mode & 0o777 == 0o600


def test_of_two_daemons_one_watches_and_the_other_says_so(started: Started, tmp_path: Path) -> None:
    first = daemon(started, tmp_path)
    trainer = started.trainer(RUN, "--stdin")
    until(lambda: read_note(directory_of(RUN)))
    second = daemon(started, tmp_path)
    until(lambda: "watched by another daemon" in log_of(tmp_path))
    assert read_note(directory_of(RUN)).pid == first.pid  # type: ignore[union-attr]
    end(first)
    until(lambda: (note := read_note(directory_of(RUN))) and note.pid == second.pid, what="the second takes over")
    step(trainer)
    until(lambda: stored_steps(tmp_path) == [1])


def test_dry_run_says_what_it_would_do_and_lets_training_go_on(started: Started, tmp_path: Path) -> None:
    daemon(started, tmp_path, halting={"dry_run": True})
    trainer = started.trainer(RUN, "--stdin", "--bad-from", 3)
    until(lambda: read_note(directory_of(RUN)))
    for _ in range(8):
        step(trainer)
    until(lambda: "dry run: would have halted at step" in log_of(tmp_path))
    assert not (directory_of(RUN) / "control").exists()
    assert trainer.poll() is None


def test_a_rank_that_never_answers_leads_to_the_launcher_and_to_it_only(started: Started, tmp_path: Path) -> None:
    quick = {"acknowledge_seconds": 0.5, "terminate_seconds": 0.5}
    daemon(started, tmp_path, halting=quick)
    launcher = started.python(HERE / "fake_launcher.py", 2, "--interval", 0.05, env={"GRPO_SENTINEL_RUN_ID": RUN})
    assert launcher.stdout is not None
    ranks = [int(pid) for pid in launcher.stdout.readline().split()]
    started.also(ranks)
    until(lambda: read_note(directory_of(RUN)))
    until(lambda: last_step(RUN) >= 2)
    for pid in ranks:
        os.kill(pid, signal.SIGSTOP)
    assert cli("halt", RUN).returncode == 0
    assert launcher.stdout.readline().strip() == "launcher got SIGTERM"
    assert launcher.wait(10) == 1
    log = until(lambda: "SIGTERM sent to the launcher" in log_of(tmp_path) and log_of(tmp_path))
    assert "stacks in" in log
    until(lambda: list((tmp_path / "state").rglob("stacks-*.txt")))


def test_a_taken_port_costs_a_line_and_another_port_is_used(started: Started, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        daemon(started, tmp_path, http={"port": port})
        started.trainer(RUN, "--stdin")
        note = until(lambda: read_note(directory_of(RUN)))
        assert note.url
        assert not note.url.endswith(f":{port}")
        assert str(port) in log_of(tmp_path)


def test_an_unwritable_history_costs_a_line_and_the_rest_works(started: Started, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    daemon(started, tmp_path, state_dir=str(blocked))
    trainer = started.trainer(RUN, "--stdin", "--bad-from", 3)
    until(lambda: read_note(directory_of(RUN)))
    for _ in range(6):
        step(trainer)
    until(lambda: (directory_of(RUN) / "control").exists(), what="the halt is asked all the same")
    assert "history" in log_of(tmp_path)
    assert "Traceback" not in log_of(tmp_path)


def test_a_bad_user_rule_is_named_and_the_others_judge(started: Started, tmp_path: Path) -> None:
    rules = tmp_path / "mine.yaml"
    rules.write_text("rules:\n  - name: Bad Name\n")
    daemon(started, tmp_path, rules={"files": [str(rules)]})
    trainer = started.trainer(RUN, "--stdin", "--bad-from", 3)
    until(lambda: read_note(directory_of(RUN)))
    for _ in range(6):
        step(trainer)
    until(lambda: (directory_of(RUN) / "control").exists())
    assert f"{rules} line 2" in log_of(tmp_path)


def test_a_segment_of_another_version_is_named_and_the_others_are_watched(started: Started, tmp_path: Path) -> None:
    daemon(started, tmp_path)
    trainer = started.trainer(RUN, "--stdin")
    (directory_of(RUN) / "rank-00001.ring").write_bytes(b"GRPOSNTL" + (99).to_bytes(4, "little") + bytes(8192))
    step(trainer)
    until(lambda: "rank-00001.ring" in log_of(tmp_path))
    until(lambda: stored_steps(tmp_path) == [1])
    assert "Traceback" not in log_of(tmp_path)


def test_the_daemon_has_no_torch_in_it(started: Started, tmp_path: Path) -> None:
    started.trainer(RUN, "--stdin")
    code = (
        "import sys, threading\n"
        "from grpo_sentinel.config import load_config\n"
        "from grpo_sentinel.daemon.daemon import Daemon\n"
        "stop = threading.Event()\n"
        "threading.Timer(1.5, stop.set).start()\n"
        "Daemon(load_config(sys.argv[1])).run(stop)\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in"
        " ('torch', 'numpy', 'transformers', 'trl', 'safetensors', 'wandb', 'mlflow')))\n"
    )
    process = started.python("-c", code, config(tmp_path))
    out, errors = process.communicate(timeout=30)
    assert out.strip() == "[]", errors
    assert stored_steps(tmp_path) == []


def test_it_ends_on_sigint_and_sigterm_within_a_few_seconds(started: Started, tmp_path: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        process = daemon(started, tmp_path)
        started.trainer(f"{RUN}-{number.name}", "--stdin")
        until(lambda number=number: read_note(directory_of(f"{RUN}-{number.name}")))  # type: ignore[misc]
        process.send_signal(number)
        assert process.wait(10) == 0


def test_a_daemon_whose_launcher_is_gone_ends_with_its_runs(started: Started, tmp_path: Path) -> None:
    command = started.python("-c", "input()")
    process = daemon(started, tmp_path, "--run-id", RUN, "--launcher-pid", command.pid, launch={"linger_seconds": 0})
    trainer = started.trainer(RUN, "--stdin")
    until(lambda: read_note(directory_of(RUN)))
    command.kill()
    trainer.kill()
    assert process.wait(60) == 0


@pytest.mark.parametrize("bad", ["slots", "poll_interval_seconds"])
def test_run_with_a_bad_configuration_exits_2_with_one_sentence(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(f"{bad}: -1\n")
    done = cli("run", "--config", path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert bad in done.stderr
    assert "bad.yaml line 1" in done.stderr


def test_once_looks_writes_the_history_and_ends(started: Started, tmp_path: Path) -> None:
    trainer = started.trainer(RUN, "--stdin")
    for _ in range(3):
        step(trainer)
    done = cli("run", "--once", "--json", "--config", config(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"][0]["ranks"]["0"]["last_step"] == 3
    assert stored_steps(tmp_path) == [1, 2, 3]


def test_the_request_is_there_almost_at_once(started: Started, tmp_path: Path) -> None:
    """From the commit of the record that breaks the rule to the control file, over runs of their own."""
    daemon(started, tmp_path, halting={"nonfinite_updates": 1})
    bad = {"gradient.nonfinite_tensors": 1.0, "gradient.norm_preclip": float("nan"), "optimizer.step_skipped": 1.0}
    delays = []
    for number in range(20):
        run = f"quick-{number}"
        writer = RankWriter(directory_of(run), new_identity(0, 0, 1, run), Geometry(slots=64))
        until(lambda run=run: read_note(directory_of(run)))  # type: ignore[misc]
        for at in range(1, 4):
            writer.push({"gradient.nonfinite_tensors": 0.0, "gradient.norm_preclip": 1.0}, step=at)
            time.sleep(0.04)
        path = directory_of(run) / "control"
        writer.push(bad, step=4)
        pushed = time.monotonic()
        while not path.exists():
            assert time.monotonic() - pushed < 10
            time.sleep(0.0005)
        delays.append(time.monotonic() - pushed)
        writer.close()
    # the promise of 50 ms at p99 is kept by `make bench`; here other tests may have the processors
    assert sorted(delays)[len(delays) // 2] < 0.15


def test_page_metrics_and_health_answer_and_only_the_token_may_act(started: Started, tmp_path: Path) -> None:
    daemon(started, tmp_path)
    trainer = started.trainer(RUN, "--stdin")
    step(trainer)
    note = until(lambda: read_note(directory_of(RUN)))

    def get(path: str, token: str = "") -> tuple[int, str]:
        request = urllib.request.Request(note.url + path, headers={"Authorization": f"Bearer {token}"} if token else {})
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    until(lambda: "grpo_sentinel_policy_loss" in get("/metrics")[1])
    assert get("/healthz")[0] == 200
    read = (tmp_path / "state" / "grpo-sentinel" / "read-token").read_text().strip()
    assert get(f"/api/v1/status?run={RUN}")[0] == 401
    assert json.loads(get(f"/api/v1/status?run={RUN}", read)[1])["ranks"]["0"]["last_step"] == 1
    unasked = urllib.request.Request(note.url + "/api/v1/requests", data=b'{"action": "halt-now"}', method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(unasked, timeout=5)
    assert refused.value.code in (401, 403)
    assert not (directory_of(RUN) / "control").exists()
