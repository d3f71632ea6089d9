"""Do groups and batches divide as the trainer needs it?

Sources: TRL `GRPOConfig.__post_init__`; verl `validate_config` and `ppo_mini_batch_size * n // ranks // micro`;
OpenRLHF `train_batch_size // (micro_train_batch_size * ranks)` and the assertions of `train_ppo_ray`; DeepSpeed
`train_batch_size = micro * accumulation * ranks`.
"""

from __future__ import annotations

import math

from grpo_sentinel.preflight.config_check_judge import Judge

_GROUPED = ("grpo", "grpo_passk", "group_norm", "rloo", "dr_grpo", "reinforce_baseline")
_TRL_BATCH, _TRL_GROUP = 8, 8  # defaults of transformers and of TRL


def check_batches(judge: Judge) -> None:
    """Judge groups, then batches by the rules of the trainer."""
    if not _groups(judge):
        return
    micro = judge.number("micro_batch")
    if micro is not None and micro < 1:
        return  # told as a range
    by_trainer = {"TRL": _trl, "verl": _verl, "OpenRLHF": _openrlhf, "DeepSpeed": _deepspeed}
    by_trainer[judge.settings.trainer](judge)


def _ranks(judge: Judge) -> float:
    return max(1.0, judge.number("world_size") or 1)


def _groups(judge: Judge) -> bool:
    """Judge the group's size; False when nothing can be built on it."""
    size = judge.number("group_size")
    algorithm = str(judge.settings.values.get("algorithm", "grpo")).lower()
    if size is None or size >= 2 or algorithm not in _GROUPED:
        return True
    told = "" if "group_size" in judge.settings.told else " (the default)"
    judge.broken(
        "group-of-one", "group_size",
        f"{size:g}{told}: a completion is compared with its group, and a group of one has advantage 0 always",
        "use 4 or more; 8 or 16 is usual",
    )  # fmt: skip
    return False


def _trl(judge: Judge) -> None:
    get = judge.number
    size, micro = get("group_size") or _TRL_GROUP, get("micro_batch") or _TRL_BATCH
    batch, steps = get("generation_batch"), get("steps_per_generation")
    ranks = _ranks(judge)
    if batch and steps and batch % (micro * steps):  # a saved configuration has both, and they agree
        judge.broken("excluded", "generation_batch", f"{batch:g}, and {judge.key('steps_per_generation')} {steps:g}: "
                     "TRL refuses both at once", "give one of them")  # fmt: skip
        return
    if batch and steps:
        judge.notes.append(f"{judge.key('generation_batch')} and {judge.key('steps_per_generation')} are both told: "
                           "TRL refuses that where it is written by hand")  # fmt: skip
    if batch and batch % (micro * ranks):
        judge.broken(
            "groups-do-not-fit", "generation_batch",
            f"{batch:g} is no multiple of a step's {micro * ranks:g} samples (per device {micro:g}, ranks {ranks:g})",
            "make it one: TRL refuses to start",
        )  # fmt: skip
        return
    steps = steps or get("accumulation") or 1
    _trl_groups(judge, size, batch, f"per device {micro:g}", micro * steps, f"steps {steps:g}")
    _trl_eval(judge, get("eval_group_size") or size)


def _trl_groups(judge: Judge, size: float, batch: float | None, micro: str, by_rank: float, steps: str) -> None:
    ranks, known = _ranks(judge), batch is not None or judge.number("world_size") is not None
    whole = batch or by_rank * ranks
    if not whole % size:
        return
    least = size / math.gcd(int(size), int(whole)) if size == int(size) and whole == int(whole) else 0
    if not known and least and not int(least) & (int(least) - 1):  # of 1, 2, 4, 8 ... ranks some fit
        judge.notes.append(
            f"{judge.key('group_size')} {size:g}: {by_rank:g} samples a rank ({micro}, {steps}) are whole groups only "
            f"where the number of ranks is a multiple of {least:g} (--world-size N)"
        )
        return
    judge.broken(
        "groups-do-not-fit", "group_size",
        f"a generation batch of {whole:g} ({micro}, ranks {ranks:g}, {steps}) is no multiple of {size:g}",
        "make it one: TRL refuses to start",
    )  # fmt: skip


def _trl_eval(judge: Judge, size: float) -> None:
    strategy = judge.settings.values.get("eval_strategy")
    if strategy in (None, "no", False) or "world_size" not in judge.settings.values:
        return
    batch = (judge.number("eval_batch") or _TRL_BATCH) * _ranks(judge)
    if batch % size:
        judge.broken("groups-do-not-fit", "eval_batch", f"{batch:g} samples over all ranks are no multiple of a "
                     f"group of {size:g}", "make it one, or set num_generations_eval: TRL refuses")  # fmt: skip


def _verl(judge: Judge) -> None:
    get = judge.number
    ranks, size, micro = _ranks(judge), get("group_size") or 1, get("micro_batch")
    prompts, mini = get("prompts"), get("mini_batch_prompts")
    if prompts is not None and mini is not None and prompts < mini:
        judge.broken("batch-below-mini-batch", "prompts", f"{prompts:g} prompts are fewer than a mini-batch of "
                     f"{mini:g}", "make the batch a multiple of the mini-batch")  # fmt: skip
    told = "world_size" in judge.settings.values
    gpus = get("gpus") or ranks
    if told and prompts is not None and prompts * size % ranks and not judge.on("dynamic_batch"):
        judge.broken("batch-mismatch", "prompts", f"{prompts:g} prompts x {size:g} completions do not divide over "
                     f"{ranks:g} ranks", "make the product a multiple of the ranks: verl refuses to start")  # fmt: skip
    split = get("engine_ranks")
    if told and split and gpus % split:
        judge.broken("batch-mismatch", "engine_ranks", f"{split:g} does not divide {gpus:g} GPUs",
                     "make it a divisor: verl refuses to start")  # fmt: skip
    if mini is None or micro is None or judge.on("dynamic_batch"):
        return
    samples = mini * size // ranks
    if samples < micro:
        judge.broken(
            "accumulation-zero", "mini_batch_prompts",
            f"{mini:g} prompts give {samples:g} samples a rank on {ranks:g} ranks, fewer than one micro-batch of "
            f"{micro:g}: accumulation is 0",
            "raise it, or lower the micro-batch",
        )  # fmt: skip
    elif told and samples % micro:
        judge.broken("batch-mismatch", "micro_batch", f"{micro:g} does not divide the {samples:g} samples a rank of a "
                     "mini-batch", "make it a divisor: verl refuses to start")  # fmt: skip


def _openrlhf(judge: Judge) -> None:
    get = judge.number
    ranks, micro, train = _ranks(judge), get("micro_batch"), get("train_batch")
    prompts, size, rollout = get("prompts"), get("group_size") or 1, get("micro_rollout")
    if micro and train is not None and train // (micro * ranks) < 1 and not judge.on("dynamic_batch"):
        judge.broken(
            "accumulation-zero", "train_batch",
            f"{train:g} samples a step are fewer than one micro-batch of {micro:g} on {ranks:g} ranks: "
            "accumulation is 0",
            "raise it, or lower the micro-batch",
        )  # fmt: skip
    if prompts is not None and train is not None and prompts * size < train:
        judge.broken("batch-below-mini-batch", "prompts", f"{prompts:g} prompts x {size:g} completions are fewer than "
                     f"a step's {train:g} samples", "make the product a multiple of the step's samples")  # fmt: skip
    if prompts is not None and rollout and prompts * size // rollout < ranks:
        judge.broken("batch-mismatch", "micro_rollout", f"{prompts * size:g} completions in batches of {rollout:g} are "
                     f"fewer batches than {ranks:g} ranks", "lower it: OpenRLHF refuses to start")  # fmt: skip
    engines, split = get("engines"), get("engine_ranks") or 1
    together = judge.on("colocated") and not judge.on("asynchronous") and "world_size" in judge.settings.values
    gpus = get("gpus") or ranks
    if together and engines and gpus != engines * split:
        judge.broken("batch-mismatch", "engines", f"{engines:g} engines of {split:g} GPUs are not the {gpus:g} GPUs of "
                     "the actor", "colocated models share all GPUs: make the product equal")  # fmt: skip


def _deepspeed(judge: Judge) -> None:
    get = judge.number
    ranks, micro, train, steps = _ranks(judge), get("micro_batch"), get("train_batch"), get("accumulation")
    if micro is None or train is None:
        return
    if steps is not None:
        if train != micro * steps * ranks and "world_size" in judge.settings.values:
            judge.broken(
                "batch-mismatch", "train_batch",
                f"{train:g} is not micro-batch {micro:g} x accumulation {steps:g} x ranks {ranks:g}",
                "make the product right: DeepSpeed refuses to start",
            )  # fmt: skip
    elif train // (micro * ranks) < 1:
        judge.broken(
            "accumulation-zero", "train_batch",
            f"{train:g} samples a step are fewer than one micro-batch of {micro:g} on {ranks:g} ranks: "
            "accumulation is 0",
            "raise it, or lower the micro-batch",
        )  # fmt: skip


__all__ = ["check_batches"]
