"""A tiny TRL run whose reward function gives infinity from its 5th call on, which a factor of the loss turns into NaN.

    grpo_loop.py ASSETS OUT

`build` is what a user writes for `grpo-sentinel reproduce`: the trainer, as it is built before training.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "integrations"))

import torch
from datasets import Dataset
from tiny import prompts
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

calls = [0]


def length_reward(completions, **kwargs):
    calls[0] += 1
    bad = calls[0] >= 5
    return [float("inf") if bad and n == 1 else len(one[0]["content"]) / 10 for n, one in enumerate(completions)]


class OwnLoss(GRPOTrainer):
    """Has a factor that is one, unless an advantage is: an infinite reward makes those of its group so."""

    def _compute_loss(self, model, inputs):
        scale = torch.log(inputs["advantages"].abs().min())
        return super()._compute_loss(model, inputs) * (1.0 + 0.0 * scale)


def build(assets=None, out="/nonexistent"):
    torch.set_num_threads(1)
    assets = assets or os.environ["TINY_ASSETS"]
    args = GRPOConfig(
        output_dir=str(out), per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4,
        max_completion_length=8, max_steps=12, learning_rate=1e-3, report_to=[], save_strategy="no", use_cpu=True,
        logging_steps=1, disable_tqdm=True, beta=0.0,
    )  # fmt: skip
    return OwnLoss(
        model=AutoModelForCausalLM.from_pretrained(assets), reward_funcs=length_reward, args=args,
        train_dataset=Dataset.from_list(prompts()), processing_class=PreTrainedTokenizerFast.from_pretrained(assets),
    )  # fmt: skip


if __name__ == "__main__":
    import grpo_sentinel

    trainer = build(sys.argv[1], sys.argv[2])
    grpo_sentinel.attach(trainer)
    trainer.train()
