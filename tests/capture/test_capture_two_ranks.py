"""Every kind of evidence asked for on the command line, of two real ranks: at one step, in one bundle, training goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "halting"))

from run_support import Started, cli, directory_of, until

from grpo_sentinel.agent.capture.files import read
from grpo_sentinel.incidents.bundle import Bundle
from grpo_sentinel.incidents.places import bundles
from grpo_sentinel.protocol import list_segments

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture
def started() -> Iterator[Started]:
    with Started() as processes:
        yield processes


def asked(config: Path, *arguments: object) -> dict[str, object]:
    done = cli(*arguments, "two", "--config", config, "--json", "--wait", 60, "--reason", "a test", timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_all_kinds_of_evidence_are_taken_by_both_ranks_and_bundled(started: Started, tmp_path: Path) -> None:
    config = tmp_path / "sentinel.yaml"
    config.write_text(
        json.dumps({"http": {"port": 0}, "launch": {"linger_seconds": 3}, "collectors": {"nvml": {"enabled": False}}})
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = Path(__file__).with_name("two_ranks_loop.py")
    launch = started.cli("launch", "--config", config, "--run-id", "two", "--", *torchrun, script, tmp_path / "out")
    until(lambda: len(list_segments(directory_of("two"))) == 2, 60.0, what="both ranks")
    until(lambda: (directory_of("two") / "daemon.json").exists(), 30.0, what="the sidecar")

    captured = asked(config, "capture")
    assert captured["state"] == "done"
    for rank in (0, 1):
        (path,) = (tmp_path / "state" / "grpo-sentinel" / "spool" / "two" / f"rank-0000{rank}").glob("*.safetensors")
        tensors, facts = read(path)
        assert facts["step"] == int(str(captured["step"])) + 1, "both ranks at the step after the vote"
        assert "batch/0/inputs" in tensors
        assert any(name.startswith("gradient/") for name in tensors) == (rank == 0), "replicas hold the same"
    traced = asked(config, "capture", "--kind", "anomaly-trace")
    assert traced["detail"] == "no operation of this step made a NaN"
    assert asked(config, "capture", "--kind", "memory-snapshot")["state"] == "done"
    stacks = cli("capture", "two", "--config", config, "--kind", "stacks", "--json")
    assert json.loads(stacks.stdout)["action"] == "stacks"
    halted = asked(config, "halt")
    assert str(halted["detail"]).startswith(str(tmp_path / "out" / "checkpoint-"))
    _, said = launch.communicate(timeout=60)
    assert launch.returncode == 83, said
    found = [Bundle(path) for path, _ in bundles(tmp_path / "state" / "grpo-sentinel" / "incidents")]
    assert all(not bundle.damage() for bundle in found)
    names = {entry["name"].partition("-step-")[0] for bundle in found for entry in bundle.manifest["files"]}
    assert {"tensors/rank-00000", "tensors/rank-00001", "captures/rank-00000", "captures/rank-00001"} <= names
    assert any(name.startswith("stacks/") for name in names)
    titles = {bundle.about.title for bundle in found}
    assert "capture asked for: a test" in titles, titles
    assert list((tmp_path / "state" / "grpo-sentinel" / "spool").rglob("*.*")) == []
