"""Incident bundles reach the trackers as artifacts: once, after a restart too, and the open ones at the very end."""

from __future__ import annotations

import importlib.util
import json
import os

import pytest
from bad_sinks import eventually
from incident_bundles import Bundles
from mlflow_stand_in import Mlflow
from sentinel_batches import batch, record
from wandb_stand_in import records

from grpo_sentinel.clock import ManualClock, SystemClock
from grpo_sentinel.config import SinksConfig
from grpo_sentinel.sinks import SinkContext, child_process, mlflow_sink, wandb_sink
from grpo_sentinel.sinks.child_incidents import IncidentWatch


def watch(tmp_path, since_ns=0, node="node-a"):
    return IncidentWatch(tmp_path, "mlflow", node, since_ns)


def take(one, *, also_open=False, confirm=True):
    """Give the incidents that are due; the tracker takes them."""
    found = list(one.lines(also_open=also_open))
    for number, (key, _) in enumerate(found, 1):
        one.sent(key, number)
    if confirm:
        one.confirmed(len(found))
    return [os.path.basename(line["path"]) for _, line in found]


def test_a_bundle_is_due_once_it_is_closed_and_never_again(tmp_path):
    bundles = Bundles(tmp_path)
    name = bundles.open()
    one = watch(tmp_path)
    assert take(one) == []
    bundles.close()
    assert take(one) == [name]
    assert take(one) == []
    assert take(watch(tmp_path)) == []  # the next sidecar remembers


def test_one_that_was_not_confirmed_is_sent_by_the_next_sidecar(tmp_path):
    bundles = Bundles(tmp_path)
    name = bundles.open()
    bundles.close()
    one = watch(tmp_path)
    assert take(one, confirm=False) == [name]
    assert take(one, confirm=False) == []  # on its way
    assert take(watch(tmp_path)) == [name]


def test_one_that_was_refused_is_not_tried_again_by_this_sidecar_but_by_the_next(tmp_path):
    bundles = Bundles(tmp_path)
    name = bundles.open()
    bundles.close()
    one = watch(tmp_path)
    assert take(one, confirm=False) == [name]
    one.failed(1)
    one.confirmed(1)
    assert take(one) == []
    assert take(watch(tmp_path)) == [name]


def test_at_the_end_an_open_one_goes_as_it_stands_and_later_in_full(tmp_path):
    bundles = Bundles(tmp_path)
    name = bundles.open()
    assert take(watch(tmp_path), also_open=True) == [name]
    bundles.close()
    assert take(watch(tmp_path)) == [name]


def test_a_packed_bundle_is_due_as_well_and_other_files_are_not(tmp_path):
    bundles = Bundles(tmp_path, archive=True)
    name = bundles.open()
    bundles.close()
    (tmp_path / "incidents" / "notes.tar.gz").write_bytes(b"no archive")
    (tmp_path / "incidents" / "folder").mkdir()
    assert take(watch(tmp_path)) == [f"{name}.tar.gz"]


def test_what_is_another_nodes_or_from_before_is_left_alone(tmp_path):
    bundles = Bundles(tmp_path)
    bundles.open()
    bundles.close()
    assert take(watch(tmp_path, node="node-b")) == []
    (tmp_path / "sinks" / "mlflow-incidents.txt").unlink()
    assert take(watch(tmp_path, since_ns=SystemClock().wall_ns())) == []


def test_a_state_directory_that_cannot_be_written_costs_no_more_than_a_second_copy(tmp_path):
    bundles = Bundles(tmp_path)
    name = bundles.open()
    bundles.close()
    (tmp_path / "sinks").write_text("a file in the way")
    assert take(watch(tmp_path)) == [name]
    assert take(watch(tmp_path)) == [name]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(child_process, "LOOK_SECONDS", 0.05)


def context(tmp_path, **config):
    made = SinksConfig.model_validate(config)
    return SinkContext(run_id="", node="node-a", state_dir=tmp_path, clock=SystemClock(), config=made)


def feed(sink, lines):
    def ticked():
        sink.tick()
        return sink.health()["lines_total"] >= lines

    eventually(ticked, f"{lines} lines were done", 120)


@pytest.mark.slow
def test_mlflow_gets_every_file_of_a_bundle_again_when_the_server_comes_back(tmp_path, quick, monkeypatch):
    if importlib.util.find_spec("mlflow") is None:
        pytest.skip("needs the client: pip install '.[mlflow]'")
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    server = Mlflow()
    sink = mlflow_sink.make(context(tmp_path, mlflow={"tracking_uri": server.url, "timeout_seconds": 2, "retries": 0,
                                                      "exit_seconds": 20}))  # fmt: skip
    try:
        sink.write(batch(record(1)))
        feed(sink, 1)
        server.mode = 500
        bundles = Bundles(tmp_path)
        name = bundles.open()
        bundles.close()
        eventually(lambda: sink.tick() or sink.problem(), "the trouble was said", 60)
        server.mode = "ok"
        feed(sink, 2)
        sink.close()
        on_disk = {str(path.relative_to(tmp_path / "incidents" / name)): path.read_bytes()
                   for path in (tmp_path / "incidents" / name).rglob("*") if path.is_file()}  # fmt: skip
        assert len(server.runs) == 1
        got = {path.split("/", 5)[5]: data for path, data in server.artifacts.items()}
        assert {path.split("/")[3] for path in server.artifacts} == {"incidents"}
        assert got == on_disk
        assert json.loads(got["manifest.json"])["incident"]["state"] == "closed"
        assert sum(value for key, value in sink.health().items() if key.startswith("lost")) == 0
    finally:
        sink.close()
        server.close()


@pytest.mark.slow
def test_wandb_writes_an_artifact_and_what_was_asked_of_the_run(tmp_path, quick, monkeypatch):
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2 as proto

    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    sink = wandb_sink.make(context(tmp_path, wandb={"mode": "offline", "exit_seconds": 30}))
    try:
        sink.write(batch(record(1)))
        feed(sink, 1)
        bundles = Bundles(tmp_path)
        bundles.open()
        sink.close()  # the run ends while the incident is open: it goes as it stands
        (path,) = (tmp_path / "wandb").rglob("*.wandb")
        found = [proto.Record.FromString(data) for data in records(path.read_bytes())]
        artifacts = [one.artifact for one in found if one.WhichOneof("record_type") == "artifact"]
        artifacts += [one.request.log_artifact.artifact for one in found if one.request.HasField("log_artifact")]
        (artifact,) = artifacts
        assert artifact.type == "incident"
        assert artifact.name.startswith("incident-")
        assert "manifest.json" in {entry.path for entry in artifact.manifest.contents}
        assert sum(value for key, value in sink.health().items() if key.startswith("lost")) == 0
    finally:
        sink.close()


def test_bundles_are_looked_for_now_and_then_only(tmp_path):
    clock = ManualClock()
    made = SinkContext(run_id="", node="node-a", state_dir=tmp_path, clock=clock, config=SinksConfig())
    sink = wandb_sink.make(made)
    bundles = Bundles(tmp_path)
    bundles.open()
    bundles.close()
    (tmp_path / "sinks" / "wandb-incidents.txt").write_text("0\n")
    sink._incidents = IncidentWatch(tmp_path, "wandb", "node-a", 0)
    sink._add_incidents()
    assert len(sink._spool) == 0
    clock.advance(child_process.LOOK_SECONDS)
    sink._add_incidents()
    assert len(sink._spool) == 1


@pytest.mark.slow
def test_a_wandb_server_is_given_the_artifact_and_it_is_remembered(tmp_path, quick, monkeypatch):
    pytest.importorskip("wandb")
    from wandb_stand_in import Wandb

    server = Wandb()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    sink = wandb_sink.make(context(tmp_path, wandb={"exit_seconds": 10}))
    try:
        sink.write(batch(record(1)))
        bundles = Bundles(tmp_path)
        bundles.open()
        bundles.close()
        feed(sink, 2)
        eventually(lambda: server.artifacts, "the artifact reached the server", 60)
        assert server.artifacts[0]["input"]["artifactTypeName"] == "incident"
        sink.close()
        (recorded,) = (tmp_path / "sinks").glob("wandb-incidents.txt")
        assert len(recorded.read_text().splitlines()) == 2  # when it began, and the one that was taken
    finally:
        sink.close()
        server.close()


@pytest.mark.slow
def test_a_wandb_server_that_hangs_leaves_the_artifact_to_the_next_sidecar(tmp_path, quick, monkeypatch):
    pytest.importorskip("wandb")
    from wandb_stand_in import Wandb

    server = Wandb()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    sink = wandb_sink.make(context(tmp_path, wandb={"exit_seconds": 6}))
    try:
        sink.write(batch(record(1)))
        feed(sink, 1)
        server.mode = "hang"
        bundles = Bundles(tmp_path)
        bundles.open()
        bundles.close()
        sink.write(batch(record(2)))
        feed(sink, 3)
        assert "the next sidecar tries again" in sink.problem()
        assert sink.health()["lost_total[reason=rejected]"] == 1
        sink.close()
        assert len((tmp_path / "sinks" / "wandb-incidents.txt").read_text().splitlines()) == 1
    finally:
        sink.close()
        server.close()
