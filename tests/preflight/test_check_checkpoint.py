"""What transformers, PEFT and DCP really save is judged right, and what is broken in it is named."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_sentinel.cli import main
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.checkpoint import CheckpointReport, Resumable, check_checkpoint

pytestmark = pytest.mark.torch
Copy = Callable[..., Path]


def codes(report: CheckpointReport) -> set[tuple[str, str]]:
    return {(problem.code, problem.where) for problem in report.problems}


def rewrite(path: Path, name: str, index: int, value: float) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    tensors[name].view(-1)[index] = value
    save_file(tensors, path, metadata={"format": "pt"})


def test_what_transformers_saves_is_resumable_and_every_number_in_it_is_looked_at(copy: Copy) -> None:
    report = check_checkpoint(copy())
    assert report.resumable is Resumable.YES, report.problems
    assert (report.layout, report.step, report.finite, report.problems) == (("transformers",), 4, True, ())
    read = {file.path: file for file in report.files}
    assert read.keys() >= {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"}
    weights, moments = read["model.safetensors"], read["optimizer.pt"]
    assert moments.elements == 2 * weights.elements + weights.tensors  # exp_avg, exp_avg_sq, and one step each


def test_transformers_itself_resumes_from_what_is_called_resumable(copy: Copy) -> None:
    from checkpoints_made import model
    from transformers import Trainer, TrainingArguments

    path = copy(2)
    assert check_checkpoint(path).resumable is Resumable.YES
    rows = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 8
    arguments = TrainingArguments(
        output_dir=str(path.parent), max_steps=3, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no",
        per_device_train_batch_size=2,
    )  # fmt: skip
    trainer = Trainer(model=model(), args=arguments, train_dataset=rows)
    trainer.train(resume_from_checkpoint=str(path))
    assert trainer.state.global_step == 3


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_bad_weight_is_named_and_makes_it_not_resumable(copy: Copy, value: float) -> None:
    path = copy()
    rewrite(path / "model.safetensors", "model.layers.1.mlp.up_proj.weight", 7, value)
    report = check_checkpoint(path)
    assert (report.resumable, report.finite) == (Resumable.NO, False)
    assert [problem.subject for problem in report.problems] == ["model.layers.1.mlp.up_proj.weight"]


def test_a_bad_moment_is_named_by_parameter_and_kind_without_unpickling(copy: Copy) -> None:
    import torch

    path = copy()
    state = torch.load(path / "optimizer.pt", weights_only=True)
    state["state"][3]["exp_avg_sq"].view(-1)[5] = math.inf
    torch.save(state, path / "optimizer.pt")
    report = check_checkpoint(path)
    assert report.resumable is Resumable.NO
    assert [problem.subject for problem in report.problems] == ["state.3.exp_avg_sq"]


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_makes_it_not_resumable(made: Path, tmp_path: Path, name: str, share: float) -> None:
    import shutil

    path = tmp_path / f"{name}-{share!r}" / "checkpoint-4"
    if not path.exists():
        shutil.copytree(made / "checkpoint-4", path)
    data = (path / name).read_bytes()
    (path / name).write_bytes(data[: min(int(len(data) * share), len(data) - 2)])  # a last line end is no loss
    report = check_checkpoint(path)
    assert report.resumable is Resumable.NO
    assert name in {problem.where for problem in report.problems}


def places_of_numbers(path: Path) -> list[range]:
    """Where in a file of torch.save the bytes of the tensors are."""
    import zipfile

    data, out = path.read_bytes(), []
    for entry in zipfile.ZipFile(path).infolist():
        head = data[entry.header_offset : entry.header_offset + 30]
        start = entry.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        if "/data/" in entry.filename:
            out.append(range(start, start + entry.file_size))
    return out


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10**9), bits=st.integers(1, 255))
def test_a_flipped_byte_raises_nothing_and_one_in_the_numbers_is_always_seen(
    made: Path, tmp_path: Path, at: int, bits: int
) -> None:
    from grpo_sentinel.preflight.look import Look

    source = made / "checkpoint-4" / "optimizer.pt"
    data = bytearray(source.read_bytes())
    at %= len(data)
    data[at] ^= bits
    (tmp_path / "optimizer.pt").write_bytes(data)
    look = Look(tmp_path)
    look.torch_file(tmp_path / "optimizer.pt")
    assert look.problems or look.files
    if any(at in place for place in places_of_numbers(source)):
        assert look.problems


@pytest.mark.parametrize(
    ("name", "answer", "code"),
    [
        ("trainer_state.json", Resumable.NO, "missing"),
        ("model.safetensors", Resumable.NO, "missing"),
        ("optimizer.pt", Resumable.YES, "no-state"),
        ("scheduler.pt", Resumable.YES, "no-state"),
        ("rng_state.pth", Resumable.YES, "no-state"),
    ],
)
def test_a_missing_file_is_said_with_what_it_means(copy: Copy, name: str, answer: Resumable, code: str) -> None:
    path = copy()
    (path / name).unlink()
    report = check_checkpoint(path)
    assert report.resumable is answer
    assert code in {problem.code for problem in report.problems}


def test_a_step_that_is_not_the_directorys_is_refused(copy: Copy) -> None:
    path = copy()
    moved = path.with_name("checkpoint-40")
    path.rename(moved)
    assert ("step", "trainer_state.json") in codes(check_checkpoint(moved))


def test_files_of_another_save_are_told_by_the_steps_that_optimizer_and_schedule_have_made(copy: Copy) -> None:
    import torch

    path = copy()
    state = torch.load(path / "optimizer.pt", weights_only=True)
    schedule = torch.load(path / "scheduler.pt", weights_only=True)

    def write(updates: float, last_epoch: int) -> None:
        for one in state["state"].values():
            one["step"] = torch.tensor(updates)
        torch.save(state, path / "optimizer.pt")
        torch.save({**schedule, "last_epoch": last_epoch}, path / "scheduler.pt")

    write(7.0, 4)
    report = check_checkpoint(path)
    assert (report.resumable, codes(report)) == (Resumable.CANNOT_TELL, {("step", "optimizer.pt")})
    assert "optimizer.pt is at step 7, the checkpoint is of step 4" in report.reasons[0]
    write(2.0, 3)
    report = check_checkpoint(path)
    assert (report.resumable, codes(report)) == (Resumable.YES, {("step", "optimizer.pt"), ("step", "scheduler.pt")})
    write(4.0, 8)
    assert not check_checkpoint(path).problems, "accelerate steps a schedule once per process"


def test_a_nan_in_the_trainers_last_log_line_is_told(copy: Copy) -> None:
    path = copy()
    state = json.loads((path / "trainer_state.json").read_text())
    state["log_history"].append({"step": 4, "loss": 0.0, "grad_norm": math.nan})
    (path / "trainer_state.json").write_text(json.dumps(state))
    report = check_checkpoint(path)
    assert report.resumable is Resumable.YES
    assert "grad_norm = nan at step 4" in report.reasons[0]


def test_sharded_weights_are_whole_only_with_every_shard_and_every_tensor(copy: Copy) -> None:
    from checkpoints_made import model
    from safetensors.torch import load_file, save_file

    path = copy()
    (path / "model.safetensors").unlink()
    model().save_pretrained(path, max_shard_size="6KB")
    shards = sorted(path.glob("model-*.safetensors"))
    assert len(shards) >= 3
    assert check_checkpoint(path).resumable is Resumable.YES

    tensors = load_file(shards[0])
    gone = sorted(tensors)[0]
    save_file({name: tensor for name, tensor in tensors.items() if name != gone}, shards[0], metadata={"format": "pt"})
    report = check_checkpoint(path)
    assert ("incomplete", shards[0].name) in codes(report)
    assert gone in report.reasons[0]

    shards[1].unlink()
    assert ("missing", shards[1].name) in codes(check_checkpoint(path))
    (path / "model.safetensors.index.json").unlink()
    found = codes(check_checkpoint(path))
    assert {("missing", shards[1].name), ("missing", "model.safetensors.index.json")} <= found


def test_weights_in_the_old_pickled_name_are_scanned_too(copy: Copy) -> None:
    import torch
    from safetensors.torch import load_file

    path = copy()
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    torch.save({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}, path / "pytorch_model.bin")
    assert check_checkpoint(path).resumable is Resumable.YES
    tensors["lm_head.weight"][3, 4] = math.nan
    torch.save(tensors, path / "pytorch_model.bin")
    report = check_checkpoint(path)
    assert [(one.code, one.subject) for one in report.problems] == [("non-finite", "lm_head.weight")]


def test_the_format_before_torch_1_6_is_read_by_torch_or_not_at_all(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    import torch
    from safetensors.torch import load_file

    path = copy()
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    torch.save(tensors, path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert check_checkpoint(path).resumable is Resumable.YES
    monkeypatch.setitem(sys.modules, "torch", None)  # as in the sidecar's image
    report = check_checkpoint(path)
    assert (report.resumable, report.finite) == (Resumable.CANNOT_TELL, None)
    assert "torch is not installed" in report.reasons[0]


def test_nothing_in_a_checkpoint_is_ever_executed(copy: Copy, tmp_path: Path) -> None:
    import pickle

    import torch

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return (exec, (f"open({str(tmp_path / 'sprung')!r}, 'w').close()",))

    path = copy()
    torch.save({"state": Trap()}, path / "optimizer.pt")
    torch.save({"w": Trap()}, path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (path / "optimizer_0").mkdir()
    (path / "optimizer_0" / ".metadata").write_bytes(pickle.dumps(Trap()))
    report = check_checkpoint(path)
    assert not (tmp_path / "sprung").exists()
    assert report.resumable is not Resumable.YES


def test_an_adapter_checkpoint_is_judged_like_a_whole_model(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    from checkpoints_made import train

    path = train(tmp_path / "lora", lora=True) / "checkpoint-4"
    assert check_checkpoint(path).resumable is Resumable.YES
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    rewrite(path / "adapter_model.safetensors", name, 0, math.nan)
    assert [problem.subject for problem in check_checkpoint(path).problems] == [name]


def test_shards_of_torch_distributed_are_scanned_where_they_lie(copy: Copy) -> None:
    import torch
    import torch.distributed.checkpoint as dcp
    from checkpoints_made import model

    path = copy()
    (path / "model.safetensors").unlink()
    (path / "optimizer.pt").unlink()
    weights = model().state_dict()
    dcp.save({"model": weights}, checkpoint_id=path / "pytorch_model_fsdp_0")
    dcp.save({"optimizer": {"m": torch.ones(5)}}, checkpoint_id=path / "optimizer_0")
    report = check_checkpoint(path)
    assert (report.resumable, report.layout) == (Resumable.YES, ("transformers", "distributed"))
    shard = next((path / "pytorch_model_fsdp_0").glob("*.distcp"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-10])
    assert ("truncated", f"pytorch_model_fsdp_0/{shard.name}") in codes(check_checkpoint(path))
    shard.unlink()
    assert ("missing", f"pytorch_model_fsdp_0/{shard.name}") in codes(check_checkpoint(path))

    weights["model.norm.weight"][2] = math.nan
    dcp.save({"model": weights}, checkpoint_id=path / "pytorch_model_fsdp_0")
    assert [one.subject for one in check_checkpoint(path).problems] == ["model.model.norm.weight"]
    (path / "optimizer_0" / ".metadata").unlink()
    assert ("missing", "optimizer_0/.metadata") in codes(check_checkpoint(path))


def deepspeed_checkpoint(path: Path, ranks: int) -> Path:
    """The files that DeepSpeed writes with ZeRO 2, in its names and with its keys."""
    import torch

    tag = path / "global_step4"
    tag.mkdir()
    (path / "latest").write_text("global_step4")
    state = {
        "module": {"w": torch.ones(3, dtype=torch.bfloat16)}, "dp_world_size": ranks, "mp_world_size": 1,
        "optimizer": None, "global_steps": 4,
    }  # fmt: skip
    torch.save(state, tag / "mp_rank_00_model_states.pt")
    for rank in range(ranks):
        shard = {"optimizer_state_dict": {"base": [torch.ones(4)], "partition_count": ranks}}
        torch.save(shard, tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        torch.save({"python": 1}, path / f"rng_state_{rank}.pth")
    return tag


def test_deepspeed_shards_are_counted_by_what_the_files_say(copy: Copy) -> None:
    import torch

    path = copy()
    for name in ("model.safetensors", "optimizer.pt", "rng_state.pth"):
        (path / name).unlink()
    tag = deepspeed_checkpoint(path, 3)
    report = check_checkpoint(path)
    assert (report.resumable, report.problems) == (Resumable.YES, ())

    last = tag / "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"
    last.unlink()  # the highest: no gap in the numbers would show it
    (path / "rng_state_2.pth").unlink()
    report = check_checkpoint(path)
    assert report.resumable is Resumable.NO
    assert "data-parallel rank 2" in report.reasons[0]
    assert ("missing", "rng_state_2.pth") in codes(report)

    torch.save({"optimizer_state_dict": {"base": [torch.tensor([1.0, math.nan])]}}, last)
    assert "optimizer_state_dict.base.0" in {one.subject for one in check_checkpoint(path).problems}
    (path / "latest").write_text("global_step9")
    assert ("missing", "global_step9") in codes(check_checkpoint(path))
    (path / "latest").unlink()
    assert ("missing", "latest") in codes(check_checkpoint(path))


def test_one_ranks_leftover_is_no_checkpoint(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "checkpoint-19"
    path.mkdir()
    torch.save({"python": 1}, path / "rng_state_1.pth")  # what a signal to one rank alone leaves behind
    report = check_checkpoint(path)
    assert report.resumable is Resumable.NO
    assert {("missing", ""), ("missing", "trainer_state.json"), ("missing", "rng_state_0.pth")} <= codes(report)


def test_quick_tells_whole_from_half_and_claims_no_more(copy: Copy) -> None:
    path = copy()
    assert check_checkpoint(path, quick=True).resumable is Resumable.CANNOT_TELL
    (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:-4])
    assert check_checkpoint(path, quick=True).resumable is Resumable.NO


def test_a_directory_of_checkpoints_is_a_question_not_an_answer(made: Path) -> None:
    with pytest.raises(SentinelError, match="holds 2 checkpoints"):
        check_checkpoint(made)


def test_the_command_exits_0_1_or_2_and_prints_strict_json(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    path = copy()
    assert main(["check", "checkpoint", str(path)]) == 0
    assert "resumable: yes" in capsys.readouterr().out
    rewrite(path / "model.safetensors", "lm_head.weight", 0, math.nan)
    assert main(["check", "checkpoint", str(path), "--json"]) == 1
    body = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert (body["schema"], body["version"], body["resumable"]) == ("grpo-sentinel/checkpoint-check", 1, "no")
    assert body["problems"][0]["subject"] == "lm_head.weight"
    assert main(["check", "checkpoint", str(path / "nowhere")]) == 2
