"""What a loop of one's own saves with torch.save or safetensors: one file, or a directory of them.

checkpoint_120.pt              {"model": ..., "optimizer": ..., "step": 120}
step_120/model.pt optim.pt     nothing in it says that the save has ended: the trainer must have reported it
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from grpo_sentinel.halting.checkpoints import TORCH_ENDINGS, is_weights
from grpo_sentinel.halting.inert_pickle import Node
from grpo_sentinel.preflight.look import Level, Look

_HF_FILES = {"trainer_state.json", "training_args.bin"}
_HF_WEIGHTS = re.compile(r"^(?:adapter_|pytorch_)?model(?:-\d{5}-of-\d{5})?\.(?:bin|safetensors)$")
_HF_NAME = re.compile(r"^checkpoint-\d+$")
_STEP_KEYS = ("global_step", "step", "iteration")
_OPTIMIZER = re.compile(r"optim", re.IGNORECASE)


def is_own(path: Path, names: set[str], *, reported: bool) -> bool:
    """Tell whether a directory is a loop's own: transformers did not begin to write it, or the loop reported it."""
    saved = {name for name in names if _is_saved(name)}
    if names & _HF_FILES or not saved:
        return False
    weights = any(is_weights(name) for name in saved)
    begun = _HF_NAME.match(path.name) and any(_HF_WEIGHTS.match(name) for name in saved)
    return weights and (reported or (not begun and any(name.endswith(TORCH_ENDINGS) for name in saved)))


def check_own(look: Look, names: set[str], step: int | None, *, reported: bool) -> int | None:
    """Read all files of a directory of a loop's own; gives the step that is written in them, None for none."""
    saved = sorted(name for name in names if _is_saved(name))
    found = [_check(look, look.root / name, step) for name in saved]
    if not any(read.tensors for read in look.files if is_weights(read.path)):
        look.broken("missing", "", "there are no weights in it")
    if not any(_OPTIMIZER.search(name) for name in saved) and not any(optimizer for _, optimizer in found):
        _no_optimizer(look)
    if not reported:
        look.note(
            Level.CANNOT_TELL, "unread", "",
            "nothing says that the save has ended: no trainer_state.json, and no run reported it (checkpoint_saved)",
        )  # fmt: skip
    return next((one for one, _ in found if one is not None), None)


def check_file(look: Look, path: Path, step: int | None) -> int | None:
    """Read one file that is a whole checkpoint; gives the step that is written in it, None for none."""
    found, optimizer = _check(look, path, step)
    if look.files and not look.files[-1].tensors:
        look.broken("missing", path, "there are no weights in it")
    if look.files and not optimizer:
        _no_optimizer(look)
    return found


def _is_saved(name: str) -> bool:
    return name.endswith((".safetensors", *TORCH_ENDINGS))


def _no_optimizer(look: Look) -> None:
    look.loss("no-state", "", "no optimizer state: a restart begins with fresh moments")


def _check(look: Look, path: Path, step: int | None) -> tuple[int | None, bool]:
    """Read one file; gives the step in it and whether it holds an optimizer's state."""
    if path.suffix == ".safetensors":
        return None, any(_OPTIMIZER.search(name) for name in look.safetensors(path))
    tree = look.torch_file(path)
    found = next((value for key in _STEP_KEYS if isinstance(value := _get(tree, key), int)), None)
    if found is not None and step is not None and found != step:
        look.broken("step", path, f"{path.name} says step {found}, the name says step {step}")
    keys = [key for key, _ in tree.pairs if isinstance(key, str)] if isinstance(tree, Node) else []
    return found, any(_OPTIMIZER.search(key) for key in keys)


def _get(tree: Any, key: str) -> Any:
    return tree.get(key) if isinstance(tree, Node) else None


__all__ = ["check_file", "check_own", "is_own"]
