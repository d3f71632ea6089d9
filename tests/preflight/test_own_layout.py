"""Checkpoints of a loop of one's own: files of torch.save, kept, checked and chosen like those of transformers."""

from __future__ import annotations

import json
import math
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from grpo_sentinel.halting.checkpoints import check_finite, newest_before, scan_directory  # noqa: E402
from grpo_sentinel.halting.pin import pin  # noqa: E402
from grpo_sentinel.harm import step_of  # noqa: E402
from grpo_sentinel.history import HistoryReader, history_path  # noqa: E402
from grpo_sentinel.preflight.checkpoint import CheckpointReport, Resumable, check_checkpoint  # noqa: E402
from grpo_sentinel.preflight.resume import resume_point  # noqa: E402

LOOP = Path(__file__).with_name("saving_loop.py")


def state(step: int, value: float = 1.0) -> dict[str, object]:
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    net.weight.data[0, 0] = value
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}


def one_file(folder: Path, step: int, value: float = 1.0) -> Path:
    folder.mkdir(exist_ok=True)
    torch.save(state(step, value), folder / f"checkpoint_{step}.pt")
    return folder / f"checkpoint_{step}.pt"


def directory(folder: Path, step: int, value: float = 1.0) -> Path:
    path = folder / f"step-{step}"
    path.mkdir(parents=True)
    both = state(step, value)
    torch.save(both["model"], path / "model.pt")
    torch.save(both["optimizer"], path / "optim.pt")
    return path


def codes(report: CheckpointReport) -> set[str]:
    return {problem.code for problem in report.problems}


@pytest.mark.parametrize(
    ("name", "step"),
    [("checkpoint-12", 12), ("step_7", 7), ("ckpt000120.pt", 120), ("checkpoint_3.safetensors", 3), ("model.pt", None),
     ("checkpoint-x", None), ("step_5.txt", None), (".checkpoint-4.t.partial", None)],
)  # fmt: skip
def test_the_step_is_read_from_the_name(name: str, step: int | None) -> None:
    assert step_of(name) == step


def test_one_file_says_itself_whether_it_is_whole_finite_and_of_its_step(tmp_path: Path) -> None:
    path = one_file(tmp_path, 30)
    report = check_checkpoint(path)
    assert (report.resumable, report.finite, report.step, report.layout) == (Resumable.YES, True, 30, ("own",))
    assert codes(check_checkpoint(one_file(tmp_path, 40, math.nan))) == {"non-finite"}
    other = path.with_name("checkpoint_50.pt")
    shutil.copy(path, other)
    assert codes(check_checkpoint(other)) == {"step"}
    other.write_bytes(path.read_bytes()[:-40])
    assert check_checkpoint(other).resumable is Resumable.NO
    torch.save({"step": 60}, tmp_path / "checkpoint_60.pt")
    assert "there are no weights in it" in check_checkpoint(tmp_path / "checkpoint_60.pt").reasons
    torch.save(state(70)["model"], tmp_path / "checkpoint_70.pt")
    assert codes(check_checkpoint(tmp_path / "checkpoint_70.pt")) == {"no-state"}


def test_a_directory_is_believed_only_when_the_trainer_reported_it(tmp_path: Path) -> None:
    path = directory(tmp_path, 30)
    report = check_checkpoint(path)
    assert (report.resumable, report.finite) == (Resumable.CANNOT_TELL, None)
    assert "no run reported it" in report.reasons[0]
    assert check_checkpoint(path, reported=True).resumable is Resumable.YES
    (path / "model.pt").write_bytes((path / "model.pt").read_bytes()[:-40])
    assert check_checkpoint(path, reported=True).resumable is Resumable.NO


@pytest.mark.parametrize("make", [one_file, directory])
def test_it_is_kept_as_a_copy_and_only_when_it_is_whole(tmp_path: Path, make: Callable[[Path, int], Path]) -> None:
    paths = [make(tmp_path / "out", step) for step in (2, 4, 6)]
    half = paths[1] if paths[1].is_file() else paths[1] / "model.pt"
    half.write_bytes(half.read_bytes()[:-40])
    found = scan_directory(tmp_path / "out", paths)
    assert [(one.step, bool(one.problem)) for one in found] == [(6, False), (4, True), (2, False)]
    (good,) = newest_before(found, 6)
    kept = pin(good, tmp_path / "pinned", "t")
    if paths[0].is_file():
        paths[0].unlink()
    else:
        shutil.rmtree(paths[0])
    assert check_finite(kept).finite
    assert [one.name for one in (tmp_path / "pinned").iterdir()] == [kept.name]
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == sorted(path.name for path in paths[1:])


def test_shards_of_deepspeed_and_fsdp_are_weights_too(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    for step, value in ((2, 1.0), (4, math.nan)):
        path = tmp_path / "out" / f"checkpoint-{step}"
        (path / f"global_step{step}").mkdir(parents=True)
        weights = {"module": {"w": torch.full((3,), value)}}
        torch.save(weights, path / f"global_step{step}" / "mp_rank_00_model_states.pt")
        (path / "latest").write_text(f"global_step{step}")
        (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    sharded = tmp_path / "out" / "checkpoint-6"
    dcp.save({"model": {"w": torch.ones(3)}}, checkpoint_id=str(sharded / "pytorch_model_fsdp_0"), no_dist=True)
    (sharded / "trainer_state.json").write_text(json.dumps({"global_step": 6}))
    (tmp_path / "out" / "checkpoint-8").mkdir()
    (tmp_path / "out" / "checkpoint-8" / "trainer_state.json").write_text(json.dumps({"global_step": 8}))
    found = scan_directory(tmp_path / "out")
    assert [(one.step, one.problem) for one in found] == [(8, "no weights"), (6, ""), (4, ""), (2, "")]
    kept = pin(found[1], tmp_path / "pinned", "t")
    report = check_finite(kept)
    assert (report.finite, report.nonfinite) == (False, {}), "not looked at is not finite"
    assert all(name.startswith("pytorch_model_fsdp_0/") for name in report.unchecked)
    assert check_checkpoint(kept).finite, "`check checkpoint` reads them"
    assert check_finite(pin(found[2], tmp_path / "pinned", "t")).nonfinite == {"module.w": 3}
    assert check_finite(pin(found[3], tmp_path / "pinned", "t")).finite


@pytest.mark.parametrize("layout", ["directory", pytest.param("file", marks=pytest.mark.slow)])
def test_a_real_loop_that_diverges_has_one_kept_and_resume_point_finds_the_way_back(
    tmp_path: Path, layout: str
) -> None:
    config = tmp_path / "sentinel.yaml"
    config.write_text(json.dumps({"http": {"port": 0}, "launch": {"linger_seconds": 1}, "halting": {"dry_run": True}}))
    words = [sys.executable, "-m", "grpo_sentinel.cli", "launch", "--config", config, "--run-id", "run", "--"]
    done = subprocess.run(
        [*words, sys.executable, LOOP, layout], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "kept from before the onset" in done.stderr, done.stderr
    made = tmp_path / "state" / "grpo-sentinel"
    with HistoryReader(history_path(made, socket.gethostname())) as reader:
        found = resume_point(tmp_path / "out", [(reader, made)])
        onset = min(one.onset_step for one in reader.findings("run") if one.rule == "weights_nonfinite")
    assert found.path is not None, found
    assert found.step == (onset - 1) // 10 * 10, "the newest before the weights were lost"
    kept = [one for one in (tmp_path / "sentinel-pinned" / "run").iterdir() if not one.name.startswith(".")]
    assert [step_of(path.name) for path in kept] == [found.step]
