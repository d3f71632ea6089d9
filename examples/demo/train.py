"""Teach a tiny policy small sums with TRL's GRPOTrainer: an ordinary training script, as a user would write it.

    python examples/demo/train.py --output-dir build/demo/run
    torchrun --standalone --nproc_per_node 2 examples/demo/train.py --output-dir build/demo/run

It knows nothing of grpo-sentinel. `grpo-sentinel launch -- torchrun ... train.py ...` watches it all the same. The
one line that is not ordinary is `faults.attach`, which breaks something on purpose when DEMO_FAULT says so.
"""

from __future__ import annotations

import argparse
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import assets
import faults
import torch
import torch.distributed as dist
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer


def right_answer(prompts: list[Any], completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """Score 1 when the last word is the answer, 0.3 when it begins like it, else 0."""
    scores = []
    for completion, wanted in zip(completions, answer, strict=True):
        words = completion[0]["content"].split()
        last = words[-1] if words else ""
        scores.append(1.0 if last == wanted else 0.3 if last.startswith(wanted[0]) else 0.0)
    return scores


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--assets", type=Path, default=assets.DEFAULT_OUT)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-steps", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--beta", type=float, default=0.0, help="weight of the KL term; 0 trains without a reference")
    parser.add_argument("--max-grad-norm", type=float, default=1.0)
    parser.add_argument("--num-iterations", type=int, default=1)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", default=None, help="checkpoint to go on from")
    return parser.parse_args()


def join_the_group() -> None:
    """Open the process group: transformers gives a CPU group no time limit of its own (ddp_timeout is ignored)."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))


def build_trainer(args: argparse.Namespace) -> GRPOTrainer:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(args.assets / "policy")
    policy = AutoModelForCausalLM.from_pretrained(args.assets / "policy", dtype=torch.float32)
    judge = AutoModelForSequenceClassification.from_pretrained(args.assets / "reward_model", dtype=torch.float32)
    judge.eval().requires_grad_(False)
    config = GRPOConfig(
        output_dir=args.output_dir,
        max_steps=args.steps,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        num_generations=8,
        num_iterations=args.num_iterations,
        max_completion_length=24,
        learning_rate=args.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=2,
        max_grad_norm=args.max_grad_norm,
        beta=args.beta,
        save_strategy="steps",
        save_steps=args.save_steps,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        seed=args.seed,
    )
    return GRPOTrainer(
        model=policy,
        reward_funcs=[right_answer, judge],
        args=config,
        train_dataset=load_dataset("json", data_files=str(args.assets / "train.jsonl"), split="train"),
        processing_class=tokenizer,
        reward_processing_classes=[None, PreTrainedTokenizerFast.from_pretrained(args.assets / "reward_model")],
    )


def main() -> None:
    args = options()
    join_the_group()
    trainer = build_trainer(args)
    faults.attach(trainer, os.environ.get("DEMO_FAULT", "none"))
    trainer.train(resume_from_checkpoint=args.resume)
    trainer.save_state()
    if dist.is_initialized():
        dist.barrier()  # a rank that leaves while the other is still talking to it can abort in gloo's tear-down
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
