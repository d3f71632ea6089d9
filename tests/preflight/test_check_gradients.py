"""Gradients of a sane checkpoint pass in silence; who carries a bad one, and who does not hold it, is named."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_sentinel.cli import main
from grpo_sentinel.preflight.gradients import GradientOptions, check_gradients
from grpo_sentinel.preflight.report import CheckReport, Fault

pytestmark = pytest.mark.torch
FAST = GradientOptions(samples=8, max_tokens=8)

BUILDERS = '''
import torch, transformers
path = {path!r}
def plain():
    return (transformers.AutoModelForCausalLM.from_pretrained(path), transformers.AutoTokenizer.from_pretrained(path))
def _changed(change):
    model, tokenizer = plain()
    inner = model.forward
    def forward(input_ids=None, **kw):
        out = inner(input_ids=input_ids, **kw)
        out["logits"] = change(model, input_ids, out.logits)
        return out
    model.forward = forward
    return model, tokenizer
class Steep(torch.autograd.Function):
    """The same numbers forward; backward a thousand times as much for rows that are marked."""
    @staticmethod
    def forward(context, logits, marked):
        context.save_for_backward(marked)
        return logits.clone()
    @staticmethod
    def backward(context, grad):
        return torch.where(context.saved_tensors[0], grad * 1000, grad), None
def one_sample():
    """The rows whose prompt asks for 3 + 0."""
    tokenizer = plain()[1]
    digit = tokenizer("3 + 0", add_special_tokens=False)["input_ids"]
    def steep(model, ids, logits):
        text = [tokenizer.decode(row) for row in ids]
        return Steep.apply(logits, torch.tensor(["3 + 0" in one for one in text]).view(-1, 1, 1))
    return _changed(steep)
def one_token():
    """The second-last place of the first row that has it."""
    tokenizer = plain()[1]
    def steep(model, ids, logits):
        marked = torch.zeros(logits.shape[:2], dtype=torch.bool)
        for row, one in enumerate(ids):
            if "3 + 0" in tokenizer.decode(one):
                marked[row, -3] = True
        return Steep.apply(logits, marked.unsqueeze(-1))
    return _changed(steep)
def broken_norm():
    return _changed(lambda model, ids, logits: logits + torch.sqrt(model.model.norm.weight.sum() * 0))
def hoarding():
    kept = []
    def change(model, ids, logits):
        kept.append(logits)
        return logits
    return _changed(change)
def unreached():
    model, tokenizer = plain()
    model.spare = torch.nn.Linear(3, 3)
    return model, tokenizer
def large():
    model, tokenizer = plain()
    model.model.layers[0].register_forward_hook(lambda part, given, out: (out[0] if isinstance(out, tuple) else out) * 1e6)
    return model, tokenizer
def before_unfreezing():
    model, tokenizer = plain()
    held = [one for name, one in model.named_parameters() if "norm" not in name]
    return {"model": model, "tokenizer": tokenizer, "optimizer": torch.optim.AdamW(held)}
def replaced():
    model, tokenizer = plain()
    optimizer = torch.optim.AdamW(model.parameters())
    model.model.norm.weight = torch.nn.Parameter(model.model.norm.weight.detach().clone())
    return model, tokenizer, optimizer
def resized():
    model, tokenizer = plain()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.tensor([[1, 2, 3]])).logits.sum().backward()
    optimizer.step()
    model.resize_token_embeddings(400, mean_resizing=False)
    return model, tokenizer, optimizer
def frozen():
    model, tokenizer = plain()
    return model.requires_grad_(False), tokenizer
'''


@pytest.fixture(scope="module")
def builders(policy_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("builders") / "gradient_builders.py"
    path.write_text(BUILDERS.replace("{path!r}", repr(str(policy_dir))))
    return path


def codes(report: CheckReport) -> set[str]:
    return {fault.code for fault in report.faults}


def fault(report: CheckReport, code: str) -> Fault:
    return next(one for one in report.faults if one.code == code)


def test_gradients_of_a_sane_policy_pass_in_silence_with_their_distribution_by_layer(
    policy_dir: Path, answered_file: str
) -> None:
    report = check_gradients(str(policy_dir), replace(FAST, data=(answered_file,)))
    assert report.faults == ()
    assert any("backwards of the same sample" in line for line in report.looked_at)
    layers: Any = report.facts["layers"]
    assert list(layers) == ["model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm"]
    for one in layers.values():
        assert 0 < one["mean"] < one["max"]
        assert one["mean"] <= one["p95"] * 10
        assert one["p95"] <= one["max"]
    assert report.facts["norm"] == pytest.approx(math.sqrt(sum(one["norm"] ** 2 for one in layers.values())))
    assert report.facts["carriers"]["samples"] == 8  # type: ignore[index]
    assert report.seconds < 60


def test_a_checkpoint_with_a_nan_weight_is_a_finding_and_not_a_usage_error(policy_dir: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    spoiled = tmp_path / "spoiled"
    shutil.copytree(policy_dir, spoiled)
    tensors = load_file(spoiled / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = math.nan
    save_file(tensors, spoiled / "model.safetensors", metadata={"format": "pt"})
    report = check_gradients(str(spoiled), FAST)
    assert codes(report) == {"non-finite-weights"}
    assert "up_proj" in str(fault(report, "non-finite-weights").examples)
    assert any("--response FIELD" in line for line in report.not_seen)


def test_the_histogram_agrees_with_exact_statistics() -> None:
    import torch

    from grpo_sentinel.preflight.live.spread import Spread, layer_of

    torch.manual_seed(0)
    gradient = torch.randn(20_000) * 1e-4
    gradient[0], gradient[1] = math.nan, 3.0
    spread = Spread()
    spread.add(gradient[:9000])
    spread.add(gradient[9000:])
    size = gradient[torch.isfinite(gradient)].abs().double()
    one = spread.summary()
    assert (one["count"], one["nonfinite"], one["max"]) == (19_999, 1, 3.0)
    assert one["mean"] == pytest.approx(float(size.mean()))
    assert one["std"] == pytest.approx(float(size.std(correction=0)))
    assert one["p95"] == pytest.approx(float(size.quantile(0.95)), rel=0.1)
    assert layer_of("model.layers.3.mlp.up_proj.weight") == "model.layers.3"
    assert layer_of("transformer.h.11.attn.bias") == "transformer.h.11"
    assert layer_of("lm_head.weight") == "lm_head"


@pytest.mark.parametrize(("name", "code", "named"), [
    ("one_sample", "one-sample", ":4: "), ("one_token", "one-token", ":4, token"), ("broken_norm", "non-finite-gradient", "model.norm"),
    ("unreached", "unreached", "spare.weight"), ("before_unfreezing", "not-in-optimizer", "norm.weight"),
    ("replaced", "stale-state", ""), ("replaced", "not-in-optimizer", "norm.weight"), ("resized", "state-shape", "embed_tokens"), ("large", "float16-activations", ""),
])  # fmt: skip
def test_each_bad_gradient_is_named_with_what_carries_it(
    builders: Path, name: str, code: str, named: str, answered_file: str
) -> None:
    report = check_gradients(f"{builders}:{name}", replace(FAST, data=(answered_file,)))
    found = fault(report, code)
    assert named in " ".join(found.examples)


def test_the_operation_that_makes_the_first_nan_is_named_and_memory_is_weighed(
    builders: Path, answered_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grpo_sentinel.preflight.live import gradient_memory

    report = check_gradients(f"{builders}:broken_norm", replace(FAST, data=(answered_file,)))
    assert fault(report, "non-finite-gradient")
    assert report.facts["nan_operation"] in ("SqrtBackward0", "PowBackward0", "MulBackward0")
    assert "memory" not in {one.code for one in report.faults}
    monkeypatch.setattr(gradient_memory, "_free_bytes", lambda device: 1000)
    small = check_gradients(f"{builders}:broken_norm", replace(FAST, data=(answered_file,)))
    assert "GiB are free on cpu" in fault(small, "memory").message


def test_nothing_is_found_in_the_same_policy_from_a_function_and_all_frozen_is_usage(
    builders: Path, answered_file: str
) -> None:
    assert check_gradients(f"{builders}:plain", replace(FAST, data=(answered_file,))).faults == ()
    assert main(["check", "gradients", f"{builders}:frozen"]) == 2


def test_completions_and_real_advantages_are_used_where_the_data_has_no_responses(
    policy_dir: Path, prompts_file: str, tmp_path: Path
) -> None:
    (tmp_path / "rewards.py").write_text(
        "def short(completions, **kw):\n    return [-float(len(str(c))) for c in completions]\n"
    )
    report = check_gradients(
        str(policy_dir), replace(FAST, data=(prompts_file,), reward=f"{tmp_path / 'rewards.py'}:short")
    )
    assert report.faults == ()
    assert "advantages from" in report.looked_at[0]
    assert codes(check_gradients(str(policy_dir), replace(FAST, data=(prompts_file,), max_norm=1e-9))) == {"norm"}


@pytest.fixture
def checkpoint(policy_dir: Path, tmp_path: Path) -> Any:
    """Save a copy of the policy with an optimizer that made one step, after it went through `change`."""
    import torch
    import transformers

    def make(
        change: Any = None, *, names: bool = False, rate: float = 1e-5, last: float | None = None, dtype: str = ""
    ) -> Path:
        target = tmp_path / f"checkpoint-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(policy_dir, target)
        model = transformers.AutoModelForCausalLM.from_pretrained(str(policy_dir))
        given = list(model.named_parameters())
        held = [one for one in given if change is not change_missing or "norm" not in one[0]]
        optimizer = torch.optim.AdamW(held if names else [one for _, one in held], lr=rate)
        for _, one in given:
            one.grad = torch.ones_like(one)
        optimizer.step()
        body = optimizer.state_dict()
        if change is not None:
            change(body)
        torch.save(body, target / "optimizer.pt")
        if last is not None:
            torch.save({"_last_lr": [last], "last_epoch": 1}, target / "scheduler.pt")
        if dtype:
            model.to(getattr(torch, dtype)).save_pretrained(target)
        return target

    return make


def change_missing(body: Any) -> None:
    """The optimizer was built without the norms: see `checkpoint`."""


def change_stale(body: Any) -> None:
    import torch

    body["state"][max(body["state"]) + 1] = {
        "step": torch.tensor(1.0),
        "exp_avg": torch.ones(7, 3),
        "exp_avg_sq": torch.ones(7, 3),
    }
    body["param_groups"][0]["params"].append(max(body["state"]))
    if "param_names" in body["param_groups"][0]:
        body["param_groups"][0]["param_names"].append("adapter.lora_A")


def change_shape(body: Any) -> None:
    body["state"][0] = {key: one[:10] if one.ndim else one for key, one in body["state"][0].items()}


def change_nan(body: Any) -> None:
    body["state"][1]["exp_avg_sq"][0] = math.nan


def change_bare(body: Any) -> None:
    del body["state"][2]


@pytest.mark.parametrize("names", [False, True])
def test_an_optimizer_that_fits_its_parameters_is_silent(checkpoint: Any, answered_file: str, names: bool) -> None:
    report = check_gradients(str(checkpoint(names=names, last=1e-5)), replace(FAST, data=(answered_file,)))
    assert report.faults == ()
    assert any("not unpickled" in line for line in report.looked_at)
    assert report.facts["learning_rates"] == [1e-5]


@pytest.mark.parametrize(("change", "code", "names"), [
    (change_missing, "not-in-optimizer", False), (change_missing, "not-in-optimizer", True), (change_stale, "stale-state", False),
    (change_stale, "stale-state", True), (change_shape, "state-shape", True), (change_shape, "stale-state", False),
    (change_nan, "non-finite-state", False), (change_bare, "no-state", False), (change_bare, "no-state", True),
])  # fmt: skip
def test_state_that_does_not_fit_the_parameters_is_named(checkpoint: Any, change: Any, code: str, names: bool) -> None:
    import transformers

    from grpo_sentinel.preflight.optimizer_state import OptimizerState, compare_state, read_optimizer_state

    target = checkpoint(change, names=names)
    state = read_optimizer_state(target)
    assert isinstance(state, OptimizerState)
    model = transformers.AutoModelForCausalLM.from_pretrained(str(target))
    shapes = {name: tuple(one.shape) for name, one in model.named_parameters()}
    assert code in {one.code for one in compare_state(state, shapes, "x")}


def test_a_learning_rate_that_is_not_the_schedules_or_is_zero_is_told(checkpoint: Any) -> None:
    from grpo_sentinel.preflight.optimizer_state import OptimizerState, rate_faults, read_optimizer_state

    for rate, last, code in ((1e-5, 2e-5, "learning-rate"), (0.0, 0.0, "learning-rate-zero")):
        target = checkpoint(rate=rate, last=last)
        state = read_optimizer_state(target)
        assert isinstance(state, OptimizerState)
        faults, notes = rate_faults(target, state, "x")
        assert ([one.code for one in faults], notes) == ([code], [])


@pytest.mark.parametrize(("step", "end", "level"), [(40, 40, None), (39, 40, "broken"), (40, None, "doubtful")])
def test_a_rate_of_zero_is_a_note_at_the_end_of_the_schedule_and_a_fault_before_it(
    checkpoint: Any, step: int, end: int | None, level: str | None
) -> None:
    from grpo_sentinel.preflight.optimizer_state import OptimizerState, rate_faults, read_optimizer_state

    target = checkpoint(rate=0.0, last=0.0)
    (target / "trainer_state.json").write_text(json.dumps({"global_step": step, **({"max_steps": end} if end else {})}))
    state = read_optimizer_state(target)
    assert isinstance(state, OptimizerState)
    faults, notes = rate_faults(target, state, "x")
    assert [one.level.value for one in faults] == ([level] if level else [])
    assert len(notes) == (level is None)
    assert f"{step} of 40" in " ".join([*notes, *(one.message for one in faults)]) or end is None


def test_the_last_checkpoint_of_a_real_trainers_linear_schedule_is_at_its_end(made: Path) -> None:
    from grpo_sentinel.preflight.optimizer_state import OptimizerState, rate_faults, read_optimizer_state

    for step, ended in ((2, False), (4, True)):
        state = read_optimizer_state(made / f"checkpoint-{step}")
        assert isinstance(state, OptimizerState)
        assert any(state.rates) is not ended
        faults, notes = rate_faults(made / f"checkpoint-{step}", state, "x")
        assert (faults, len(notes)) == ([], int(ended))


@pytest.mark.parametrize("last_epoch", [3, 10])
def test_a_schedule_that_knows_its_own_length_tells_its_end_without_a_trainer(checkpoint: Any, last_epoch: int) -> None:
    import torch

    from grpo_sentinel.preflight.optimizer_state import OptimizerState, rate_faults, read_optimizer_state

    target = checkpoint(rate=0.0)
    torch.save({"_last_lr": [0.0], "last_epoch": last_epoch, "T_max": 10}, target / "scheduler.pt")
    state = read_optimizer_state(target)
    assert isinstance(state, OptimizerState)
    faults, notes = rate_faults(target, state, "x")
    assert (len(faults), len(notes)) == ((0, 1) if last_epoch == 10 else (1, 0))


def test_a_model_that_keeps_every_loss_with_its_graph_is_told_with_the_kind(builders: Path, answered_file: str) -> None:
    report = check_gradients(f"{builders}:hoarding", replace(FAST, data=(answered_file,)))
    assert codes(report) == {"memory-grows"}
    assert "float32[" in fault(report, "memory-grows").message


def test_peaked_layers_are_told_beside_a_fault_that_they_explain_and_not_beside_nothing_found(
    builders: Path, answered_file: str
) -> None:
    sane = check_gradients(f"{builders}:plain", replace(FAST, data=(answered_file,)))
    assert (sane.faults, sane.notes, sane.facts["peaked_layers"]) == ((), (), [])
    carried = check_gradients(f"{builders}:one_token", replace(FAST, data=(answered_file,)))
    assert carried.facts["peaked_layers"]
    assert "few elements carry it" in " ".join(carried.notes)


def test_updates_that_bfloat16_weights_cannot_hold_are_told(checkpoint: Any, answered_file: str) -> None:
    options = replace(FAST, data=(answered_file,))
    assert "lost-updates" in codes(check_gradients(str(checkpoint(rate=1e-7, dtype="bfloat16")), options))
    assert "lost-updates" not in codes(check_gradients(str(checkpoint(rate=1e-7)), options))


def test_a_damaged_optimizer_file_is_no_reason_to_fail_and_nothing_in_it_is_run(
    policy_dir: Path, tmp_path: Path
) -> None:
    import pickle

    from grpo_sentinel.preflight.optimizer_state import read_optimizer_state

    class Evil:
        def __reduce__(self) -> Any:
            return (print, ("run",))

    (tmp_path / "optimizer.pt").write_bytes(pickle.dumps(Evil()))
    assert isinstance(read_optimizer_state(tmp_path), str)
    (tmp_path / "optimizer.pt").write_bytes(b"PK\x03\x04 cut")
    assert "cut short" in str(read_optimizer_state(tmp_path))


def test_the_command_prints_its_schema(policy_dir: Path, answered_file: str, capsys: Any) -> None:
    arguments = ["check", "gradients", str(policy_dir), "--data", answered_file, "--samples", "4"]
    assert main([*arguments, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["schema"], body["version"]) == ("grpo-sentinel/gradients-check", 1)
    assert main(arguments) == 0
    assert "layers model.layers.0: count" in capsys.readouterr().out
