"""A step made again is the same step; what was changed is named first, by layer, whatever the source of the step."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_sentinel.cli import main
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.report import CheckReport
from grpo_sentinel.preflight.snapshot import LayerState, Samples, Snapshot, load, save
from grpo_sentinel.preflight.snapshot_compare import RELATIVE, compare
from grpo_sentinel.preflight.snapshot_take import SnapshotOptions, from_bundle, take

STEP = Snapshot(
    source="a", kind="model", dtype="float32", seed=0, samples=Samples(digest="d", count=2), loss=0.5, rewards=(1.0, 0.0),
    log_probs=((-0.5, -0.25), (-2.0,)), versions={"torch": "2.13"},
    layers=tuple(LayerState(name=f"layers.{n}", weights=f"w{n}", activation=10.0 + n, gradient=1.0 + n) for n in range(4)),
)  # fmt: skip


def codes(report: CheckReport) -> list[str]:
    return [fault.code for fault in report.faults]


def with_layer(step: Snapshot, number: int, **change: Any) -> Snapshot:
    layers = list(step.layers)
    layers[number] = replace(layers[number], **change)
    return replace(step, layers=tuple(layers))


def test_a_step_is_the_same_as_itself_and_survives_its_file(tmp_path: Path) -> None:
    odd = replace(STEP, loss=math.nan, rewards=(math.inf, -math.inf), samples=Samples(
        digest="d", count=1, prompt_ids=((1, 2),), completion_ids=((3,),), texts=({"columns": {"x": math.nan}},)))  # fmt: skip
    save(odd, tmp_path / "deep" / "one.json")
    again = load(tmp_path / "deep" / "one.json")
    assert "NaN" in (tmp_path / "deep" / "one.json").read_text()
    json.loads(
        (tmp_path / "deep" / "one.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
    )
    assert math.isnan(again.loss or 0.0)
    assert again.rewards == odd.rewards
    assert compare(odd, again).faults == ()
    assert compare(STEP, STEP).faults == ()


def test_what_keeps_a_graph_is_kept_in_the_file_and_a_file_that_does_not_know_it_is_read(tmp_path: Path) -> None:
    save(replace(STEP, attached=("advantages",)), tmp_path / "one.json")
    assert load(tmp_path / "one.json").attached == ("advantages",)
    body = json.loads((tmp_path / "one.json").read_text())
    del body["attached"]
    (tmp_path / "one.json").write_text(json.dumps(body))
    assert load(tmp_path / "one.json").attached is None
    assert any("only a trainer" in line for line in compare(STEP, load(tmp_path / "one.json")).not_seen)


@pytest.mark.parametrize(("change", "wanted", "where"), [
    ({"loss": 0.6}, ["loss"], "loss"), ({"rewards": (1.0, 0.5)}, ["rewards"], "rewards"), ({"rewards": (1.0,)}, ["rewards"], "rewards"),
    ({"log_probs": ((-0.5, -0.3), (-2.0,))}, ["log-probs"], "log-probs"), ({"log_probs": ((-0.5,), (-2.0,))}, ["log-probs"], "log-probs"),
    ({"samples": Samples(digest="e")}, ["other-samples"], "samples"), ({"loss": math.nan}, ["loss"], "loss"),
])  # fmt: skip
def test_each_difference_is_named(change: dict[str, Any], wanted: list[str], where: str) -> None:
    report = compare(STEP, replace(STEP, **change))
    assert codes(report) == wanted
    assert report.facts["first_difference"]["where"] == where  # type: ignore[index]
    assert report.exit_code == 1


def test_the_first_layer_that_differs_is_named_forwards_for_activations_and_backwards_for_gradients() -> None:
    changed = with_layer(with_layer(STEP, 1, activation=99.0, gradient=0.1), 2, activation=99.0, gradient=math.nan)
    report = compare(STEP, changed)
    assert [(fault.code, fault.subject) for fault in report.faults] == [
        ("activation", "layers.1"),
        ("gradient", "layers.2"),
    ]


def test_other_weights_alone_are_a_note_and_another_layer_is_a_difference() -> None:
    report = compare(STEP, with_layer(STEP, 3, weights="other"))
    assert report.faults == ()
    assert report.facts["first_other_weights"] == "layers.3"
    assert codes(compare(STEP, with_layer(STEP, 3, name="lora.3"))) == ["other-layers"]


@pytest.mark.parametrize("dtype", RELATIVE)
def test_rounding_within_the_coarser_dtype_is_no_difference_and_ten_times_as_much_is(dtype: str) -> None:
    for factor, same in ((0.5, True), (10.0, False)):
        gap = RELATIVE[dtype] * factor
        moved = replace(STEP, dtype=dtype, loss=0.5 + gap, layers=tuple(
            replace(one, gradient=(one.gradient or 0.0) * (1 + gap)) for one in STEP.layers))  # fmt: skip
        assert (compare(replace(STEP, dtype="float64"), moved).faults == ()) is same
    assert compare(STEP, replace(STEP, loss=0.501), tolerance=0.01).faults == ()


def test_what_one_side_does_not_know_is_said_and_not_compared() -> None:
    report = compare(
        STEP, replace(STEP, rewards=None, log_probs=None, loss=None, layers=(), versions={"torch": "2.14"})
    )
    assert codes(report) == ["other-layers"]
    assert len(report.not_seen) == 7
    assert any("2.13 and 2.14" in note for note in report.notes)


def test_files_that_are_no_snapshots_are_one_sentence(tmp_path: Path, capsys: Any) -> None:
    good = tmp_path / "good.json"
    save(STEP, good)
    body = json.loads(good.read_text())
    bad = {
        "none": "{",
        "other": "{}",
        "newer": json.dumps({**body, "version": 2}),
        "cut": json.dumps({**body, "samples": 3}),
    }
    for name, text in bad.items():
        (tmp_path / f"{name}.json").write_text(text)
        assert main(["snapshot", "compare", str(good), str(tmp_path / f"{name}.json")]) == 2, name
        assert capsys.readouterr().err.count("\n") == 1
    assert main(["snapshot", "compare", str(good), str(tmp_path / "absent.json")]) == 2
    assert main(["snapshot", "save", str(tmp_path / "out.json")]) == 2
    assert main(["snapshot", "save", str(tmp_path / "out.json"), "--from", "nowhere"]) == 2
    assert not (tmp_path / "out.json").exists()


@pytest.mark.torch
def test_a_model_is_compared_with_itself_with_a_changed_layer_and_with_another_dtype(
    policy_dir: Path, answered_file: str, tmp_path: Path, capsys: Any
) -> None:
    from safetensors.torch import load_file, save_file

    (tmp_path / "rewards.py").write_text(
        "def long(completions, answer, **kw):\n    return [len(str(c)) / 50 for c in completions]\n"
    )
    more = ["--reward", f"{tmp_path / 'rewards.py'}:long"]
    one, two, three, four = (str(tmp_path / f"{name}.json") for name in ("one", "two", "three", "four"))
    assert (
        main(["snapshot", "save", one, "--from", str(policy_dir), "--data", answered_file, "--samples", "6", *more])
        == 0
    )
    assert main(["snapshot", "save", two, "--from", str(policy_dir), "--like", one, *more]) == 0
    assert main(["snapshot", "compare", one, two]) == 0
    assert "rewards: 6" in capsys.readouterr().out

    shutil.copytree(policy_dir, tmp_path / "changed")
    tensors = load_file(tmp_path / "changed" / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"] *= 1.5
    save_file(tensors, tmp_path / "changed" / "model.safetensors", metadata={"format": "pt"})
    assert main(["snapshot", "save", three, "--from", str(tmp_path / "changed"), "--like", one, *more]) == 0
    capsys.readouterr()
    assert main(["snapshot", "compare", one, three, "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert body["facts"]["first_difference"] == {"code": "activation", "where": "model.layers.1"}
    assert body["facts"]["first_other_weights"] == "model.layers.1"
    assert {fault["code"] for fault in body["faults"]} == {"activation", "log-probs", "loss", "gradient"}

    assert main(["snapshot", "save", four, "--from", str(policy_dir), "--like", one, "--dtype", "bfloat16", *more]) == 0
    assert main(["snapshot", "compare", one, four]) == 0, "bfloat16 is within its own tolerance"
    assert main(["snapshot", "compare", one, four, "--tolerance", "1e-6"]) == 1


LOOP = """
import torch
def build(width=8, scale=1.0):
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.Linear(4, width), torch.nn.Linear(width, 1)])})
    data = torch.randn(16, 4)
    def step():
        hidden = torch.tanh(model["layers"][0](data)) * scale
        out = model["layers"][1](hidden + 0 * torch.rand(1))
        return {"loss": out.square().mean(), "rewards": data.sum(1), "log_probs": -out.abs(), "samples": data}
    return {"model": model, "step": step}
def same():
    return build()
def scaled():
    return build(scale=1.01)
def attached():
    built = build()
    def step(inner=built["step"]):
        out = inner()
        return {**out, "rewards": out["loss"] * out["rewards"], "advantages": out["loss"].detach()}
    return {**built, "step": step}
def raises():
    return {**build(), "step": lambda: 1 / 0}
def nothing():
    return 3
"""


@pytest.mark.torch
def test_a_loop_of_ones_own_makes_the_same_step_twice_and_a_change_in_it_is_found(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    first, second, other = (
        take(f"{tmp_path / 'loop.py'}:{name}", SnapshotOptions()) for name in ("same", "same", "scaled")
    )
    assert first.samples.count == 16
    assert [one.name for one in first.layers] == ["layers.0", "layers.1"]
    assert all(one.activation and one.gradient for one in first.layers)
    assert compare(first, second).faults == ()
    report = compare(first, other)
    assert report.facts["first_difference"] == {"code": "activation", "where": "layers.1"}
    assert first.attached == ()
    kept = take(f"{tmp_path / 'loop.py'}:attached", SnapshotOptions())
    assert kept.attached == ("rewards",)
    assert "keeps-graph" in codes(compare(first, kept))
    assert any("autograd graph" in note for note in compare(kept, kept).notes)
    for name in ("raises", "nothing", "absent"):
        with pytest.raises(SentinelError):
            take(f"{tmp_path / 'loop.py'}:{name}", SnapshotOptions())


TRAINER = """
import json, sys
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
POLICY, DATA, OUT = {policy!r}, {data!r}, {out!r}
def long(completions, **kw):
    return [float(len(one[0]["content"])) for one in completions]
def build(**more):
    rows = [json.loads(line) for line in open(DATA)]
    config = GRPOConfig(output_dir=OUT, per_device_train_batch_size=4, num_generations=4, max_completion_length=6,
                        report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
                        dataloader_pin_memory=False, **more)
    return GRPOTrainer(model=AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32), reward_funcs=long, args=config,
                       train_dataset=Dataset.from_list([{{"prompt": row["prompt"]}} for row in rows]),
                       processing_class=AutoTokenizer.from_pretrained(POLICY))
def hotter():
    return build(temperature=1.5)
def graphed():
    trainer = build()
    judge = torch.nn.Linear(1, 1)
    def scored(completions, **kw):
        return (judge(torch.tensor([[float(len(one[0]["content"]))] for one in completions]))[:, 0] ** 2).tolist()
    trainer.reward_funcs[0] = scored
    return trainer
"""


@pytest.mark.torch
def test_a_trl_trainer_makes_the_same_step_twice_and_writes_nothing(
    policy_dir: Path, answered_file: str, tmp_path: Path
) -> None:
    pytest.importorskip("trl")
    out = tmp_path / "trainer-out"
    (tmp_path / "trainer.py").write_text(TRAINER.format(policy=str(policy_dir), data=answered_file, out=str(out)))
    first, second, other = (
        take(f"{tmp_path / 'trainer.py'}:{name}", SnapshotOptions()) for name in ("build", "build", "hotter")
    )
    assert (first.kind, first.samples.count, len(first.rewards or ())) == ("trainer", 4, 4)
    assert first.attached == ()
    graphed = take(f"{tmp_path / 'trainer.py'}:graphed", SnapshotOptions())
    assert graphed.attached is not None
    assert "generation, reward or reference" in graphed.attached[0]
    assert first.log_probs is not None
    assert [len(row) for row in first.log_probs] == [len(ids) for ids in first.samples.completion_ids]
    assert any(one.gradient for one in first.layers)
    assert compare(first, second).faults == ()
    assert codes(compare(first, other)) == ["other-samples"]
    assert not out.exists() or not list(out.rglob("*.safetensors"))


def test_a_recorded_incident_gives_its_last_healthy_step_and_the_bad_one_differs(tmp_path: Path) -> None:
    import sentinel_batches as made
    from incident_world import World

    world = World(tmp_path / "state", tmp_path / "ring")
    try:
        good = {"reward.mean": 0.5, "gradient.norm_preclip": 1.0, "gradient.group_norm[model.layers.0]": 0.7}
        for _ in range(5):
            world.step(good)
        world.step({**good, "policy.loss": math.nan, "gradient.norm_preclip": math.nan})
        world.find(made.finding(onset_step=6, step=6))
        world.work()
        (folder,) = world.folders()
        healthy, bad = from_bundle(folder, None), from_bundle(folder, 6)
    finally:
        world.close()
    assert (healthy.source.endswith("step 5"), healthy.loss, healthy.rewards) == (True, 0.1, (0.5,))
    assert [one.name for one in healthy.layers] == ["model.layers.0", "all parameters"]
    assert compare(healthy, from_bundle(folder, 5)).faults == ()
    assert codes(compare(healthy, bad)) == ["other-samples"]
    assert codes(compare(healthy, bad, other_samples=True)) == ["loss", "gradient"]
    with pytest.raises(SentinelError, match="--step"):
        from_bundle(folder, 99)


def test_the_documented_keys_are_those_of_the_file() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "snapshot.md").read_text()
    for key in STEP.to_json():
        if key not in ("schema", "version"):
            assert f"`{key}`" in text, key
    for dtype in RELATIVE:
        assert f"| `{dtype}` |" in text
