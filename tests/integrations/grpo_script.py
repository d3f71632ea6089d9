"""An ordinary TRL script, with faults put in from outside; it does not know of the sentinel unless told to attach.

    python grpo_script.py SCENARIOS.json ASSETS        one training after the other, see `ranks.Scenarios`

Each writes rank{R}.json: losses and rewards TRL logged, digest and state of the weights, how it ended.
"""

import asyncio
import hashlib
import json
import math
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
ASSETS = sys.argv[2]
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from scenarios import each_scenario  # noqa: E402
from tiny import prompts  # noqa: E402
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

torch.set_num_threads(1)
if os.environ.get("ACCELERATE_USE_DEEPSPEED"):
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else a compiler runs


def length_reward(completions, **kwargs):
    return [len(completion[0]["content"]) / 10 for completion in completions]


def vowel_reward(completions, **kwargs):
    return [sum(letter in "aeiou" for letter in completion[0]["content"]) for completion in completions]


def long_reward(completions, **kwargs):
    return [float(len(completion[0]["content"]) > 12) for completion in completions]


async def async_reward(completions, **kwargs):
    await asyncio.sleep(0.05)
    return [float(len(completion[0]["content"]) % 3) for completion in completions]


def reward_model(tokenizer):
    """A reward model as people forget it: dropout on, trainable, in training mode, its head's bias far from zero."""
    from transformers import Qwen3Config, Qwen3ForSequenceClassification

    config = Qwen3Config(vocab_size=320, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, head_dim=8,
                         num_key_value_heads=1, intermediate_size=16, num_labels=1, attention_dropout=0.1,
                         pad_token_id=tokenizer.pad_token_id)  # fmt: skip
    model = Qwen3ForSequenceClassification(config)
    model.score = torch.nn.Linear(16, 1)
    model.score.bias.data.fill_(7.0)
    return model


class Log(TrainerCallback):
    def __init__(self):
        self.rows = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        kept = {k: v for k, v in logs.items() if not k.startswith(("train_", "step_time", "epoch")) and "time" not in k}
        self.rows.append({"step": state.global_step, **kept})


class Ask(TrainerCallback):
    """Write a request into the control file while a step is on."""

    def __init__(self, step, rank, action):
        self.step, self.rank, self.action = step, rank, action

    def on_step_begin(self, args, state, control, **kwargs):
        from grpo_sentinel.protocol import run_dir, write_control
        from grpo_sentinel.records import Action, ControlWord

        if state.global_step + 1 == self.step and self.rank == RANK:
            directory = run_dir(Path(os.environ["GRPO_SENTINEL_DIR"]), os.environ["GRPO_SENTINEL_RUN_ID"])
            word = ControlWord(request_id=7, action=Action[self.action], reason="test", requested_by="user")
            write_control(directory, word)


class BehindTheSchedule(TrainerCallback):
    """Set a learning rate of 10 for one step, past the scheduler."""

    def __init__(self, step):
        self.step = step

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        if state.global_step + 1 == self.step:
            for group in optimizer.param_groups:
                group["lr"] = 10.0


def make_trainer(out, options, log):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(ASSETS)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    wanted = {
        "output_dir": os.path.join(out, "checkpoints"),
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "gradient_accumulation_steps": options.get("accumulation", 1),
        "num_iterations": options.get("iterations", 1),
        "max_completion_length": options.get("completion", 6),
        "max_steps": options.get("steps", 4),
        "learning_rate": 1e-3,
        "beta": options.get("beta", 0.0),
        "max_grad_norm": options.get("max_grad_norm", 1.0),
        "logging_steps": 1,
        "save_strategy": "no",
        "eval_strategy": "steps" if options.get("eval_steps") else "no",
        "eval_steps": options.get("eval_steps", 500),
        "per_device_eval_batch_size": 4,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "dataloader_num_workers": options.get("workers", 0),
        "seed": 0,
        "ddp_backend": "gloo" if WORLD > 1 else None,
    }
    callbacks = [log]
    if options.get("attach") == "callback":
        from grpo_sentinel.integrations.transformers import SentinelCallback

        callbacks.append(SentinelCallback())
    if options.get("halt_at"):
        callbacks.append(Ask(*options["halt_at"]))
    if options.get("lr_behind_the_schedule"):
        callbacks.append(BehindTheSchedule(options["lr_behind_the_schedule"]))
    known = GRPOConfig.__dataclass_fields__
    model = AutoModelForCausalLM.from_pretrained(ASSETS).to(getattr(torch, options.get("dtype", "float32")))
    scorers, extra = [length_reward, vowel_reward], {}
    if options.get("reward_model"):
        scorers.append(reward_model(tokenizer))
        extra["reward_processing_classes"] = [None, None, tokenizer]
    if options.get("async_reward"):
        scorers.append(async_reward)
    if options.get("binary"):
        scorers = [long_reward]
    if options.get("lora"):
        from peft import LoraConfig

        extra["peft_config"] = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return GRPOTrainer(
        model=model,
        reward_funcs=scorers,
        **extra,
        args=GRPOConfig(**{name: value for name, value in wanted.items() if name in known}),
        train_dataset=Dataset.from_list(prompts()),
        eval_dataset=Dataset.from_list(prompts(4)) if options.get("eval_steps") else None,
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def add_sampling_log_probs(trainer):
    """What a rollout engine gives besides the tokens: its own log-probs, a little off."""
    generate = trainer._generate_and_score_completions

    def with_log_probs(*args, **kwargs):
        output = generate(*args, **kwargs)
        output["sampling_per_token_logps"] = output["old_per_token_logps"] + 0.01
        return output

    trainer._generate_and_score_completions = with_log_probs


def work_on_the_same_samples(trainer):
    """Every rank draws the first rank's prompts, and its random numbers."""
    generate = trainer._generate_and_score_completions

    def same(inputs, *args, **kwargs):
        everyones = [None] * WORLD
        torch.distributed.all_gather_object(everyones, inputs)
        torch.manual_seed(trainer.state.global_step)
        return generate(everyones[0], *args, **kwargs)

    trainer._generate_and_score_completions = same


def leave_the_adapter_on(trainer):
    """The reference pass of a LoRA run with its adapter on: KL is 0 for ever."""
    import contextlib

    import trl.trainer.grpo_trainer as module

    module.use_adapter = lambda *args, **kwargs: contextlib.nullcontext()


def put_fault(trainer, options):
    if options.get("sampling"):
        add_sampling_log_probs(trainer)
    if options.get("same_samples"):
        work_on_the_same_samples(trainer)
    if options.get("adapter_left_on"):
        leave_the_adapter_on(trainer)
    fault, first = options.get("fault"), options.get("fault_step", 3)

    def due():
        return trainer.state.global_step + 1 >= first and options.get("fault_rank", 1) == RANK

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
            if fault == "reduced_nan" and due() and trainer.state.global_step + 1 == first:
                next(iter(trainer.model.parameters())).grad.view(-1)[0] = math.nan
            return loss

        trainer.training_step = faulty_step


def run(out, options):
    log = Log()
    trainer = make_trainer(out, options, log)
    put_fault(trainer, options)
    if options.get("attach") == "explicit":
        import grpo_sentinel

        grpo_sentinel.attach(trainer)
    ended = "finished"
    try:
        trainer.train()
        if options.get("twice"):
            trainer.args.max_steps *= 2
            trainer.train(resume_from_checkpoint=options.get("twice") == "resume")
    except BaseException as error:  # noqa: BLE001 - the test wants to know
        ended = f"{type(error).__name__}: {error}"
    weights = b"".join(p.detach().float().numpy().tobytes() for p in trainer.model.parameters())
    wrapped = (k for k, v in vars(trainer).items() if callable(v) and not isinstance(v, torch.nn.Module))
    return {
        "ended": ended,
        "step": trainer.state.global_step,
        "log": log.rows,
        "weights": hashlib.sha256(weights).hexdigest(),
        "finite": all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters()),
        "wrapped": sorted(wrapped),
    }


if WORLD > 1:
    from datetime import timedelta

    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
for folder, chosen in each_scenario(sys.argv[1], RANK):
    (Path(folder) / f"rank{RANK}.json").write_text(json.dumps(run(folder, chosen)))
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
