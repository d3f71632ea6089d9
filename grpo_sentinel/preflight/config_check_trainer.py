"""Judge a trainer's settings: groups, batch geometry, clipping and KL, learning rate, and saving.

Sources of the geometry: TRL `GRPOConfig.__post_init__`; verl `ppo_mini_batch_size * n // world // micro`; OpenRLHF
`train_batch_size // (micro_train_batch_size * world)`; DeepSpeed `train_batch_size = micro * accumulation * world`.
"""

from __future__ import annotations

from grpo_sentinel.preflight.config_check_names import Settings
from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import Fault

_TO_ZERO = ("linear", "cosine", "polynomial")  # end at 0 unless told otherwise
_FULL_LR, _ADAPTER_LR = 1e-4, 1e-2  # above these a policy of any size known to us falls apart


class _Judge:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.faults: list[Fault] = []
        self.notes: list[str] = []

    def fault(self, level: Level, code: str, name: str, message: str, remedy: str) -> None:
        key = self.settings.key(name)
        self.faults.append(
            Fault(level=level, code=code, where=key, subject=key, message=f"{key}: {message}", remedy=remedy)
        )

    def broken(self, code: str, name: str, message: str, remedy: str) -> None:
        self.fault(Level.BROKEN, code, name, message, remedy)

    def doubtful(self, code: str, name: str, message: str, remedy: str) -> None:
        self.fault(Level.DOUBTFUL, code, name, message, remedy)


def check_trainer(settings: Settings) -> tuple[list[Fault], list[str]]:
    """Judge everything; gives faults and notes."""
    judge = _Judge(settings)
    for check in (_groups, _accumulation, _clipping, _learning_rate, _schedule, _saving, _others):
        check(judge)
    return judge.faults, judge.notes


def _groups(judge: _Judge) -> None:
    size = judge.settings.number("group_size")
    grouped = str(judge.settings.values.get("algorithm", "grpo")).lower() in ("grpo", "group_norm", "rloo", "dr_grpo")
    if size is None or not grouped:
        return
    if size < 2:
        judge.broken(
            "group-of-one",
            "group_size",
            f"{size:g}: a completion is compared with its group, and a group of one has advantage 0 always",
            "use 4 or more; 8 or 16 is usual",
        )
        return
    if judge.settings.trainer != "TRL":
        return
    world = judge.settings.number("world_size") or 1
    micro = judge.settings.number("micro_batch") or 8  # transformers' default
    steps = judge.settings.number("steps_per_generation") or judge.settings.number("accumulation") or 1
    batch = judge.settings.number("generation_batch") or micro * world * steps
    if batch % size:
        judge.broken(
            "groups-do-not-fit",
            "group_size",
            f"a generation batch of {batch:g} (per device {micro:g}, ranks {world:g}, "
            f"steps {steps:g}) is no multiple of {size:g}",
            "make it one: TRL refuses to start",
        )


def _accumulation(judge: _Judge) -> None:
    get = judge.settings.number
    world, micro = get("world_size") or 1, get("micro_batch")
    accumulation = get("accumulation")
    if accumulation is not None and accumulation < 1:
        judge.broken(
            "accumulation-zero",
            "accumulation",
            f"{accumulation:g} micro-batches per step: nothing is trained",
            "use 1 or more",
        )
    if micro is not None and micro < 1:
        judge.broken("micro-batch-zero", "micro_batch", f"{micro:g} samples per micro-batch", "use 1 or more")
        return
    if micro is None:
        return
    mini, train = get("mini_batch_prompts"), get("train_batch")
    if mini is not None:
        samples = mini * (get("group_size") or 1) // world
        if samples // micro < 1 and not judge.settings.values.get("dynamic_batch"):
            judge.broken(
                "accumulation-zero",
                "mini_batch_prompts",
                f"{mini:g} prompts give {samples:g} samples a rank on {world:g} "
                f"ranks, fewer than one micro-batch of {micro:g}: accumulation is 0",
                "raise it, or lower the micro-batch",
            )
        prompts = get("prompts")
        if prompts is not None and prompts < mini:
            judge.broken(
                "batch-below-mini-batch",
                "prompts",
                f"{prompts:g} prompts are fewer than a mini-batch of {mini:g}",
                "make the batch a multiple of the mini-batch",
            )
    elif train is not None and accumulation is not None:
        if train != micro * accumulation * world and "world_size" in judge.settings.values:
            judge.broken(
                "batch-mismatch",
                "train_batch",
                f"{train:g} is not micro-batch {micro:g} x accumulation {accumulation:g} x ranks {world:g}",
                "make the product right: DeepSpeed refuses to start",
            )
    elif train is not None and train // (micro * world) < 1:
        judge.broken(
            "accumulation-zero",
            "train_batch",
            f"{train:g} samples a step are fewer than one micro-batch of {micro:g} on "
            f"{world:g} ranks: accumulation is 0",
            "raise it, or lower the micro-batch",
        )


def _clipping(judge: _Judge) -> None:
    low, high, beta = (judge.settings.number(name) for name in ("epsilon", "epsilon_high", "beta"))
    if low is not None and low <= 0:
        judge.broken(
            "epsilon", "epsilon", f"{low:g}: every ratio is clipped, and the policy does not move", "0.2 is usual"
        )
    elif low is not None and low >= 1:
        judge.broken(
            "epsilon", "epsilon", f"{low:g}: ratios down to 0 pass, so nothing is clipped below", "0.2 is usual"
        )
    elif low is not None and low > 0.5:
        judge.doubtful("epsilon", "epsilon", f"{low:g} lets the policy move far in one step", "0.2 is usual, up to 0.3")
    if high is not None and low is not None and high < low:
        judge.broken(
            "epsilon", "epsilon_high", f"{high:g} is below the lower bound's {low:g}", "0.28 with 0.2 is usual"
        )
    if beta is not None and beta < 0:
        judge.broken("beta", "beta", f"{beta:g} rewards distance from the reference", "use 0 or more")
    elif beta is not None and beta > 1:
        judge.doubtful("beta", "beta", f"{beta:g}: the KL term outweighs the reward", "0 to 0.1 is usual")
    elif beta == 0:
        judge.notes.append("beta is 0: no reference model, and no KL that tells of drift")


def _learning_rate(judge: _Judge) -> None:
    rate = judge.settings.number("learning_rate")
    if rate is None:
        return
    limit = _ADAPTER_LR if judge.settings.values.get("use_peft") else _FULL_LR
    if rate <= 0:
        judge.broken(
            "learning-rate", "learning_rate", f"{rate:g}: nothing is learned", "1e-6 is usual, with adapters 1e-5"
        )
    elif rate > limit:
        judge.doubtful(
            "learning-rate",
            "learning_rate",
            f"{rate:g} is far above what a policy survives",
            "1e-6 is usual, with adapters 1e-5 (then set use_peft)",
        )


def _schedule(judge: _Judge) -> None:
    get = judge.settings.number
    steps, warmup = get("total_steps"), get("warmup_steps")
    ratio = get("warmup_ratio")
    if steps and steps > 0 and warmup is not None and warmup >= steps:
        judge.broken(
            "warmup",
            "warmup_steps",
            f"{warmup:g} of {steps:g} steps: the learning rate is never reached",
            "a few per cent of the steps",
        )
    elif ratio is not None and ratio >= 1:
        judge.broken(
            "warmup", "warmup_ratio", f"{ratio:g} of all steps: the learning rate is never reached", "0.03 is usual"
        )
    schedule = str(judge.settings.values.get("schedule", ""))
    if schedule in _TO_ZERO:
        judge.doubtful(
            "ends-at-zero",
            "schedule",
            f"{schedule} ends at 0: the last steps learn nothing, and a run resumed "
            "beyond its end learns nothing at all",
            "constant_with_warmup, or cosine_with_min_lr",
        )
    elif not schedule and judge.settings.trainer == "TRL":
        judge.notes.append("lr_scheduler_type is not set: transformers' linear schedule ends at 0")


def _saving(judge: _Judge) -> None:
    get = judge.settings.number
    every, steps, limit = get("save_steps"), get("total_steps"), get("save_limit")
    if judge.settings.values.get("save_strategy") == "no" or (every is not None and every <= 0):
        name = "save_strategy" if judge.settings.values.get("save_strategy") == "no" else "save_steps"
        judge.fault(
            Level.LOSS,
            "never-saves",
            name,
            "no checkpoint is written: a run that dies or is halted starts again",
            "save every 50 to 200 steps",
        )
    elif every is not None and steps is not None and steps > 0 and every > steps:
        judge.fault(
            Level.LOSS,
            "never-saves",
            "save_steps",
            f"{every:g} is beyond the last step, {steps:g}: none is written before the end",
            "save several times in a run",
        )
    if limit == 1:
        judge.fault(
            Level.LOSS,
            "one-checkpoint",
            "save_limit",
            "1: the checkpoint written at a halt, good or not, deletes the last one",
            "keep 2 or more",
        )
    if judge.settings.values.get("save_only_model") is True:
        judge.fault(
            Level.LOSS,
            "no-state",
            "save_only_model",
            "optimizer, schedule and random states are not saved: a restart does not continue",
            "leave it off until the last checkpoint",
        )


def _others(judge: _Judge) -> None:
    get = judge.settings.number
    if get("temperature") == 0:
        judge.broken(
            "temperature", "temperature", "0: all completions of a group are the same, advantages are 0", "0.6 to 1.0"
        )
    if judge.settings.values.get("fp16") is True:
        judge.doubtful("fp16", "fp16", "gradients of GRPO under- and overflow in fp16", "bf16 where the GPU has it")
    if get("max_grad_norm") == 0:
        judge.notes.append(f"{judge.settings.key('max_grad_norm')} is 0: gradients are not clipped")
    if judge.settings.values.get("nan_filter") is True:
        judge.notes.append("logging_nan_inf_filter is on: a NaN loss is logged as the mean of the others")


__all__ = ["check_trainer"]
