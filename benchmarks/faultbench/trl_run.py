"""TRL's own GRPOTrainer with the same sites for faults as the plain loop, watched by `grpo_sentinel.attach(trainer)`.

made, batch   what `_generate_and_score_completions` gives      score/NAME   what a reward function returns
step          before `training_step`                            loss         what `compute_loss` gives
gradients     after `training_step`, before clipping            update       before the optimizer, updated: inside it
"""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
    TrainerCallback,
)
from transformers.utils import logging as quiet
from trl import GRPOConfig, GRPOTrainer

import grpo_sentinel
from benchmarks.faultbench.fault import Mechanism, Sites

SCORERS = ("accuracy", "judge")


def accuracy(prompts: list[Any], completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """1 when the last word is the answer, 0.3 when it begins like it, else 0; a little for a short answer."""
    scores = []
    for completion, wanted in zip(completions, answer, strict=True):
        text = completion[0]["content"]
        words = text.split()
        last = words[-1] if words else ""
        scores.append((1.0 if last == wanted else 0.3 if last.startswith(wanted[0]) else 0.0) + 0.2 / (1 + len(words)))
    return scores


def _with_examples(row: dict[str, Any], index: int) -> dict[str, Any]:
    """Put up to seven worked sums before the question: prompts of 10 to 90 tokens."""
    draw = random.Random(index)
    pairs = [(draw.randint(0, 9), draw.randint(0, 9)) for _ in range(index % 8)]
    shown = " ".join(f"{a} + {b} = {a + b} ." for a, b in pairs)
    return {"prompt": [{"role": "user", "content": f"{shown} {row['prompt'][0]['content']}".strip()}]}


class TrlRun:
    """One rank of one run."""

    def __init__(self, folder: Path, mechanism: Mechanism, seed: int, *, attach: bool = True) -> None:
        quiet.disable_progress_bar()
        self.folder, self.attach = folder, attach
        self.sites = Sites()
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.sites.rank = self.rank
        self.draw = random.Random(1000 * seed + self.rank)
        self.losses_nonfinite: list[int] = []
        assets = folder.parents[1] / "assets" / "trl"
        config = dict(mechanism.config)
        policy = AutoModelForCausalLM.from_pretrained(assets / "policy", dtype=torch.float32)
        judge = AutoModelForSequenceClassification.from_pretrained(assets / "reward_model", dtype=torch.float32)
        judge.eval().requires_grad_(False)
        self.policy, self.judge = policy, judge
        extra: dict[str, Any] = {}
        if config.pop("lora", False):
            from peft import LoraConfig

            extra["peft_config"] = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"])
        arguments = GRPOConfig(
            output_dir=str(folder),
            max_steps=int(config.pop("steps", mechanism.steps)),
            per_device_train_batch_size=12,
            num_generations=6,
            max_completion_length=int(config.pop("max_completion_length", 12)),
            learning_rate=config.pop("learning_rate", 5e-5),
            warmup_steps=int(config.pop("warmup", 4)),
            num_iterations=config.pop("iterations", 1),
            beta=config.pop("beta", 0.0),
            max_grad_norm=1.0,
            save_strategy="steps",
            save_steps=int(config.pop("save_every", 5)),
            save_only_model=True,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            disable_tqdm=True,
            seed=seed,
            **{"lr_scheduler_type": "constant_with_warmup", **config.pop("grpo", {})},
        )
        rows = load_dataset(
            "json",
            data_files=str(assets / "train.jsonl"),
            split="train",
            cache_dir=str(assets / "cache"),
            keep_in_memory=True,
        )
        if config.pop("mixed_lengths", False):
            rows = rows.map(_with_examples, with_indices=True, keep_in_memory=True)
        self.trainer = GRPOTrainer(
            model=policy,
            reward_funcs=[self._scored("accuracy", accuracy), judge],
            args=arguments,
            train_dataset=rows,
            processing_class=PreTrainedTokenizerFast.from_pretrained(assets / "policy"),
            reward_processing_classes=[None, PreTrainedTokenizerFast.from_pretrained(assets / "reward_model")],
            **extra,
        )
        judge.register_forward_hook(self._judged)
        self._open_sites()

    # ---- what injectors use

    def scorer_names(self) -> tuple[str, ...]:
        return SCORERS

    def named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, p) for name, p in self.trainer.model.named_parameters() if p.requires_grad]

    @property
    def optimizer(self) -> Any:
        return self.trainer.optimizer

    def note_fault(self) -> None:
        fact = {"step": self.sites.first_act, "wall_ns": time.time_ns()}
        (self.folder / f"fault-rank{self.rank}.json").write_text(json.dumps(fact))

    # ---- sites

    def _scored(self, name: str, function: Any) -> Any:
        def score(*args: Any, **kwargs: Any) -> Any:
            return self.sites.pass_through(f"score/{name}", function(*args, **kwargs))

        score.__name__ = name
        return score

    def _judged(self, module: Any, inputs: Any, output: Any) -> Any:
        before = output.logits[:, 0]
        after = self.sites.pass_through("score/judge", before)
        if after is not before:
            output.logits = torch.as_tensor([math.nan if x is None else float(x) for x in after]).unsqueeze(1)
        return output

    def _open_sites(self) -> None:
        trainer, sites = self.trainer, self.sites
        generate, step, loss_of = trainer._generate_and_score_completions, trainer.training_step, trainer.compute_loss

        def _generate_and_score_completions(inputs: Any) -> Any:
            sites.step = trainer.state.global_step + 1
            return sites.pass_through("batch", sites.pass_through("made", generate(inputs)))

        def training_step(*args: Any, **kwargs: Any) -> Any:
            sites.step = trainer.state.global_step + 1
            sites.pass_through("step")
            result = step(*args, **kwargs)
            sites.pass_through("gradients", self.named_parameters())
            return result

        def compute_loss(*args: Any, **kwargs: Any) -> Any:
            loss = sites.pass_through("loss", loss_of(*args, **kwargs))
            if not math.isfinite(float(loss.detach())):
                self.losses_nonfinite.append(sites.step)
            return loss

        trainer._generate_and_score_completions = _generate_and_score_completions
        trainer.training_step, trainer.compute_loss = training_step, compute_loss
        trainer.add_callback(_Sites(self))

    # ---- the run

    def run(self) -> None:
        """Train as a script would: attach, train."""
        if self.attach:
            grpo_sentinel.attach(self.trainer)
        self.trainer.train()


class _Sites(TrainerCallback):
    def __init__(self, run: TrlRun) -> None:
        self.run = run
        self.log = (run.folder / "log.jsonl").open("w", buffering=1) if run.rank == 0 else None

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        inner = getattr(optimizer, "optimizer", optimizer)
        inner.register_step_post_hook(lambda *a: self.run.sites.pass_through("updated", inner) and None)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        self.run.sites.pass_through("update", getattr(optimizer, "optimizer", optimizer))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if self.log is not None and logs and "loss" in logs:
            row = {
                name: float(value)
                for name, value in logs.items()
                if isinstance(value, (int, float, str)) and _number(value)
            }
            self.log.write(json.dumps({"step": state.global_step, **row}) + "\n")


def _number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
