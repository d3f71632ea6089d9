"""A model of the wrong kind is refused in one sentence, whatever transformers would make of it; every right form is taken."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import models_made
import pytest

from grpo_sentinel.cli import main
from grpo_sentinel.preflight.gradients import GradientOptions, check_gradients
from grpo_sentinel.preflight.policy import PolicyOptions, check_policy
from grpo_sentinel.preflight.report import CheckReport
from grpo_sentinel.preflight.reward import RewardOptions, check_reward

pytestmark = pytest.mark.torch
FAST = PolicyOptions(samples=8, max_tokens=4)


def codes(report: CheckReport) -> set[str]:
    return {fault.code for fault in report.faults}


@pytest.fixture(scope="module")
def kinds(policy_dir: Path, reward_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories with the policy's tokenizer and another model: one name each."""
    import transformers

    root = tmp_path_factory.mktemp("kinds")
    made = transformers.AutoTokenizer.from_pretrained(policy_dir)
    small = models_made.config(made, tie_word_embeddings=False)
    llama = transformers.LlamaConfig(
        vocab_size=320, hidden_size=48, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, intermediate_size=64,
        max_position_embeddings=256, pad_token_id=made.pad_token_id, eos_token_id=made.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    gpt2 = {
        "vocab_size": 320,
        "n_embd": 48,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 64,
        "pad_token_id": made.pad_token_id,
    }
    models = {
        "headless": transformers.Qwen3Model(small), "llama": transformers.LlamaForCausalLM(llama),
        "short": transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**gpt2, num_labels=1)),
        "few_rows": transformers.Qwen3ForSequenceClassification(models_made.config(made, vocab_size=300, num_labels=1)),
    }  # fmt: skip
    for rows in (300, 384):
        model = transformers.AutoModelForCausalLM.from_pretrained(policy_dir)
        model.resize_token_embeddings(rows, mean_resizing=False)
        models[f"rows_{rows}"] = model
    for name, model in models.items():
        made.save_pretrained(root / name)
        model.save_pretrained(root / name)
    return root


def refused(capsys: Any, *command: str) -> str:
    assert main(["check", *command]) == 2, command
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return str(err)


def test_a_reference_that_is_no_language_model_is_refused_and_nothing_of_its_loading_is_shown(
    policy_dir: Path, reward_dir: Path, kinds: Path, capsys: Any
) -> None:
    for reference, words in (
        (reward_dir, "is a Qwen3ForSequenceClassification"), (kinds / "headless", "lm_head.weight"),
        (kinds / "llama", "is a llama model, the policy"), (kinds / "rows_300", "the reference 300"),
    ):  # fmt: skip
        told = refused(
            capsys, "policy", str(policy_dir), "--reference", str(reference), "--samples", "8", "--max-tokens", "4"
        )
        assert words in told
        assert str(reference) in told


@pytest.mark.parametrize("check", ["policy", "gradients"])
def test_a_policy_that_is_no_language_model_is_refused(reward_dir: Path, kinds: Path, capsys: Any, check: str) -> None:
    assert "classifier has no language-model head" in refused(capsys, check, str(reward_dir))
    assert "without a language-model head" in refused(capsys, check, str(kinds / "headless"))


def test_a_reward_model_that_has_no_head_of_its_own_is_refused(
    policy_dir: Path, kinds: Path, answered_file: str, capsys: Any
) -> None:
    for target in (policy_dir, kinds / "llama"):
        told = refused(capsys, "reward", str(target), "--data", answered_file)
        assert "without a head that scores" in told
        assert "score.weight" in told
    assert "ForCausalLM" in refused(
        capsys, "policy", str(policy_dir), "--reward-model", str(policy_dir), "--samples", "8"
    )


def test_a_tokenizer_that_gives_ids_beyond_the_rows_is_told(kinds: Path, answered_file: str, capsys: Any) -> None:
    assert "beyond its 300 rows" in refused(capsys, "reward", str(kinds / "few_rows"), "--data", answered_file)
    assert "vocabulary" in codes(check_policy(str(kinds / "rows_300"), FAST))


def test_padding_rows_of_a_reference_are_a_note_and_not_another_vocabulary(policy_dir: Path, kinds: Path) -> None:
    report = check_policy(str(policy_dir), replace(FAST, reference=str(kinds / "rows_384")))
    assert report.faults == ()
    assert any("384" in note and "padding" in note for note in report.notes)
    assert report.facts["kl"]["mean"] < 0.05  # type: ignore[index]


def test_a_policy_that_samples_padding_rows_ends_in_a_sentence_and_no_error(policy_dir: Path, kinds: Path) -> None:
    report = check_policy(
        str(kinds / "rows_384"), replace(FAST, reference=str(policy_dir), samples=60, max_tokens=16, seed=2)
    )
    assert "kl" in report.facts or any("beyond the reference's" in line for line in report.not_seen)


def test_texts_beyond_a_reward_models_positions_are_told_by_both_numbers(kinds: Path, answered_file: str) -> None:
    report = check_reward(str(kinds / "short"), [answered_file], RewardOptions(samples=6))
    raised = next(fault for fault in report.faults if fault.code == "raises")
    assert "positions end at 64" in raised.examples[0]
    assert "cut texts" in raised.remedy


def sharded(model: Any, target: Path) -> None:
    model.save_pretrained(target, max_shard_size="40KB")
    assert len(list(target.glob("*.safetensors"))) > 1


def pickled(model: Any, target: Path) -> None:
    import torch

    model.save_pretrained(target)
    (target / "model.safetensors").unlink()
    torch.save(model.state_dict(), target / "pytorch_model.bin")


def in_half(model: Any, target: Path) -> None:
    import torch

    model.to(torch.bfloat16).save_pretrained(target)


def adapter(model: Any, target: Path) -> None:
    import peft

    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    peft.get_peft_model(model, config).save_pretrained(target)


def adapter_with_tokenizer(model: Any, target: Path) -> None:
    """As TRL saves it."""
    import transformers

    adapter(model, target)
    base = json.loads((target / "adapter_config.json").read_text())["base_model_name_or_path"]
    transformers.AutoTokenizer.from_pretrained(base).save_pretrained(target)


@pytest.mark.parametrize("save", [sharded, pickled, in_half, adapter, adapter_with_tokenizer])
def test_every_form_in_which_a_policy_is_saved_is_taken(
    policy_dir: Path, prompts_file: str, tmp_path: Path, save: Callable[[Any, Path], None]
) -> None:
    import transformers

    if save in (adapter, adapter_with_tokenizer):
        pytest.importorskip("peft")
    else:
        transformers.AutoTokenizer.from_pretrained(policy_dir).save_pretrained(tmp_path)
    save(transformers.AutoModelForCausalLM.from_pretrained(policy_dir), tmp_path)
    reference = "" if save is in_half else str(policy_dir)  # bfloat16 against float32 is told, and rightly
    assert (
        codes(check_policy(str(tmp_path), replace(FAST, data=(prompts_file,), reference=reference, trained=True)))
        == set()
    )
    report = check_gradients(str(tmp_path), GradientOptions(samples=4, max_tokens=4, data=(prompts_file,)))
    assert codes(report) == set()
    assert report.facts["parameters"]["frozen"] == (24 if save in (adapter, adapter_with_tokenizer) else 0)  # type: ignore[index]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("without", ["nothing", "template", "padding", "everything"])
def test_a_tokenizer_without_template_padding_or_settings_is_taken(
    policy_dir: Path, prompts_file: str, tmp_path: Path, without: str, side: str
) -> None:
    import transformers

    shutil.copytree(policy_dir, tmp_path / "policy")
    made = transformers.AutoTokenizer.from_pretrained(policy_dir, padding_side=side)
    made.chat_template = None if without == "template" else made.chat_template
    made.pad_token = None if without == "padding" else made.pad_token
    (tmp_path / "policy" / "chat_template.jinja").unlink(missing_ok=True)
    made.save_pretrained(tmp_path / "policy")
    if without == "everything":
        for name in ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
            (tmp_path / "policy" / name).unlink(missing_ok=True)
    assert codes(check_policy(str(tmp_path / "policy"), replace(FAST, data=(prompts_file,)))) == set()


def test_an_adapter_of_a_reward_model_brings_its_head(reward_dir: Path, answered_file: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(reward_dir)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="SEQ_CLS")
    peft.get_peft_model(model, config).save_pretrained(tmp_path)
    report = check_reward(str(tmp_path), [answered_file], RewardOptions(samples=6))
    assert not codes(report) & {"weights-missing", "adapter", "raises", "training-mode"}


def test_an_adapter_whose_base_model_is_elsewhere_is_one_sentence(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "company/model"}))
    for check in ("policy", "gradients"):
        assert "an adapter of company/model" in refused(capsys, check, str(tmp_path))


BUILT = """
import torch, transformers
def _of(kind, path):
    return kind.from_pretrained(path), transformers.AutoTokenizer.from_pretrained({policy!r})
def classifier():
    return _of(transformers.AutoModelForSequenceClassification, {reward!r})
def headless():
    return _of(transformers.AutoModel, {policy!r})
def compiled():
    model, tokenizer = _of(transformers.AutoModelForCausalLM, {policy!r})
    return torch.compile(model), tokenizer
def meta():
    model, tokenizer = _of(transformers.AutoModelForCausalLM, {policy!r})
    return model.to("meta"), tokenizer
"""


def test_a_function_that_builds_what_cannot_be_run_is_told_and_a_compiled_model_is_taken_as_it_was(
    policy_dir: Path, reward_dir: Path, tmp_path: Path, capfd: Any
) -> None:
    (tmp_path / "built.py").write_text(BUILT.format(policy=str(policy_dir), reward=str(reward_dir)))
    for name, words in (("classifier", "cannot generate"), ("headless", "cannot generate"), ("meta", "meta device")):
        assert main(["check", "policy", f"{tmp_path / 'built.py'}:{name}"]) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert words in err.splitlines()[-1]
    assert codes(check_policy(f"{tmp_path / 'built.py'}:compiled", FAST)) == set()


def test_what_stands_in_the_way_of_a_prompt_is_one_sentence(
    policy_dir: Path, prompts_file: str, tmp_path: Path, capsys: Any
) -> None:
    import transformers

    made = transformers.AutoTokenizer.from_pretrained(policy_dir)
    shutil.copytree(policy_dir, tmp_path / "strict")
    (tmp_path / "strict" / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    config = {
        "vocab_size": 320,
        "n_embd": 48,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 64,
        "pad_token_id": made.pad_token_id,
    }
    made.save_pretrained(tmp_path / "short")
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**config)).save_pretrained(tmp_path / "short")
    shutil.copytree(policy_dir, tmp_path / "custom")
    saved = json.loads((tmp_path / "custom" / "config.json").read_text())
    auto = {"AutoConfig": "x.C", "AutoModelForCausalLM": "x.M"}
    (tmp_path / "custom" / "config.json").write_text(json.dumps({**saved, "model_type": "mystery", "auto_map": auto}))
    capsys.readouterr()  # what saving printed
    more = ["--data", prompts_file, "--samples", "8"]
    for check in ("policy", "gradients"):
        assert "refuses this prompt: roles must alternate" in refused(capsys, check, str(tmp_path / "strict"), *more)
        assert "64 positions" in refused(capsys, check, str(tmp_path / "short"), *more, "--max-tokens", "60")
        assert "cannot be loaded" in refused(capsys, check, str(tmp_path / "custom"), *more)
