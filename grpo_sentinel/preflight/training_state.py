"""Everything in a transformers checkpoint besides the weights: step, optimizer, schedule, scaler, random states."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from grpo_sentinel.preflight.inert_pickle import Node
from grpo_sentinel.preflight.look import Look

_RANDOM = re.compile(r"^(?:rng_state(?:_(?P<rank>\d+))?\.pth|random_states_(?P<other>\d+)\.pkl)$")
_OPTIMIZERS = ("optimizer.pt", "optimizer.bin", "optimizer.safetensors")
_SCHEDULERS = ("scheduler.pt", "scheduler.bin")
_OTHERS = ("scaler.pt", "training_args.bin")


def check_trainer_state(look: Look, names: set[str], step: int | None) -> int | None:
    """Check trainer_state.json against the step that the directory's name says; gives its own step."""
    path = look.root / "trainer_state.json"
    if path.name not in names:
        look.broken("missing", path, "trainer_state.json is missing: it is written last, the save has not ended")
        return None
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        found = state["global_step"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        look.broken("damaged", path, f"trainer_state.json is not readable: {type(error).__name__}: {error}")
        return None
    if not isinstance(found, int):
        look.broken("damaged", path, f"trainer_state.json has no whole number as global_step: {found!r}")
        return None
    if step is not None and found != step:
        look.broken("step", path, f"trainer_state.json is of step {found}, the directory of step {step}")
    _check_log(look, path, state)
    return found


def _check_log(look: Look, path: Path, state: dict[str, Any]) -> None:
    """The trainer's own last log line: a NaN in it was not caught, whatever the weights look like."""
    history = state.get("log_history")
    last = history[-1] if isinstance(history, list) and history and isinstance(history[-1], dict) else {}
    for name in ("loss", "grad_norm", "reward", "kl"):
        value = last.get(name)
        if isinstance(value, float) and not math.isfinite(value):
            at = last.get("step")
            look.loss("non-finite", path, f"the trainer's last log line has {name} = {value} at step {at}")


def check_training_files(look: Look, names: set[str], *, optimizer_elsewhere: bool, ranks: int) -> None:
    """Check optimizer, schedule, scaler and random states; `ranks` is how many saved, 0 when not known."""
    optimizers = [name for name in _OPTIMIZERS if name in names]
    for name in optimizers:
        if name.endswith(".safetensors"):
            look.safetensors(look.root / name)
        else:
            look.torch_file(look.root / name)
    if not optimizers and not optimizer_elsewhere:
        look.loss("no-state", "optimizer.pt", "no optimizer state: a restart begins with fresh moments")
    _check_scheduler(look, names, bool(optimizers) or optimizer_elsewhere)
    for name in _OTHERS:
        if name in names:
            look.torch_file(look.root / name)
    _check_random_states(look, names, ranks)


def _check_scheduler(look: Look, names: set[str], optimizer: bool) -> None:
    schedulers = [name for name in _SCHEDULERS if name in names]
    for name in schedulers:
        tree = look.torch_file(look.root / name)
        last = tree.get("_last_lr") if isinstance(tree, Node) else None
        bad = [rate for rate in last or () if isinstance(rate, float) and not math.isfinite(rate)]
        if bad:
            look.broken("non-finite", look.root / name, f"the learning rate in {name} is {bad[0]}")
    if not schedulers and optimizer:
        look.loss(
            "no-state", "scheduler.pt",
            "no state of the learning-rate schedule: transformers then restores neither optimizer nor schedule",
        )  # fmt: skip


def _check_random_states(look: Look, names: set[str], ranks: int) -> None:
    found: set[int] = set()
    for name in sorted(names):
        match = _RANDOM.match(name)
        if match:
            found.add(int(match["rank"] or match["other"] or 0))
            look.torch_file(look.root / name)
    if not found:
        look.loss("no-state", "rng_state.pth", "no random states: data order and sampling do not continue exactly")
        return
    for rank in sorted(set(range(max(ranks, max(found) + 1))) - found):
        look.loss("missing", f"rng_state_{rank}.pth", f"the random state of rank {rank} is missing")


__all__ = ["check_trainer_state", "check_training_files"]
