"""W&B: the real client, offline read back from its own file, and against a server that is well, broken, hanging, gone."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest
from bad_sinks import eventually
from sentinel_batches import WALL_NS, batch, finding, record
from stand_in import refusing_url
from wandb_stand_in import Wandb, read

from grpo_sentinel.clock import SystemClock
from grpo_sentinel.config import SinksConfig
from grpo_sentinel.records import Mode, Severity
from grpo_sentinel.sinks import SinkContext
from grpo_sentinel.sinks.wandb_sink import environment, make

pytest.importorskip("wandb")


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    sinks = []

    def make_one(**changes):
        config = SinksConfig.model_validate({"wandb": {"exit_seconds": 30, **changes}})
        context = SinkContext(run_id="", node="node-a", state_dir=tmp_path, clock=SystemClock(), config=config)
        sinks.append(make(context))
        return sinks[-1]

    yield make_one
    for sink in sinks:
        sink.close()


@pytest.fixture
def server(monkeypatch):
    made = Wandb()
    monkeypatch.setenv("WANDB_BASE_URL", made.url)
    yield made
    made.close()


def until(sink, condition, what, timeout=120.0):
    def ticked():
        sink.tick()
        return condition()

    eventually(ticked, what, timeout)


def files(tmp_path):
    return sorted((tmp_path / "wandb").rglob("*.wandb"))


def whole(tmp_path):
    """Everything in all files of the client."""
    parts = [read(path) for path in files(tmp_path)]
    return {key: [item for part in parts for item in part[key]] for key in parts[0]}


def feed(sink, steps=20):
    for step in range(1, steps + 1):
        values = {"policy.loss": step / 2, "reward.func_mean[accuracy]": math.nan}
        sink.write(batch(record(step, values=values), record(step, rank=1, values={"policy.loss": math.inf})))
    sink.write(batch(record(steps, mode=Mode.EVALUATION, values={"policy.loss": 1.0})))


@pytest.mark.torch
def test_an_offline_run_holds_rows_by_step_alerts_and_who_it_belongs_to(made, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "the-trainers-run")  # as a launcher's environment has it
    monkeypatch.setenv("WANDB_RESUME", "must")
    sink = made(mode="offline", project="mine")
    feed(sink)
    mild = finding("mild", finding_id="mild", severity=Severity.NOTE)
    sink.write(batch(findings=(finding(), mild)))
    until(sink, lambda: sink.health()["lines_total"] == 43, "all lines were done")
    sink.close()
    found = whole(tmp_path)
    merged = {}
    for row in found["rows"]:
        merged.setdefault(row["sentinel/step"], {}).update(row)
    assert sorted(merged) == list(range(1, 21))
    assert merged[7]["policy/loss/rank-0"] == 3.5
    assert math.isnan(float(merged[7]["reward/func_mean/accuracy/rank-0"]))
    assert float(merged[7]["policy/loss/rank-1"]) == math.inf
    assert merged[20]["eval/policy/loss/rank-0"] == 1
    assert ("*", "sentinel/step") in found["metrics"] or ("policy/loss/rank-0", "sentinel/step") in found["metrics"]
    (run,) = found["runs"][:1]
    assert (run.project, run.run_group, run.job_type) == ("mine", "the-trainers-run", "sentinel")
    assert run.run_id.startswith("run-1-sentinel-")
    assert {item.key: item.value_json for item in run.config.update}["trainer_run"] == '"the-trainers-run"'
    (alert,) = found["alerts"]
    assert (alert.title, alert.level) == ("nan_gradient (gradient)", "ERROR")
    assert "a gradient is not finite (rank 1, since step 12, step 13)" in alert.text
    assert "look at the loss of rank 1" in alert.text
    assert {"findings/nan_gradient", "findings/mild"} <= set(found["summary"])


def test_nothing_of_the_trainers_own_run_reaches_the_child():
    inherited = {
        "WANDB_RUN_ID": "x", "WANDB_MODE": "disabled", "WANDB_API_KEY": "k", "WANDB_BASE_URL": "u", "GRPO_SENTINEL": "1",
    }  # fmt: skip
    assert environment(inherited) == {
        "WANDB_API_KEY": "k", "WANDB_BASE_URL": "u", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false",
    }  # fmt: skip


def test_the_sidecar_itself_loads_no_client():
    code = (
        "import sys, grpo_sentinel.daemon.daemon\n"
        "from grpo_sentinel.sinks import BUILT_IN, load_factory\n"
        "for name in BUILT_IN: load_factory(name)\n"
        "print([name for name in ('wandb', 'mlflow', 'apprise', 'tensorboard') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.slow
def test_a_server_gets_rows_and_alerts_and_a_second_sidecar_goes_on_with_the_run(made, server, tmp_path):
    sink = made()
    feed(sink, 5)
    sink.write(batch(findings=(finding(),)))
    until(sink, lambda: sink.health()["lines_total"] == 12, "all lines were done")
    assert sink.problem() == ""
    sink.close()
    (run,) = server.runs
    first = len(server.rows[run])
    assert {row["sentinel/step"] for row in server.rows[run]} == {1, 2, 3, 4, 5}
    assert server.runs[run]["groupName"] == "run-1"
    assert server.runs[run]["jobType"] == "sentinel"
    assert [alert["title"] for alert in server.alerts] == ["nan_gradient (gradient)"]
    again = made()
    again.write(batch(record(6)))
    until(again, lambda: again.health()["lines_total"] == 1, "the second took over")
    again.close()
    assert list(server.runs) == [run]
    assert [row["sentinel/step"] for row in server.rows[run][first:]] == [6]
    assert len(server.rows[run]) == first + 1
    assert server.unknown == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["500", "hang", "refused"])
def test_without_a_server_everything_goes_to_disk_and_the_exit_is_bounded(made, server, tmp_path, monkeypatch, mode):
    server.mode = mode
    if mode == "refused":
        monkeypatch.setenv("WANDB_BASE_URL", refusing_url())
    sink = made(init_timeout_seconds=3, finish_timeout_seconds=2, exit_seconds=6)
    began = time.monotonic()
    feed(sink)
    assert time.monotonic() - began < 2
    until(sink, lambda: sink.health()["lines_total"] == 41, "all lines were done")
    assert "wandb sync" in sink.problem()
    pid = sink._process.pid
    began = time.monotonic()
    sink.close()
    assert time.monotonic() - began < 9
    assert not psutil.pid_exists(pid)
    assert {row["sentinel/step"] for row in whole(tmp_path)["rows"]} == set(range(1, 21))
    assert sum(value for name, value in sink.health().items() if name.startswith("lost_total")) == 0


@pytest.mark.slow
def test_a_server_that_goes_away_in_mid_run_costs_nothing_that_is_not_on_disk(made, server, tmp_path):
    sink = made(finish_timeout_seconds=2, exit_seconds=6)
    sink.write(batch(record(1)))
    until(sink, lambda: sink.health()["lines_total"] == 1, "the first line was done")
    server.mode = "hang"
    for step in range(2, 51):
        sink.write(batch(record(step)))
    until(sink, lambda: sink.health()["lines_total"] == 50, "all lines were done")
    began = time.monotonic()
    sink.close()
    took = time.monotonic() - began
    assert took < 9
    assert {row["sentinel/step"] for row in whole(tmp_path)["rows"]} == set(range(1, 51))
    print(f"exit with a hanging server: {took:.1f} s")


@pytest.mark.slow
def test_a_client_that_is_killed_is_started_anew_and_takes_its_core_with_it(made, tmp_path):
    sink = made(mode="offline")
    sink.write(batch(record(1)))
    until(sink, lambda: sink.health()["lines_total"] == 1, "the first line was done")
    family = [sink._process.pid, *(child.pid for child in psutil.Process(sink._process.pid).children(recursive=True))]
    assert len(family) > 1
    os.kill(sink._process.pid, signal.SIGKILL)
    until(sink, lambda: sink._process is None, "its death was noticed")
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in family), "all of it has gone")
    sink.write(batch(replace(record(2), wall_ns=WALL_NS)))
    until(sink, lambda: sink.health()["lines_total"] == 2, "its successor took the next")
    sink.close()
    assert 2 in {row["sentinel/step"] for row in whole(tmp_path)["rows"]}


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 16 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("needs permission to mount a small disk")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.slow
def test_while_the_disk_is_full_lines_wait_and_what_does_not_fit_is_counted(made, small_disk):
    sink = made(mode="offline", directory=str(small_disk), spool_bytes=65_536)
    sink.write(batch(record(1)))
    until(sink, lambda: sink.health()["lines_total"] == 1, "the first line was done")
    (small_disk / "somebody").write_bytes(bytes(10 << 20))
    for step in range(2, 502):
        sink.write(batch(record(step, values={"policy.loss": step / 2, "x" * 500: 1.0})))
    until(sink, lambda: "is full, and W&B runs go to disk" in sink.problem(), "it is said")
    lost = sink.health()["lost_total[reason=spool_full]"]
    assert lost > 0
    (small_disk / "somebody").unlink()
    until(sink, lambda: sink.health()["lines_total"] + lost == 501, "what waited was written")
    assert sink.problem() == ""
    sink.close()
    (path,) = small_disk.rglob("*.wandb")
    assert len(read(path)["rows"]) == 501 - lost
