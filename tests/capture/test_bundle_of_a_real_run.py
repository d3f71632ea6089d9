"""From a fault in a real loop to a bundle with everything in it, to the same fault run again from the bundle."""

from __future__ import annotations

import gzip
import json
import re
import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "halting"))

from run_support import cli

from grpo_sentinel.agent.capture import rerun
from grpo_sentinel.agent.capture.files import read, write
from grpo_sentinel.incidents.bundle import Bundle
from grpo_sentinel.incidents.model import State
from grpo_sentinel.incidents.places import bundles

pytestmark = pytest.mark.torch
LOOP = Path(__file__).with_name("faulty_loop.py")


class Ruined:
    """One run of the faulty loop under `launch`, killed in the end, and its bundle."""

    def __init__(self, folder: Path, *, samples: str, fate: str = "kill") -> None:
        self.state = folder / "state" / "grpo-sentinel"
        config = folder / "sentinel.yaml"
        body = {
            "http": {"port": 0}, "launch": {"linger_seconds": 3}, "halting": {"dry_run": True},
            "collectors": {"nvml": {"enabled": False}, "host": {"interval_seconds": 0.5}},
            "incidents": {"samples": samples},
        }  # fmt: skip
        config.write_text(json.dumps(body))
        log = folder / "train.log"
        log.write_text("epoch 1\nRuntimeError: the end\n")
        self.done = cli(
            "launch", "--config", config, "--run-id", "ruined", "--log", log, "--", sys.executable, LOOP, fate,
            timeout=120,
        )  # fmt: skip
        self.folder = folder
        found = [path for path, _ in bundles(self.state / "incidents")]
        assert found, self.done.stderr
        self.bundle = Bundle(found[0])

    @property
    def captured(self) -> Path:
        return self.bundle.path / "tensors" / "rank-00000-step-30-gradient.safetensors"

    def reproduce(self, *arguments: object) -> object:
        return cli("reproduce", self.bundle.path, *arguments, timeout=120, env={"PYTHONPATH": str(LOOP.parent)})


@pytest.fixture(scope="module")
def ruined(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("ruined")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_SENTINEL_DIR", str(folder))
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        yield Ruined(folder, samples="full")


def test_the_bundle_is_whole_after_the_death_and_holds_all_that_was_promised(ruined: Ruined) -> None:
    assert ruined.done.returncode == 128 + signal.SIGKILL, ruined.done.stderr
    bundle = ruined.bundle
    assert bundle.damage() == []
    assert bundle.about.state is State.CLOSED
    assert bundle.about.ended == "died (rank 0)"
    files = {entry["name"]: entry for entry in bundle.manifest["files"]}
    assert {"report.md", "report.html", "findings.json", "run.json", "config.json", "events.jsonl"} <= files.keys()
    assert {record.step for record in bundle.records()} == set(range(1, 46)), "the last steps come from the ring"
    source = bundle.source()
    assert source.findings[0].layer in ("policy", "gradient", "optimizer")
    assert source.trainer["learning_rate"] == 1e-2
    assert source.sentinel["halting"]["dry_run"] is True
    assert "torch" in source.trainer["versions"]
    assert "python" in source.run["versions"]
    with gzip.open(bundle.path / "device.jsonl.gz", "rt") as lines:
        assert any(json.loads(line)["source"] == "host" for line in lines)
    assert any(name.startswith("stacks/") for name in files), bundle.manifest["missing"]
    assert (bundle.path / "logs" / "0-train.log").read_text().endswith("RuntimeError: the end\n")
    tensors, facts = read(ruined.captured)
    assert facts["losses"][0][0] == "nan"
    assert {"batch/0/completion_ids", "rng/before/torch_cpu", "weight/2.weight", "gradient/2.weight"} <= tensors.keys()


def test_the_summary_names_the_bundle_and_what_a_dry_run_would_have_done(ruined: Ruined) -> None:
    assert str(ruined.bundle.path) in ruined.done.stderr
    assert "dry run: would have halted at step 3" in ruined.done.stderr


def test_the_spool_is_empty_once_the_bundle_holds_its_files(ruined: Ruined) -> None:
    assert list((ruined.state / "spool").rglob("*.safetensors")) == []


def test_the_fault_comes_again_and_its_operation_is_named(ruined: Ruined) -> None:
    done = ruined.reproduce("--builder", "faulty_loop:build", "--anomaly")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reproduced" in done.stdout
    assert "aten.sqrt" in done.stdout
    assert "faulty_loop.py" in done.stdout


def test_a_fixed_loss_does_not_reproduce_it(ruined: Ruined, tmp_path: Path) -> None:
    fixed = tmp_path / "fixed_loop.py"
    fixed.write_text(LOOP.read_text().replace('batch["scores"])', 'batch["scores"].clamp(min=0))'))
    done = cli(
        "reproduce",
        ruined.bundle.path,
        "--builder",
        "fixed_loop:build",
        "--json",
        timeout=120,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert told["reproduced"] is False
    assert "loss of micro-batch 0: then nan" in told["differences"][0]


@pytest.mark.parametrize(
    ("builder", "words"),
    [
        ("faulty_loop", "expected module:function"),
        ("faulty_loop:nothing", "cannot be loaded"),
        ("faulty_loop:main", "failed: TypeError"),
        ("faulty_loop:time", "gave|failed"),
    ],
)
def test_a_builder_that_gives_no_model_is_one_sentence_and_exit_code_2(
    ruined: Ruined, builder: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(LOOP.parent))
    assert rerun.main([str(ruined.captured), "--builder", builder]) == 2
    assert re.search(words, capsys.readouterr().err)


def test_a_rank_that_captured_nothing_is_said(ruined: Ruined) -> None:
    done = ruined.reproduce("--builder", "faulty_loop:build", "--rank", "7")
    assert done.returncode == 2
    assert "there are: rank 0 step 30" in done.stderr


def test_ids_that_were_hashed_cannot_be_run_again_which_is_said(
    ruined: Ruined, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors, facts = read(ruined.captured)
    del tensors["batch/0/completion_ids"]
    facts["left_out"] = {"batch/0/completion_ids": "token ids are not kept (samples: hashed)"}
    write(tmp_path / "hashed.safetensors", tensors, facts)
    assert rerun.main([str(tmp_path / "hashed.safetensors"), "--builder", "faulty_loop:build"]) == 2
    assert "incidents.samples to full" in capsys.readouterr().err
