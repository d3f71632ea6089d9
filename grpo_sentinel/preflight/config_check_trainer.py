"""Judge a trainer's settings: ranges, batches, clipping and KL, learning rate, precision, lengths, engine, saving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpo_sentinel.preflight.config_check_batches import check_batches
from grpo_sentinel.preflight.config_check_judge import Judge
from grpo_sentinel.preflight.config_check_names import Settings
from grpo_sentinel.preflight.config_check_ranges import RANGES
from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import Fault

_TO_ZERO = ("linear", "cosine", "polynomial")  # end at 0 unless told otherwise
_FULL_LR, _ADAPTER_LR = 1e-4, 1e-2  # above these a policy of any size known to us falls apart
_SAVE_STEPS = 500  # of transformers, where nothing is said
_HIGH, _HIGH_SLEEPING = 0.7, 0.9  # share of a GPU for an engine beside the trainer: awake, or asleep while it trains


def check_trainer(settings: Settings) -> tuple[list[Fault], list[str]]:
    """Judge everything; gives faults and notes."""
    judge = Judge(settings)
    for check in (
        _ranges, check_batches, _clipping, _learning_rate, _schedule, _saving, _precision, _lengths, _engine, _others,
    ):  # fmt: skip
        check(judge)
    return judge.faults, judge.notes


def _ranges(judge: Judge) -> None:
    told = {"epsilon"} if _unclipped_below(judge) else set()
    for one in RANGES:
        value = judge.number(one.name)
        if value is not None and one.name not in told and one.wrong(value):
            told.add(one.name)
            judge.fault(one.level, one.code, one.name, one.message.format(f"{value:g}"), one.remedy)


def _unclipped_below(judge: Judge) -> bool:
    """CISPO clips weights from above alone, and its settings say so by bounds of 5 or 10."""
    return str(judge.settings.values.get("loss_type", "")).lower() == "cispo"


def _clipping(judge: Judge) -> None:
    low, high = judge.number("epsilon"), judge.number("epsilon_high")
    pair = judge.settings.values.get("epsilon_pair")
    if isinstance(pair, (list, tuple)) and len(pair) == 2:
        name, (low, high) = "epsilon_pair", (_number(one) for one in pair)
    else:
        name = "epsilon_high"
    if _unclipped_below(judge):
        low = high = None
    if high is not None and low is not None and high < low:
        judge.broken("epsilon", name, f"{high:g} is below the lower bound's {low:g}", "0.28 with 0.2 is usual")
    elif high is not None and high > 1:
        judge.doubtful("epsilon", name, f"{high:g}: ratios above {1 + high:g} pass, so little is clipped above",
                       "0.28 with 0.2 is usual")  # fmt: skip
    delta = judge.number("delta")
    if delta is not None and delta <= 1 + (high if high is not None else low if low is not None else 0.2):
        judge.broken("epsilon", "delta", f"{delta:g} is not above 1 + epsilon: the second bound replaces the first",
                     "2.0 or more, or leave it off")  # fmt: skip
    if judge.number("beta") == 0:
        judge.notes.append("beta is 0: no reference model, and no KL that tells of drift")
    if judge.on("kl_in_loss") and judge.on("kl_in_reward"):
        judge.doubtful("beta", "kl_in_reward", f"KL is punished twice, in {judge.key('kl_in_loss')} too", "keep one")


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _learning_rate(judge: Judge) -> None:
    rate = judge.number("learning_rate")
    if rate is not None and rate > (_ADAPTER_LR if judge.settings.values.get("use_peft") else _FULL_LR):
        judge.doubtful(
            "learning-rate", "learning_rate", f"{rate:g} is far above what a policy survives",
            "1e-6 is usual, with adapters 1e-5 (then set use_peft)",
        )  # fmt: skip


def _schedule(judge: Judge) -> None:
    steps, warmup = judge.number("total_steps"), judge.number("warmup_steps")
    if steps and steps > 0 and warmup is not None and warmup >= steps:
        judge.broken("warmup", "warmup_steps", f"{warmup:g} of {steps:g} steps: the learning rate is never reached",
                     "a few per cent of the steps")  # fmt: skip
    schedule = str(judge.settings.values.get("schedule", ""))
    least = judge.number("least_share") or judge.number("least_rate")
    if schedule in _TO_ZERO and not least:
        judge.doubtful(
            "ends-at-zero", "schedule",
            f"{schedule} ends at 0: the last steps learn nothing, and a run resumed beyond its end learns nothing at "
            "all",
            "constant_with_warmup, or cosine_with_min_lr" if judge.settings.trainer != "verl" else
            "constant, or set min_lr_ratio",
        )  # fmt: skip
    elif not schedule and judge.settings.trainer == "TRL":
        judge.notes.append("lr_scheduler_type is not set: transformers' linear schedule ends at 0")
    elif schedule.endswith("with_min_lr") and judge.settings.trainer == "TRL" and least is None:
        judge.broken("excluded", "schedule", f"{schedule} needs min_lr or min_lr_rate in lr_scheduler_kwargs: "
                     "transformers refuses to start", "lr_scheduler_kwargs: {min_lr_rate: 0.1}")  # fmt: skip


def _saving(judge: Judge) -> None:
    get, values = judge.number, judge.settings.values
    every, steps = get("save_steps"), get("total_steps")
    strategy = values.get("save_strategy")
    strategy = "no" if strategy is False else strategy  # what YAML makes of a bare no
    if strategy == "no" or (every is not None and every <= 0 and strategy in (None, "steps")):
        told = "" if strategy == "no" or "save_steps" in judge.settings.told else " (the default)"
        judge.fault(
            Level.LOSS, "never-saves", "save_strategy" if strategy == "no" else "save_steps",
            f"no checkpoint is written{told}: a run that dies or is halted starts again", "save every 50 to 200 steps",
        )  # fmt: skip
    elif strategy == "epoch" and 0 < (get("epochs") or 0) <= 1:
        judge.fault(Level.LOSS, "never-saves", "save_strategy", "epoch: in one epoch none is written before the end",
                    "save_strategy: steps, several times in a run")  # fmt: skip
    elif steps is not None and steps > 0 and strategy in (None, "steps"):
        every = _SAVE_STEPS if every is None and judge.settings.trainer == "TRL" else every
        if every is not None and every > steps:
            told = "" if "save_steps" in judge.settings.told else " (the default)"
            judge.fault(Level.LOSS, "never-saves", "save_steps", f"{every:g}{told} is beyond the last step, {steps:g}: "
                        "none is written before the end", "save several times in a run")  # fmt: skip
    contents = values.get("save_contents")
    if judge.on("save_only_model") or (isinstance(contents, list) and "optimizer" not in contents):
        judge.fault(
            Level.LOSS, "no-state", "save_only_model" if judge.on("save_only_model") else "save_contents",
            "optimizer, schedule and random states are not saved: a restart does not continue",
            "leave it off until the last checkpoint" if judge.on("save_only_model") else "add optimizer and extra",
        )  # fmt: skip
    if judge.on("load_best") and values.get("eval_strategy") in (None, "no", False):
        judge.broken("excluded", "load_best", "nothing is evaluated, so no checkpoint is best: transformers refuses to "
                     "start", "set eval_strategy and save_strategy alike, or leave it off")  # fmt: skip


def _precision(judge: Judge) -> None:
    who = "DeepSpeed" if judge.settings.trainer == "DeepSpeed" else "transformers"
    for half, brain in (("fp16", "bf16"), ("fp16_eval", "bf16_eval")):
        if judge.on(half) and judge.on(brain):
            judge.broken("fp16", half, f"{judge.key(brain)} is on too: {who} refuses both at once",
                         f"keep {judge.key(brain)} where the GPU has it")  # fmt: skip
        elif half == "fp16" and judge.on(half):
            judge.doubtful("fp16", "fp16", "gradients of GRPO under- and overflow in fp16", "bf16 where the GPU has it")


def _lengths(judge: Judge) -> None:
    prompt, completion = judge.number("prompt_length") or 0, judge.number("completion_length")
    if completion is None or completion < 1:
        return
    whole = f"{prompt:g} + {completion:g} tokens of prompt and completion" if prompt else f"{completion:g} tokens"
    for limit, what in ((judge.number("engine_length"), judge.key("engine_length")), (_positions(judge), "the model")):
        if limit and prompt + completion > limit:
            judge.broken("context", "completion_length", f"{whole} are more than the {limit:g} of {what}",
                         "shorten them, or raise the limit")  # fmt: skip
            return


def _positions(judge: Judge) -> float | None:
    """Positions of the model, where it is a directory here."""
    try:
        config = json.loads((Path(str(judge.settings.values["model"])).expanduser() / "config.json").read_text("utf-8"))
        found = (config.get("text_config") or config).get("max_position_embeddings")
        return float(found) if isinstance(found, int) else None
    except (KeyError, OSError, ValueError, AttributeError):
        return None


def _engine(judge: Judge) -> None:
    """Judge the share of memory of an engine that stands on the trainer's GPUs."""
    share, values = judge.number("engine_memory"), judge.settings.values
    beside = {
        "TRL": values.get("use_engine") is True and values.get("engine_mode", "colocate") == "colocate",
        "verl": True,
        "OpenRLHF": judge.on("colocated") and not judge.on("asynchronous"),
    }.get(judge.settings.trainer, False)
    sleeps = values.get("engine_sleeps", judge.settings.trainer == "verl") is True
    high = _HIGH_SLEEPING if sleeps else _HIGH
    if share is None or not beside or not high < share <= 1:
        return
    told = "" if "engine_memory" in judge.settings.told else " (the default)"
    judge.doubtful(
        "engine-memory", "engine_memory",
        f"{share:g}{told} of the GPU is the engine's{' while it is awake' if sleeps else ''}, and the trainer stands "
        "on the same GPU: out of memory at the first step, or at the first long completions",
        "0.3 to 0.6" if sleeps else "0.3 to 0.6, or let the engine sleep while the trainer works",
    )  # fmt: skip


def _others(judge: Judge) -> None:
    if judge.settings.trainer == "TRL" and judge.on("auto_batch"):
        judge.broken("excluded", "auto_batch", "a batch that is halved no longer holds whole groups: TRL refuses it, "
                     "or mixes groups", "leave it off and lower per_device_train_batch_size")  # fmt: skip
    if judge.number("max_grad_norm") == 0:
        judge.notes.append(f"{judge.key('max_grad_norm')} is 0: gradients are not clipped")
    if judge.settings.values.get("nan_filter") is True:
        judge.notes.append("logging_nan_inf_filter is on: a NaN loss is logged as the mean of the others")


__all__ = ["check_trainer"]
