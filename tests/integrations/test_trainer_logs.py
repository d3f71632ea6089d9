"""Our values in the log call of a real Trainer, where its own reporters see them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "sinks"))

import tiny
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

import grpo_sentinel
from grpo_sentinel.integrations.trainer_logs import append_to_logs

pytestmark = pytest.mark.torch
NAMES = ["gradient.norm_preclip", "policy.loss", "no.such_signal"]


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        ids = torch.arange(8) + index
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


class Reporter(TrainerCallback):
    """Comes before ours in the order of adding, as W&B's callback does."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **kw):
        self.logs.append(dict(logs))


def trainer(tmp_path, reporter=None, **changes):
    model = AutoModelForCausalLM.from_pretrained(tiny.build(tmp_path / "model"))
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=4, per_device_train_batch_size=2, logging_steps=1, use_cpu=True,
        save_strategy="no", disable_tqdm=True, **{"report_to": [], **changes},
    )  # fmt: skip
    return Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=[reporter] if reporter else None)


def test_reporters_that_were_there_before_see_the_newest_values(tmp_path):
    reporter = Reporter()
    one = trainer(tmp_path, reporter)
    append_to_logs(one, NAMES)
    grpo_sentinel.attach(one)
    one.train()
    steps = [logs for logs in reporter.logs if "loss" in logs]
    assert len(steps) == 4
    last = steps[-1]
    assert {name for name in last if name.startswith("sentinel/")} == {
        "sentinel/gradient/norm_preclip",
        "sentinel/policy/loss",
    }
    for logs in steps:
        assert logs["sentinel/gradient/norm_preclip"] == pytest.approx(float(logs["grad_norm"]))


def test_a_trainer_that_nobody_watches_logs_as_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("grpo_sentinel.agent.entry._current", None)
    reporter = Reporter()
    one = trainer(tmp_path, reporter)
    append_to_logs(one, NAMES)
    one.train()
    assert not any(name.startswith("sentinel/") for logs in reporter.logs for name in logs)


@pytest.mark.slow
def test_the_trainers_own_wandb_run_holds_them_at_its_own_step(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    from bad_sinks import eventually
    from wandb_stand_in import read

    for name, value in {"API_KEY": "0" * 40, "MODE": "offline", "DIR": str(tmp_path), "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    one = trainer(tmp_path, report_to=["wandb"])
    append_to_logs(one, NAMES)
    grpo_sentinel.attach(one)
    one.train()
    import wandb

    wandb.finish()
    wanted = {"train/sentinel/gradient/norm_preclip", "train/sentinel/policy/loss"}

    def logged():
        return {
            name
            for path in tmp_path.rglob("*.wandb")
            for row in read(path)["rows"]
            for name in row
            if "sentinel" in name
        }

    eventually(lambda: logged() == wanted, f"the run holds {wanted}")
