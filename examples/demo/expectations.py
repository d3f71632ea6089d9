"""What each fault must lead to: the demo passes when all of it was seen, and says what was not."""

from __future__ import annotations

from dataclasses import dataclass

HALTED = 83


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """`exit_codes` of launch; a finding in `layers` that names `rank` (None: any) and, if asked, the spoiled part."""

    tells: str
    exit_codes: tuple[int, ...] = (0,)
    layers: tuple[str, ...] = ()
    rank: int | None = None
    names_subject: bool = False
    skips: bool = False  # updates must have been skipped
    steps: int = 40
    checkpoints_finite: bool = True


EXPECTATIONS: dict[str, Expectation] = {
    "none": Expectation(tells="a healthy run: no finding, no halt, the trainer's own exit code"),
    "grad_nan": Expectation(
        tells="from step 12 on, NaN in one element of one gradient on rank 1, before the all-reduce",
        layers=("gradient",), rank=1, names_subject=True, skips=True, exit_codes=(HALTED,),
    ),
    "grad_inf": Expectation(
        tells="from step 12 on, infinity in one element of one gradient on rank 1, before the all-reduce",
        layers=("gradient",), rank=1, names_subject=True, skips=True, exit_codes=(HALTED,),
    ),
    "loss_nan": Expectation(
        tells="from step 12 on, the loss of rank 1 is NaN", layers=("policy", "gradient"), rank=1, skips=True,
        exit_codes=(HALTED,),
    ),
    "reduced_grad_nan": Expectation(
        tells="at step 12, NaN in one gradient element of rank 1, after the all-reduce: replicas would part",
        layers=("gradient",), skips=True,
    ),
    "grad_spike": Expectation(
        tells="from step 30 on, every gradient is 200 times too large", layers=("gradient",), exit_codes=(HALTED,),
        steps=60,
    ),
    "reward_nan": Expectation(
        tells="from step 12 on, a reward function returns NaN on rank 1; TRL's means hide it",
        layers=("reward",), rank=1,
    ),
    "reward_constant": Expectation(
        tells="from step 12 on, every sample gets the same reward: trains on nothing, for ever", layers=("reward",),
    ),
    "lr_spike": Expectation(
        tells="at step 12, the learning rate is 10: finite weights, dead policy", layers=("optimizer", "policy"),
        exit_codes=(0, HALTED),
    ),
    "memory_leak": Expectation(
        tells="from step 12 on, rank 1 keeps 100 MB of host memory a step", layers=("memory",), rank=1,
        exit_codes=(0, HALTED), steps=80,
    ),
    "straggler": Expectation(
        tells="from step 12 on, rank 1 comes 1.5 s late to every step", layers=("time",), rank=1, steps=32,
    ),
    "oov_token": Expectation(
        tells="at step 12, a token id outside the vocabulary on rank 1: the forward crashes", layers=("data",), rank=1,
        exit_codes=(1,),
    ),
    "mask_zero": Expectation(
        tells="from step 12 on, all masks are zero: the step trains on nothing", layers=("data",),
    ),
    "weight_nan": Expectation(
        tells="at step 12, one weight of rank 1 turns NaN: the next generation crashes",
        layers=("optimizer", "policy", "gradient", "sentinel", "time"), exit_codes=(1, HALTED),
    ),
    "weight_drift": Expectation(
        tells="at step 12, one weight of rank 1 is changed: the replicas part without a sign in the log",
        layers=("optimizer", "gradient", "sentinel"), exit_codes=(0, HALTED),
    ),
    "kill": Expectation(
        tells="at step 12, rank 1 is killed with SIGKILL", layers=("device", "time", "sentinel", "memory"), rank=1,
        exit_codes=(1,),
    ),
    "exception": Expectation(
        tells="at step 12, rank 1 raises", layers=("device", "time", "sentinel", "memory"), rank=1, exit_codes=(1,),
    ),
}  # fmt: skip
