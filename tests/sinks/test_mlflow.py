"""MLflow: the real client in its child process, against a server that is well, broken, hanging, gone, and the real one."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from bad_sinks import eventually
from incident_bundles import Bundles
from mlflow_stand_in import Mlflow
from sentinel_batches import RUN, WALL_NS, batch, finding, record
from stand_in import refusing_url

from grpo_sentinel.clock import SystemClock
from grpo_sentinel.config import MlflowConfig, SinksConfig
from grpo_sentinel.sinks import SinkContext
from grpo_sentinel.sinks.mlflow_sink import environment, make

client = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="needs the client: pip install '.[mlflow]'"
)


@pytest.fixture
def server():
    made = Mlflow()
    yield made
    made.close()


@pytest.fixture
def made(tmp_path, server, monkeypatch):
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    sinks = []

    def make_one(**changes):
        given = {"tracking_uri": server.url, "exit_seconds": 30, "timeout_seconds": 1, "retries": 0, **changes}
        config = SinksConfig.model_validate({"mlflow": given})
        context = SinkContext(run_id="", node="node-a", state_dir=tmp_path, clock=SystemClock(), config=config)
        sinks.append(make(context))
        return sinks[-1]

    yield make_one
    for sink in sinks:
        sink.close()


def until(sink, condition, what, timeout=120.0):
    def ticked():
        sink.tick()
        return condition()

    eventually(ticked, what, timeout)


def done(sink, lines):
    until(sink, lambda: sink.health()["lines_total"] == lines, f"{lines} lines were done")


def lost(sink):
    return {name: value for name, value in sink.health().items() if name.startswith("lost_total") and value}


@client
def test_metrics_go_by_rank_and_step_in_bounded_batches_with_nan_and_infinity_as_strings(made, server):
    sink = made()
    odd = {"policy.loss": math.nan, "reward.mean": -math.inf, "reward.func_mean[a{b}=../c]": 2.0, "x" * 400: 1.0}
    sink.write(batch(record(1, values=odd), record(1, rank=1)))
    for step in range(2, 8):
        sink.write(batch(record(step, values={f"gradient.group_norm[layer{i}]": float(i) for i in range(400)})))
    sink.write(batch(findings=(finding(),)))
    done(sink, 9)
    sink.close()
    (run,) = server.runs.values()
    assert (run["status"], run["name"]) == ("FINISHED", "sentinel run-1")
    points = {(key, step): (stamp, value) for key, step, stamp, value in run["metrics"]}
    stamp = (WALL_NS + 10**9) // 10**6
    assert points["policy/loss/rank-0", 1] == (stamp, "NaN")
    assert points["reward/mean/rank-0", 1] == (stamp, "-Infinity")
    assert points["policy/loss/rank-1", 1] == (stamp, 1.0)
    assert points["reward/func_mean/a_b__../c/rank-0", 1][1] == 2.0
    assert len(points) == 5 + 6 * 400
    assert max(server.batches) <= 1000
    assert max(len(key) for key, _ in points) <= 250
    assert run["tags"]["grpo_sentinel.finding.nan_gradient"] == (
        "firing, critical, since step 12, rank 1: a gradient is not finite"
    )
    assert lost(sink) == {}


@pytest.mark.slow
@client
def test_a_second_sidecar_goes_on_with_the_run_of_the_first(made, server):
    for step in (1, 2):
        sink = made()
        sink.write(batch(record(step)))
        done(sink, 1)
        sink.close()
    (run,) = server.runs.values()
    assert [step for _, step, _, _ in run["metrics"]] == [1, 2]
    assert run["tags"]["grpo_sentinel.run_id"] == RUN


@pytest.mark.slow
@client
def test_it_may_log_into_the_trainers_own_run_and_leaves_its_state_alone(made, server):
    sink = made(run_id="trainer")
    sink.write(batch(record(1)))
    done(sink, 1)
    sink.close()
    assert list(server.runs) == ["trainer"]
    assert server.runs["trainer"]["status"] == "RUNNING"


@pytest.mark.slow
@client
def test_it_is_nested_under_the_trainers_run_when_the_environment_names_it(made, server, monkeypatch):
    monkeypatch.setenv("MLFLOW_RUN_ID", "trainer")
    sink = made()
    sink.write(batch(record(1)))
    done(sink, 1)
    (run,) = server.runs.values()
    assert run["tags"]["mlflow.parentRunId"] == "trainer"


@pytest.mark.slow
@client
@pytest.mark.parametrize("mode", [500, 429, "hang"])
def test_a_server_that_comes_back_gets_everything_once(made, server, mode):
    sink = made()
    sink.write(batch(record(1)))
    done(sink, 1)
    server.mode = mode
    for step in range(2, 12):
        sink.write(batch(record(step)))
    until(sink, lambda: sink.problem(), "it said so")
    assert sink.problem().startswith("MLflow: ")
    server.mode = "ok"
    done(sink, 11)
    assert sink.problem() == ""
    (run,) = server.runs.values()
    assert [step for _, step, _, _ in run["metrics"]] == list(range(1, 12))
    assert lost(sink) == {}


@pytest.mark.slow
@client
@pytest.mark.parametrize("mode", [500, "hang", "refused"])
def test_without_a_server_the_exit_is_bounded_and_what_was_lost_is_counted(made, server, mode):
    server.mode = mode if mode != "refused" else "ok"
    sink = made(exit_seconds=2, **({"tracking_uri": refusing_url()} if mode == "refused" else {}))
    began = time.monotonic()
    for step in range(1, 101):
        sink.write(batch(record(step)))
    assert time.monotonic() - began < 2
    until(sink, lambda: sink.problem(), "it said so")
    pid = sink._process.pid
    began = time.monotonic()
    sink.close()
    assert time.monotonic() - began < 5
    assert not psutil.pid_exists(pid)
    assert lost(sink) == {"lost_total[reason=closing]": 100}


@client
def test_a_batch_that_the_server_refuses_is_counted_and_the_next_goes_on(made, server):
    server.refuse_key = "bad"
    sink = made()
    sink.write(batch(record(1, values={"bad": 1.0, "good": 2.0})))
    done(sink, 1)
    assert "refused" in sink.problem()
    sink.write(batch(record(2)))
    done(sink, 2)
    assert sink.problem() == ""
    assert lost(sink) == {"lost_total[reason=rejected]": 2}


@client
def test_keys_are_ones_that_mlflow_takes():
    from grpo_sentinel.sinks.mlflow_tracker import key

    assert key("reward/func/a{b}=c\u00e9\n/rank-0") == "reward/func/a_b__c__/rank-0"
    assert key("//a/../b/./ /c") == "a/_/b/_/c"
    assert len(key("x" * 1000)) == 250


def test_every_call_of_the_client_is_bounded_by_its_environment():
    given = environment({"MLFLOW_RUN_ID": "x", "MLFLOW_TRACKING_TOKEN": "t"}, MlflowConfig(timeout_seconds=3))
    assert given["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "3"
    assert given["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "1"
    assert given["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert given["MLFLOW_TRACKING_TOKEN"] == "t"
    assert "MLFLOW_RUN_ID" not in given


# ---- the real server

BIN = [os.environ.get("MLFLOW_SERVER_BIN", ""), str(Path(sys.executable).parent)]
SERVER = shutil.which("mlflow", path=os.pathsep.join(BIN)) if importlib.util.find_spec("sqlalchemy") or BIN[0] else None


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """`mlflow server` over SQLite; started once, as that takes most of a minute."""
    place = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    process = subprocess.Popen(
        [SERVER, "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
         "--backend-store-uri", f"sqlite:///{place}/db.sqlite", "--artifacts-destination", str(place / "artifacts")],
        env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"

    def ready():
        assert process.poll() is None
        try:
            return urllib.request.urlopen(url + "/health", timeout=2).status == 200
        except OSError:
            return False

    try:
        eventually(ready, "the server is ready", 200)
        yield url
    finally:
        os.killpg(process.pid, 15)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait(20)


@pytest.mark.slow
@client
@pytest.mark.skipif(SERVER is None, reason="needs `mlflow server`: pip install mlflow, or MLFLOW_SERVER_BIN=<its bin>")
def test_the_real_server_holds_what_was_sent_and_nothing_twice(made, real, monkeypatch, tmp_path):
    sink = made(tracking_uri=real, timeout_seconds=20)
    for step in range(1, 31):
        values = {f"gradient.group_norm[layer{i}]": float(i) for i in range(100)}
        sink.write(batch(record(step, values={**values, "policy.loss": math.nan if step == 7 else step / 2})))
    sink.write(batch(findings=(finding(),)))
    done(sink, 31)
    sink.close()
    again = made(tracking_uri=real, timeout_seconds=20)
    again.write(batch(record(30, values={"policy.loss": 15.0}), record(31, values={"reward.mean": math.inf})))
    done(again, 2)
    bundles = Bundles(tmp_path)
    name = bundles.open()
    again.close()  # the incident is still open: it goes as it stands
    assert (sink.problem(), again.problem(), lost(sink), lost(again)) == ("", "", {}, {})
    from mlflow.tracking import MlflowClient

    reader = MlflowClient(tracking_uri=real)
    experiment = reader.get_experiment_by_name("grpo-sentinel")
    (run,) = reader.search_runs([experiment.experiment_id])
    history = reader.get_metric_history(run.info.run_id, "policy/loss/rank-0")
    assert sorted(point.step for point in history) == list(range(1, 31))
    assert [point.step for point in history if math.isnan(point.value)] == [7]
    assert len(reader.get_metric_history(run.info.run_id, "gradient/group_norm/layer99/rank-0")) == 30
    assert reader.get_metric_history(run.info.run_id, "reward/mean/rank-0")[0].value > 1e308
    assert run.data.tags["grpo_sentinel.finding.nan_gradient"].startswith("firing, critical")
    place = Path(reader.download_artifacts(run.info.run_id, "incidents", str(tmp_path)))
    assert json.loads(next(place.rglob("manifest.json")).read_text())["incident"]["incident_id"] in name
    assert run.info.status == "FINISHED"


@pytest.mark.slow
@client
@pytest.mark.skipif(SERVER is None, reason="needs `mlflow server`: pip install mlflow, or MLFLOW_SERVER_BIN=<its bin>")
def test_the_real_server_shows_ours_under_the_trainers_run_or_in_it(made, real, monkeypatch):
    from mlflow.tracking import MlflowClient

    reader = MlflowClient(tracking_uri=real)
    experiment = reader.create_experiment("the trainer's")
    trainer = reader.create_run(experiment)
    reader.log_metric(trainer.info.run_id, "loss", 0.5, step=1)
    monkeypatch.setenv("MLFLOW_RUN_ID", trainer.info.run_id)
    nested = made(tracking_uri=real, timeout_seconds=20, experiment="the trainer's")
    nested.write(batch(record(1, values={"policy.loss": 0.25})))
    done(nested, 1)
    nested.close()
    monkeypatch.delenv("MLFLOW_RUN_ID")
    inside = made(tracking_uri=real, timeout_seconds=20, run_id=trainer.info.run_id)
    inside.write(batch(record(2, values={"policy.loss": math.inf}), findings=(finding(),)))
    done(inside, 2)
    inside.close()
    (child,) = reader.search_runs([experiment], f"tags.mlflow.parentRunId = '{trainer.info.run_id}'")
    assert child.data.metrics == {"policy/loss/rank-0": 0.25}
    assert child.info.status == "FINISHED"
    own = reader.get_run(trainer.info.run_id)
    assert own.info.status == "RUNNING", "the end of the sidecar is not the end of the trainer"
    assert own.data.metrics["loss"] == 0.5
    assert own.data.metrics["policy/loss/rank-0"] > 1e308
    assert own.data.tags["grpo_sentinel.finding.nan_gradient"].startswith("firing, critical")
