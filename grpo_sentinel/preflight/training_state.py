"""Everything in a transformers checkpoint besides the weights: step, optimizer, schedule, scaler, random states."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from grpo_sentinel.halting.inert_pickle import Node
from grpo_sentinel.preflight.look import Level, Look

_RANDOM = re.compile(r"^(?:rng_state(?:_(?P<rank>\d+))?\.pth|random_states_(?P<other>\d+)\.pkl)$")
_OPTIMIZERS = ("optimizer.pt", "optimizer.bin", "optimizer.safetensors")
_SCHEDULERS = ("scheduler.pt", "scheduler.bin")
_FEW = 0.9  # share of the steps: below it a count is told
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


def check_training_files(
    look: Look, names: set[str], step: int | None, *, optimizer_elsewhere: bool, ranks: int
) -> None:
    """Check optimizer, schedule, scaler and random states of a checkpoint of `step` (None: not known).

    `ranks` is how many saved, 0 when not known.
    """
    optimizers = [name for name in _OPTIMIZERS if name in names]
    for name in optimizers:
        if name.endswith(".safetensors"):
            look.safetensors(look.root / name)
            continue
        read = look.torch_content(look.root / name)
        updates = [value for key, value in (read.scalars if read else {}).items() if key.endswith(".step")]
        _compare(look, name, max(updates, default=None), step)
    if not optimizers and not optimizer_elsewhere:
        look.loss("no-state", "optimizer.pt", "no optimizer state: a restart begins with fresh moments")
    _check_scheduler(look, names, step, bool(optimizers) or optimizer_elsewhere)
    for name in _OTHERS:
        if name in names:
            look.torch_file(look.root / name)
    _check_random_states(look, names, ranks)


def _compare(look: Look, name: str, found: float | None, step: int | None) -> None:
    """Hold a file's own count of steps against the checkpoint's: files of two saves may lie in one directory.

    Fewer are healthy where updates were skipped or the optimizer began anew, so only many fewer are told; a whole
    multiple is what accelerate counts in a schedule that it steps once per process.
    """
    if not found or not step or not math.isfinite(found) or found % step == 0:
        return
    if found > step:
        what = f"{name} is at step {found:g}, the checkpoint is of step {step}: its files may be of two saves"
        look.note(Level.CANNOT_TELL, "step", look.root / name, what)
    elif found < _FEW * step:
        what = f"{name} is at step {found:g} of {step}: updates were skipped, it began anew, or it is of another save"
        look.loss("step", look.root / name, what)


def _check_scheduler(look: Look, names: set[str], step: int | None, optimizer: bool) -> None:
    schedulers = [name for name in _SCHEDULERS if name in names]
    for name in schedulers:
        tree = look.torch_file(look.root / name)
        last = tree.get("_last_lr") if isinstance(tree, Node) else None
        count = tree.get("last_epoch") if isinstance(tree, Node) else None
        _compare(look, name, count if isinstance(count, int) else None, step)
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
