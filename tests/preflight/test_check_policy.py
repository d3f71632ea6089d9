"""A policy whose numbers are right passes in silence; each way in which they are wrong is named by its own code."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_sentinel.cli import main
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.kl_coefficient import advise
from grpo_sentinel.preflight.policy import PolicyOptions, check_policy
from grpo_sentinel.preflight.report import CheckReport

pytestmark = pytest.mark.torch
FAST = PolicyOptions(samples=24, max_tokens=8)


def codes(report: CheckReport) -> set[str]:
    return {fault.code for fault in report.faults}


@pytest.fixture
def changed(policy_dir: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the policy whose weights went through a function."""

    def make(change: Callable[[dict[str, Any]], None] | None = None, name: str = "changed") -> Path:
        from safetensors.torch import load_file, save_file

        target = tmp_path / name
        shutil.copytree(policy_dir, target)
        if change is not None:
            tensors = load_file(target / "model.safetensors")
            change(tensors)
            save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
        return target

    return make


def noisy(tensors: dict[str, Any]) -> None:
    import torch

    torch.manual_seed(3)
    for name, one in tensors.items():
        if one.ndim == 2:
            tensors[name] = one + 0.02 * torch.randn_like(one)


def test_a_sane_policy_with_its_reference_and_reward_passes_in_silence(
    policy_dir: Path, reward_dir: Path, prompts_file: str
) -> None:
    report = check_policy(str(policy_dir), replace(
        FAST, reference=str(policy_dir), reward_model=str(reward_dir), data=(prompts_file,), samples=100,
        second=("bfloat16", "eager"),
    ))  # fmt: skip
    assert report.faults == ()
    own: Any = report.facts["own_samples"]
    assert abs(own["nll"] - own["entropy"]) < 6 * own["standard_error"] + 0.02
    assert 0.5 < own["entropy"] < own["ln_vocabulary"]
    assert report.facts["kl"] == {"mean": 0.0, "max": 0.0, "trained": False}
    terms: Any = report.facts["terms"]
    assert all(math.isfinite(terms[name]) for name in ("policy", "kl", "entropy", "total", "gradient_norm"))
    gap: Any = report.facts["engine bfloat16"]
    assert 0 < gap["mean_abs_gap"] < 0.05 < 1 <= gap["tokens"]
    assert any("kl_coef" in line for line in report.not_seen), "equal models have no KL to calibrate on"
    assert report.seconds < 60


def test_weights_that_never_loaded_are_told_by_an_entropy_of_ln_vocabulary(tmp_path: Path) -> None:
    from models_made import policy

    report = check_policy(str(policy(tmp_path, steps=0)), FAST)
    assert "weights-not-loaded" in codes(report)
    assert "ln(320)" in next(fault.message for fault in report.faults if fault.code == "weights-not-loaded")


def test_tensors_that_are_not_in_the_file_are_named(changed: Callable[..., Path]) -> None:
    target = changed(lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    fault = next(one for one in check_policy(str(target), FAST).faults if one.code == "weights-missing")
    assert fault.examples == ("model.layers.1.mlp.up_proj.weight",)


def test_another_reference_is_found_at_the_start_and_calibrates_kl_coef_once_trained(
    policy_dir: Path, changed: Callable[..., Path], tmp_path: Path, prompts_file: str
) -> None:
    reference = changed(noisy)
    (tmp_path / "long.py").write_text(
        "def longer(completions, **kw):\n    return [min(len(str(c)), 60) / 60 for c in completions]\n"
    )
    options = replace(
        FAST, reference=str(reference), reward=f"{tmp_path / 'long.py'}:longer", data=(prompts_file,), samples=100
    )
    assert "kl-at-start" in codes(check_policy(str(policy_dir), options))
    report = check_policy(str(policy_dir), replace(options, trained=True))
    assert codes(report) == set()
    advice: Any = report.facts["kl_coef"]
    assert advice["low"] <= advice["coefficient"] <= advice["high"]
    assert advice["coefficient"] == pytest.approx(0.1 * advice["reward_std"] / advice["kl_std"])
    assert advice["samples"] == 100
    assert any("95 % interval" in note for note in report.notes)


def test_a_checkpoint_that_has_been_trained_is_known_by_its_own_step(
    changed: Callable[..., Path], policy_dir: Path
) -> None:
    target = changed(noisy)
    (target / "trainer_state.json").write_text(json.dumps({"global_step": 40}))
    assert codes(check_policy(str(target), replace(FAST, reference=str(policy_dir)))) == set()


def test_tokenizers_and_templates_that_disagree_are_told(policy_dir: Path, changed: Callable[..., Path]) -> None:
    reference = changed()
    for name in ("chat_template.jinja",):
        (reference / name).write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    assert "chat-template" in codes(check_policy(str(policy_dir), replace(FAST, reference=str(reference))))


def test_nan_weights_end_the_check_by_name_and_what_was_not_judged_is_said(changed: Callable[..., Path]) -> None:
    def spoil(tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = math.nan

    report = check_policy(str(changed(spoil)), FAST)
    assert codes(report) == {"non-finite-weights"}
    assert any("no number means anything" in line for line in report.not_seen)


BUILDERS = '''
import torch, transformers
from pathlib import Path
def _made():
    path = {path!r}
    return (transformers.AutoModelForCausalLM.from_pretrained(path), transformers.AutoTokenizer.from_pretrained(path))
def plain():
    return _made()
def wrapped(change):
    model, tokenizer = _made()
    inner = model.forward
    def forward(input_ids=None, attention_mask=None, **kw):
        return change(inner, input_ids, attention_mask, kw)
    model.forward = forward
    return model, tokenizer
def without_mask():
    return wrapped(lambda inner, ids, mask, kw: inner(input_ids=ids, **kw))
def _replace(out, logits):
    out["logits"] = logits
    return out
def sharper():
    """generate() sees other logits than a pass without cache: the engine is not the trainer."""
    def change(inner, ids, mask, kw):
        out = inner(input_ids=ids, attention_mask=mask, **kw)
        return out if kw.get("use_cache") is False else _replace(out, out.logits * 3)
    return wrapped(change)
def masked():
    def change(inner, ids, mask, kw):
        out = inner(input_ids=ids, attention_mask=mask, **kw)
        logits = out.logits.clone()
        logits[..., -7:] = float("-inf")
        return _replace(out, logits)
    return wrapped(change)
def extreme():
    return wrapped(lambda inner, ids, mask, kw: _replace(out := inner(input_ids=ids, attention_mask=mask, **kw), out.logits * 30))
'''


@pytest.mark.parametrize(("name", "code"), [
    ("plain", ""), ("without_mask", "padding"), ("sharper", "samples-not-own"), ("masked", "masked-logits"),
])  # fmt: skip
def test_each_broken_computation_is_named(
    name: str, code: str, policy_dir: Path, prompts_file: str, tmp_path: Path
) -> None:
    (tmp_path / "builders.py").write_text(BUILDERS.replace("{path!r}", repr(str(policy_dir))))
    found = codes(check_policy(f"{tmp_path / 'builders.py'}:{name}", replace(FAST, data=(prompts_file,), samples=60)))
    assert code in found if code else found == set()


def test_probabilities_that_softmax_loses_are_told(policy_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "builders.py").write_text(BUILDERS.replace("{path!r}", repr(str(policy_dir))))
    report = check_policy(f"{tmp_path / 'builders.py'}:extreme", FAST)
    assert any("log_softmax" in note for note in report.notes)
    assert report.facts["logits"]["zero_probabilities"] > 0  # type: ignore[index]
    assert not any("log_softmax" in note for note in check_policy(str(policy_dir), FAST).notes)


def test_rewards_that_are_all_equal_leave_no_advantage(policy_dir: Path, prompts_file: str, tmp_path: Path) -> None:
    (tmp_path / "flat.py").write_text(
        "def flat(completions, **kw):\n    return [1.0] * len(completions)\n"
        "def nan(completions, **kw):\n    return [float('nan')] * len(completions)\n"
    )
    for name, code in (("flat", "no-advantage"), ("nan", "reward-not-finite")):
        options = replace(FAST, reward=f"{tmp_path / 'flat.py'}:{name}", data=(prompts_file,))
        assert code in codes(check_policy(str(policy_dir), options))


def test_log_probs_of_another_engine_are_compared_from_a_file(policy_dir: Path, tmp_path: Path) -> None:
    import time

    import torch

    from grpo_sentinel.preflight.live.loading import load_policy
    from grpo_sentinel.preflight.live.rollout import generate
    from grpo_sentinel.preflight.live.scoring import score
    from grpo_sentinel.preflight.prompts import built_in_prompts

    loaded = load_policy(str(policy_dir), device="cpu")
    batch = generate(loaded, built_in_prompts(8), group_size=4, max_tokens=8, seed=5, deadline=time.monotonic() + 60)
    logps = score(loaded, batch).logp_BC
    left = batch.ids_BT.shape[1] - batch.width

    def rows(change: Callable[[float], float]) -> str:
        out = []
        for ids, mask, logp in zip(batch.ids_BT, batch.mask_BT, logps, strict=True):
            own = mask[left:]
            out.append(json.dumps({
                "prompt_ids": ids[:left][mask[:left]].tolist(), "completion_ids": ids[left:][own].tolist(),
                "logprobs": [change(one) for one in logp[own].tolist()],
            }))  # fmt: skip
        path = tmp_path / "engine.jsonl"
        path.write_text("\n".join(out) + "\n")
        return str(path)

    assert codes(check_policy(str(policy_dir), replace(FAST, second=(rows(lambda one: one + 1e-3),)))) == set()
    assert codes(check_policy(str(policy_dir), replace(FAST, second=(rows(lambda one: one / 0.7),)))) == {
        "engines-differ"
    }
    (tmp_path / "bad.jsonl").write_text('{"prompt_ids": [1], "completion_ids": [2, 3], "logprobs": [0.0]}\n')
    with pytest.raises(SentinelError, match="one of logprobs"):
        check_policy(str(policy_dir), replace(FAST, second=(str(tmp_path / "bad.jsonl"),)))
    assert torch.isfinite(logps).all()


def test_kl_coef_advice_is_uncertain_with_few_samples_and_sure_with_many() -> None:
    import random

    rng = random.Random(1)
    rewards, kls = [rng.gauss(0, 1) for _ in range(400)], [abs(rng.gauss(0.1, 0.02)) for _ in range(400)]
    many, few = advise(rewards, kls), advise(rewards[:8], kls[:8])
    assert many is not None
    assert few is not None
    assert many.coefficient == pytest.approx(0.1 / 0.02, rel=0.15)
    assert many.low < many.coefficient < many.high
    assert many.certain
    assert not few.certain
    assert few.high - few.low > many.high - many.low
    assert advise(rewards, [0.0] * 400) is None


def test_the_command_prints_its_schema_and_usage_errors_are_one_sentence(
    policy_dir: Path, prompts_file: str, tmp_path: Path, capsys: Any
) -> None:
    assert (
        main(
            [
                "check",
                "policy",
                str(policy_dir),
                "--data",
                prompts_file,
                "--samples",
                "8",
                "--max-tokens",
                "4",
                "--json",
            ]
        )
        == 0
    )
    body = json.loads(capsys.readouterr().out)
    assert (body["schema"], body["version"], body["clean"]) == ("grpo-sentinel/policy-check", 1, True)
    (tmp_path / "notes.txt").write_text("")
    for target, more in (("nowhere", []), (str(tmp_path), []), (f"{prompts_file}:f", []), (str(policy_dir), ["--data", "none.jsonl"]),
                         (str(policy_dir), ["--second", "none.jsonl", "--samples", "8"])):  # fmt: skip
        assert main(["check", "policy", target, *more]) == 2, target
        assert capsys.readouterr().err.count("\n") == 1


def test_every_code_of_the_check_is_documented() -> None:
    import re

    root = Path(__file__).resolve().parents[2]
    text = (root / "docs" / "checks.md").read_text()
    for name in ("policy_judge", "policy_check", "engines", "gradient_check", "gradient_memory", "loading"):
        source = (root / "grpo_sentinel" / "preflight" / "live" / f"{name}.py").read_text()
        found = re.findall(
            r'(?:broken|doubtful|cannot_tell)\(\s*"([a-z0-9-]+)"|code="([a-z0-9-]+)"|level, "([a-z0-9-]+)"', source
        )
        for code in {one or two or three for one, two, three in found}:
            assert f"`{code}`" in text, code
    state = (root / "grpo_sentinel" / "preflight" / "optimizer_state.py").read_text()
    for code in re.findall(r'broken\(\s*"([a-z-]+)"|code="([a-z-]+)"', state):
        assert f"`{code[0] or code[1]}`" in text, code


def test_a_tokenizer_without_padding_token_is_a_note_with_what_stands_in_for_it(
    policy_dir: Path, changed: Callable[..., Path]
) -> None:
    from transformers import AutoTokenizer

    target = changed(name="unpadded")
    tokenizer = AutoTokenizer.from_pretrained(target)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(target)
    report = check_policy(str(target), FAST)
    (note,) = [one for one in report.notes if "padding token" in one]
    assert "<|im_end|> stands in" in note
    assert not any("padding token" in one for one in check_policy(str(policy_dir), FAST).notes)


def test_a_few_samples_that_are_all_the_same_token_are_no_sign_of_another_sampler(
    policy_dir: Path, tmp_path: Path
) -> None:
    data = tmp_path / "a.csv"
    data.write_text("prompt,answer\n" + "".join(f"what is {n}?,{n}\n" for n in range(40)))
    for seed in (0, 2):
        report = check_policy(str(policy_dir), PolicyOptions(samples=8, max_tokens=4, data=(str(data),), seed=seed))
        assert report.faults == ()
