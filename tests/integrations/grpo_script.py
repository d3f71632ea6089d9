"""An ordinary TRL script, with faults put in from outside; it does not know of the sentinel unless told to attach.

    python grpo_script.py ASSETS OUT '{"steps": 4, "fault": "local_nan", ...}'

Writes OUT/rank{R}.json: losses and rewards TRL logged, digest and state of the weights, how it ended.
"""

import hashlib
import json
import math
import os
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
ASSETS, OUT, OPTIONS = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
RANK = int(os.environ.get("RANK", "0"))
if OPTIONS.get("directories"):
    os.environ["GRPO_SENTINEL_DIR"] = OPTIONS["directories"][RANK]

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from tiny import prompts  # noqa: E402
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

torch.set_num_threads(1)
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    from datetime import timedelta

    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=60))


def length_reward(completions, **kwargs):
    return [len(completion[0]["content"]) / 10 for completion in completions]


def vowel_reward(completions, **kwargs):
    return [sum(letter in "aeiou" for letter in completion[0]["content"]) for completion in completions]


class Log(TrainerCallback):
    def __init__(self):
        self.rows = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        kept = {k: v for k, v in logs.items() if not k.startswith(("train_", "step_time", "epoch")) and "time" not in k}
        self.rows.append({"step": state.global_step, **kept})


log = Log()
tokenizer = PreTrainedTokenizerFast.from_pretrained(ASSETS)
tokenizer.model_input_names = ["input_ids", "attention_mask"]
config = GRPOConfig(
    output_dir=os.path.join(OUT, "checkpoints"),
    per_device_train_batch_size=4,
    num_generations=4,
    gradient_accumulation_steps=OPTIONS.get("accumulation", 1),
    num_iterations=OPTIONS.get("iterations", 1),
    max_completion_length=6,
    max_steps=OPTIONS.get("steps", 4),
    learning_rate=1e-3,
    beta=OPTIONS.get("beta", 0.0),
    logging_steps=1,
    save_strategy="no",
    eval_strategy="steps" if OPTIONS.get("eval_steps") else "no",
    eval_steps=OPTIONS.get("eval_steps", 500),
    per_device_eval_batch_size=4,
    report_to=[],
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    disable_tqdm=True,
    dataloader_pin_memory=False,
    dataloader_num_workers=OPTIONS.get("workers", 0),
    seed=0,
    ddp_backend="gloo" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else None,
)
callbacks = [log]
if OPTIONS.get("attach") == "callback":
    from grpo_sentinel.integrations.transformers import SentinelCallback

    callbacks.append(SentinelCallback())
trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(ASSETS).float(),
    reward_funcs=[length_reward, vowel_reward],
    args=config,
    train_dataset=Dataset.from_list(prompts()),
    eval_dataset=Dataset.from_list(prompts(4)) if OPTIONS.get("eval_steps") else None,
    processing_class=tokenizer,
    callbacks=callbacks,
)


def due():
    return trainer.state.global_step + 1 >= OPTIONS.get("fault_step", 3) and OPTIONS.get("fault_rank", 1) == RANK


fault = OPTIONS.get("fault")
if fault == "local_nan":
    victim = dict(trainer.model.named_parameters())["model.layers.1.mlp.up_proj.weight"]

    def spoil(gradient):
        if due():
            gradient = gradient.clone()
            gradient.view(-1)[0] = math.nan
        return gradient

    victim.register_hook(spoil)
elif fault in ("reduced_nan", "raise", "sleep"):
    training_step = trainer.training_step

    def faulty_step(*args, **kwargs):
        if fault == "raise" and due():
            raise RuntimeError("injected into the training step")
        if fault == "sleep" and due():
            time.sleep(3)
        loss = training_step(*args, **kwargs)
        if fault == "reduced_nan" and due() and trainer.state.global_step + 1 == OPTIONS.get("fault_step", 3):
            next(iter(trainer.model.parameters())).grad.view(-1)[0] = math.nan
        return loss

    trainer.training_step = faulty_step

if OPTIONS.get("halt_at"):
    from grpo_sentinel.protocol import run_dir, write_control
    from grpo_sentinel.records import Action, ControlWord

    class Ask(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            step, rank, action = OPTIONS["halt_at"]
            if state.global_step + 1 == step and rank == RANK:
                from pathlib import Path

                directory = run_dir(Path(os.environ["GRPO_SENTINEL_DIR"]), os.environ["GRPO_SENTINEL_RUN_ID"])
                write_control(
                    directory, ControlWord(request_id=7, action=Action[action], reason="test", requested_by="user")
                )

    trainer.add_callback(Ask())

if OPTIONS.get("attach") == "explicit":
    import grpo_sentinel

    grpo_sentinel.attach(trainer)

ended = "finished"
try:
    trainer.train()
    if OPTIONS.get("twice"):
        trainer.args.max_steps *= 2
        trainer.train(resume_from_checkpoint=OPTIONS.get("twice") == "resume")
except BaseException as error:  # noqa: BLE001 - the test wants to know
    ended = f"{type(error).__name__}: {error}"
weights = b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())
result = {
    "ended": ended,
    "step": trainer.state.global_step,
    "log": log.rows,
    "weights": hashlib.sha256(weights).hexdigest(),
    "finite": all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters()),
    "wrapped": sorted(
        k for k in vars(trainer) if callable(vars(trainer)[k]) and not isinstance(vars(trainer)[k], torch.nn.Module)
    ),
}
with open(os.path.join(OUT, f"rank{RANK}.json"), "w") as out:
    json.dump(result, out)
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
if ended != "finished":
    raise SystemExit(1)
