"""TRL's own GRPOTrainer on two ranks, with the same faults; the script only attaches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from chaos_faults import Fault
from chaos_loop import note_saved, wait_for_the_sidecar
from chaos_plan import NAN, Case
from datasets import Dataset
from tiny import prompts
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from transformers.utils import logging as quiet
from trl import GRPOConfig, GRPOTrainer

import grpo_sentinel

STEPS, LONG = 18, 200


class Saved(TrainerCallback):
    """Notes whole checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            note_saved(self.folder, Path(args.output_dir) / f"checkpoint-{state.global_step}")


def run(case: Case, folder: Path, out: Path, assets: Path) -> None:
    """One rank of one run; writes rank<R>.json at its end."""
    quiet.disable_progress_bar()
    rank = dist.get_rank()
    fault = Fault(case, rank, folder)
    trainer: Any = None

    def now() -> int:
        return int(trainer.state.global_step) + 1

    def length(completions: list[Any], **_: Any) -> list[float]:
        fault.at("reward", now())
        return [len(completion[0]["content"]) / 10 for completion in completions]

    arguments = GRPOConfig(
        output_dir=str(out), max_steps=LONG if case.fault == NAN else STEPS, per_device_train_batch_size=4,
        num_generations=4, max_completion_length=6, learning_rate=1e-4, save_strategy="steps", save_steps=2,
        save_total_limit=2, logging_steps=1, report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False,
        dataloader_pin_memory=False, disable_tqdm=True, seed=case.number, ddp_backend="gloo",
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(assets, dtype=torch.float32), reward_funcs=[length],
        args=arguments, train_dataset=Dataset.from_list(prompts()),
        processing_class=PreTrainedTokenizerFast.from_pretrained(assets), callbacks=[Saved(folder)],
    )  # fmt: skip
    _open(trainer, fault, out, now)
    grpo_sentinel.attach(trainer)
    wait_for_the_sidecar()
    trainer.train()
    state = trainer.state
    halted = state.global_step if state.global_step < arguments.max_steps else 0
    (folder / f"rank{rank}.json").write_text(json.dumps({"step": state.global_step, "halted_at": halted}))


def _open(trainer: Any, fault: Fault, out: Path, now: Any) -> None:
    """Put the places where the fault can act into the trainer, before the sentinel wraps it."""
    generate, loss_of, step = trainer._generate, trainer.compute_loss, trainer.training_step
    save = trainer._save

    def _generate(*args: Any, **kwargs: Any) -> Any:
        fault.at("generate", now())
        return generate(*args, **kwargs)

    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        fault.at("forward", now())
        loss = loss_of(*args, **kwargs)
        fault.at("backward", now())
        return loss

    def training_step(*args: Any, **kwargs: Any) -> Any:
        result = step(*args, **kwargs)
        fault.at("optimizer", now())
        return result

    def _save(output_dir: Any = None, *args: Any, **kwargs: Any) -> Any:
        done = now() - 1
        fault.fill_the_disk(out, done)
        result = save(output_dir, *args, **kwargs)

        def half() -> None:
            weights = Path(output_dir) / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[:10_000])

        fault.at("save", done, half)
        return result

    trainer._generate, trainer.compute_loss = _generate, compute_loss
    trainer.training_step, trainer._save = training_step, _save
    last = [p for p in trainer.model.parameters() if p.requires_grad][-1]
    last.register_hook(lambda g: g * float("nan") if fault.poisoned else None)
