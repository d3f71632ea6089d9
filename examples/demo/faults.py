"""Break a training run on purpose, from outside: every fault attaches to a finished trainer, none patches a library.

    DEMO_FAULT=grad_nan torchrun ... train.py ...
    DEMO_FAULT=grad_spike:step=20,until=22,factor=100 ...

A specification is NAME[:key=value,...]. Every fault knows `step` (first optimizer step that it spoils, 1-based),
`until` (last one, `inf` = to the end) and `rank` (-1 = every rank); the rest is its own, see `FAULTS`. What was done
is printed and written to OUTPUT_DIR/fault-rank<R>.json, so that a finding can be compared with the truth.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Parameters = dict[str, float]
Change = Callable[[], None] | None


class Fault:
    """One fault on one rank: knows the trainer, its parameters, and whether it acts in the current step."""

    def __init__(self, name: str, parameters: Parameters, trainer: Any) -> None:
        self.name, self.parameters, self.trainer = name, parameters, trainer
        self.rank = int(os.environ.get("RANK", "0"))
        self.subject = ""  # the parameter, reward function or tensor that is spoiled
        self.told = False

    def __getitem__(self, key: str) -> float:
        return self.parameters[key]

    def acts(self) -> bool:
        """Say whether the fault spoils the step being worked on; the first time it does, it is announced."""
        step = self.trainer.state.global_step + 1
        here = self["rank"] in (-1, self.rank) and self["step"] <= step <= self["until"]
        if here and not self.told:
            self.told = True
            self.announce(step)
        return here

    def announce(self, step: int) -> None:
        where = f" ({self.subject})" if self.subject else ""
        print(f"demo: rank {self.rank} injects {self.name} from step {step}{where}", file=sys.stderr, flush=True)
        truth = {**self.parameters, "fault": self.name, "subject": self.subject, "step": step, "rank": self.rank}
        truth = {key: str(value) if value == math.inf else value for key, value in truth.items()}
        folder = Path(self.trainer.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"fault-rank{self.rank}.json").write_text(json.dumps(truth))

    def parameter(self) -> Any:
        """Pick the parameter that the fault spoils: number `parameter` in the order of the model."""
        self.subject, parameter = list(self.trainer.model.named_parameters())[int(self["parameter"])]
        return parameter


# -- gradients before the all-reduce: a tensor hook sees what this rank alone computed --------------------------------


def _spoil_local_gradient(fault: Fault, value: float) -> None:
    parameter = fault.parameter()

    def hook(gradient: Any) -> Any:
        if not fault.acts():
            return gradient
        spoiled = gradient.clone()
        spoiled.view(-1)[0] = value
        return spoiled

    parameter.register_hook(hook)


def grad_nan(fault: Fault) -> None:
    """NaN in one element of one gradient of one rank, before the all-reduce."""
    _spoil_local_gradient(fault, math.nan)


def grad_inf(fault: Fault) -> None:
    """Infinity in one element of one gradient of one rank, before the all-reduce."""
    _spoil_local_gradient(fault, math.inf)


def grad_spike(fault: Fault) -> None:
    """Every gradient of the rank `factor` times too large, before the all-reduce."""
    for parameter in fault.trainer.model.parameters():
        parameter.register_hook(lambda gradient: gradient * fault["factor"] if fault.acts() else gradient)


# -- around the training step: after backward and all-reduce, or before the forward ------------------------------------


def _around_step(fault: Fault, before: Change = None, after: Change = None) -> None:
    original = fault.trainer.training_step

    def training_step(*args: Any, **kwargs: Any) -> Any:
        if before is not None and fault.acts():
            before()
        result = original(*args, **kwargs)
        if after is not None and fault.acts():
            after()
        return result

    fault.trainer.training_step = training_step


def reduced_grad_nan(fault: Fault) -> None:
    """NaN in one element of one gradient of one rank, after the all-reduce: replicas would part."""
    parameter = fault.parameter()

    def spoil() -> None:
        if parameter.grad is not None:
            parameter.grad.view(-1)[0] = math.nan

    _around_step(fault, after=spoil)


def weight_nan(fault: Fault) -> None:
    """NaN in one weight of one rank (memory gone bad): replicas part, the next generation crashes."""
    _set_weight(fault, math.nan)


def weight_drift(fault: Fault) -> None:
    """One finite but wrong weight on one rank: replicas part silently."""
    _set_weight(fault, 1.0)


def _set_weight(fault: Fault, value: float) -> None:
    parameter = fault.parameter()

    def spoil() -> None:
        parameter.data.view(-1)[0] = value

    _around_step(fault, before=spoil)


def memory_leak(fault: Fault) -> None:
    """`megabytes` of host memory kept in every step, up to `limit_megabytes`."""
    import torch

    kept: list[Any] = []

    def leak() -> None:
        if len(kept) * fault["megabytes"] < fault["limit_megabytes"]:
            kept.append(torch.ones(int(fault["megabytes"] * 2**18)))

    _around_step(fault, after=leak)


def straggler(fault: Fault) -> None:
    """The rank comes `seconds` late to every step."""
    _around_step(fault, before=lambda: time.sleep(fault["seconds"]))


def kill(fault: Fault) -> None:
    """The rank's process is killed with SIGKILL."""
    _around_step(fault, before=lambda: os.kill(os.getpid(), signal.SIGKILL))


def exception(fault: Fault) -> None:
    """The rank raises in the middle of a step."""

    def fail() -> None:
        raise RuntimeError("demo: the training step raises on purpose")

    _around_step(fault, before=fail)


def loss_nan(fault: Fault) -> None:
    """The rank's loss is NaN."""
    original = fault.trainer.compute_loss

    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        loss = original(*args, **kwargs)
        return loss * math.nan if fault.acts() else loss

    fault.trainer.compute_loss = compute_loss


# -- optimizer ---------------------------------------------------------------------------------------------------------


def lr_spike(fault: Fault) -> None:
    """The optimizer uses `learning_rate` instead of what the schedule says."""
    from transformers import TrainerCallback

    class Spike(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
            if fault.acts():
                for group in optimizer.param_groups:
                    group["lr"] = fault["learning_rate"]

    fault.trainer.add_callback(Spike())


# -- rewards and batches -----------------------------------------------------------------------------------------------


def _replace_scores(fault: Fault, index: int, value: float) -> None:
    """Make reward function `index` return `value` for every sample; models keep their graph-free output type."""
    scorer = fault.trainer.reward_funcs[index]
    fault.subject = fault.subject or fault.trainer.reward_func_names[index]
    if hasattr(scorer, "register_forward_hook"):

        def hook(_module: Any, _inputs: Any, output: Any) -> Any:
            if fault.acts():
                output.logits = output.logits * 0 + value
            return output

        scorer.register_forward_hook(hook)
        return

    def scores(*args: Any, **kwargs: Any) -> list[float]:
        real = scorer(*args, **kwargs)
        return [value] * len(real) if fault.acts() else real

    scores.__name__ = scorer.__name__
    fault.trainer.reward_funcs[index] = scores


def reward_nan(fault: Fault) -> None:
    """The first reward function returns NaN for every sample of the rank; TRL's means leave it out silently."""
    _replace_scores(fault, 0, math.nan)


def reward_constant(fault: Fault) -> None:
    """Every reward function scores every sample the same: no advantage, nothing is learned, nothing crashes."""
    for index in range(len(fault.trainer.reward_funcs)):
        _replace_scores(fault, index, 0.5)


def _change_batch(fault: Fault, change: Callable[[dict[str, Any]], None]) -> None:
    fault.subject = "completion_ids"
    original = fault.trainer._generate_and_score_completions

    def generate(inputs: Any) -> dict[str, Any]:
        batch: dict[str, Any] = original(inputs)
        if fault.acts():
            change(batch)
        return batch

    fault.trainer._generate_and_score_completions = generate


def oov_token(fault: Fault) -> None:
    """One completion token id lies outside the vocabulary: the forward crashes (CUDA: device-side assert)."""

    def change(batch: dict[str, Any]) -> None:
        batch["completion_ids"][0, 0] = int(fault["token"])

    _change_batch(fault, change)


def mask_zero(fault: Fault) -> None:
    """Prompt and completion masks of the batch are all zero: the step trains on nothing."""

    def change(batch: dict[str, Any]) -> None:
        batch["prompt_mask"].zero_()
        batch["completion_mask"].zero_()

    _change_batch(fault, change)


def none(_fault: Fault) -> None:
    """Nothing: a healthy run."""


EVER = math.inf
LOCAL = {"step": 12, "until": EVER, "rank": 1, "parameter": 3}
FAULTS: Mapping[str, tuple[Callable[[Fault], None], Parameters]] = {
    "none": (none, {"step": 1, "until": EVER, "rank": -1}),
    "grad_nan": (grad_nan, LOCAL),
    "grad_inf": (grad_inf, LOCAL),
    "grad_spike": (grad_spike, {"step": 30, "until": EVER, "rank": -1, "factor": 200.0}),
    "loss_nan": (loss_nan, {"step": 12, "until": EVER, "rank": 1}),
    "reduced_grad_nan": (reduced_grad_nan, {**LOCAL, "until": 12}),
    "weight_nan": (weight_nan, {**LOCAL, "until": 12}),
    "weight_drift": (weight_drift, {**LOCAL, "until": 12}),
    "reward_nan": (reward_nan, {"step": 12, "until": EVER, "rank": 1}),
    "reward_constant": (reward_constant, {"step": 12, "until": EVER, "rank": -1}),
    "lr_spike": (lr_spike, {"step": 12, "until": 12, "rank": -1, "learning_rate": 10.0}),
    "memory_leak": (memory_leak, {"step": 12, "until": EVER, "rank": 1, "megabytes": 100, "limit_megabytes": 6000}),
    "straggler": (straggler, {"step": 12, "until": EVER, "rank": 1, "seconds": 1.5}),
    "oov_token": (oov_token, {"step": 12, "until": 12, "rank": 1, "token": 100_000}),
    "mask_zero": (mask_zero, {"step": 12, "until": EVER, "rank": -1}),
    "kill": (kill, {"step": 12, "until": 12, "rank": 1}),
    "exception": (exception, {"step": 12, "until": 12, "rank": 1}),
}


def parse(spec: str) -> tuple[str, Parameters]:
    """Read NAME[:key=value,...] into the name and its full parameters; ValueError says what is known."""
    name, _, rest = spec.partition(":")
    if name not in FAULTS:
        raise ValueError(f"unknown fault {name!r}; known are {', '.join(FAULTS)}")
    parameters = dict(FAULTS[name][1])
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key not in parameters:
            raise ValueError(f"fault {name} has no parameter {key!r}; it has {', '.join(parameters)}")
        try:
            parameters[key] = float(value)
        except ValueError:
            raise ValueError(f"fault {name}: {key} needs a number, got {value!r}") from None
    return name, parameters


def attach(trainer: Any, spec: str) -> None:
    """Attach the fault of `spec` to a trainer that is built and does not train yet."""
    name, parameters = parse(spec)
    FAULTS[name][0](Fault(name, parameters, trainer))
