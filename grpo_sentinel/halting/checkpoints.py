"""Finds checkpoints, tells whole from half, and looks for numbers in them that are not finite. Nothing is unpickled.

<output_dir>/checkpoint-12/      transformers: whole once trainer_state.json, which is written last, is there; its
                                 weights in files or in shards of DeepSpeed (global_step12/) or FSDP (.metadata)
<output_dir>/step_12/            a loop of one's own: whole once the trainer has reported it (`checkpoint_saved`)
<output_dir>/checkpoint_12.pt    one file, of torch.save or safetensors: says itself whether it is whole
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from grpo_sentinel.halting.safetensors import FiniteReport, merge, read_header, scan_file
from grpo_sentinel.halting.torch_file import CannotTell, scan_torch_file
from grpo_sentinel.harm import step_of

TORCH_ENDINGS = (".pt", ".pth", ".ckpt", ".bin")
_WEIGHTS = ("model.safetensors", "adapter_model.safetensors", "pytorch_model.bin", "adapter_model.bin")
_INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_BESIDE_WEIGHTS = re.compile(r"optim|sched|scaler|rng|random|training_args", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint, a directory or a file; `problem` is "" when everything a restart needs is there."""

    path: Path
    step: int
    problem: str = ""


def scan_directory(directory: Path, reported: Collection[Path] = ()) -> list[Checkpoint]:
    """List the checkpoints in `directory`, newest step first; [] when it cannot be read.

    `reported` are those that the trainer said it had finished.
    """
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(directory):
            step, path = step_of(entry.name), Path(entry.path)
            if step is not None and (entry.is_dir() or path.suffix):
                found.append(inspect(path, step, reported=path in reported))
    return sorted(found, key=lambda checkpoint: -checkpoint.step)


def inspect(path: Path, step: int, *, reported: bool = False) -> Checkpoint:
    """Tell whether one checkpoint is whole: weights there and not cut short, and the save has ended."""
    return Checkpoint(path=path, step=step, problem=problem_of(path, step, reported=reported))


def problem_of(path: Path, step: int, *, reported: bool = False) -> str:
    """Say in one sentence why a checkpoint of this step is half; "" when it is whole."""
    try:
        if path.is_file():
            _require_whole(path)
            return ""
        names = {entry.name for entry in os.scandir(path)}
        if "trainer_state.json" in names:
            state = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
            if state.get("global_step") != step:
                return f"trainer_state.json is of step {state.get('global_step')}"
        elif not reported:
            return "trainer_state.json is missing: the save has not ended"
        weights = [name for name in names if name in _WEIGHTS] or _shards(path, names)
        if not weights and "trainer_state.json" not in names:
            weights = sorted(name for name in names if is_weights(name))
        if not weights and not _sharded(path, names):
            return "no weights"
        missing = sorted(set(weights) - names)
        if missing:
            return f"{missing[0]} is missing"
        for name in weights:
            _require_whole(path / name)
    except (OSError, ValueError, AttributeError) as error:
        return str(error)
    return ""


def _sharded(path: Path, names: Iterable[str]) -> list[str]:
    """Name the folders that hold shards: of DeepSpeed, or of torch.distributed.checkpoint, which FSDP saves by."""
    return sorted(
        name for name in names
        if (path / name / ".metadata").is_file() or (name.startswith("global_step") and (path / name).is_dir())
    )  # fmt: skip


def is_weights(name: str) -> bool:
    """Tell whether a file may hold weights: of safetensors or torch.save, and not named for something else."""
    return name.endswith((".safetensors", *TORCH_ENDINGS)) and not _BESIDE_WEIGHTS.search(name)


def _require_whole(path: Path) -> None:
    """Raise `ValueError` when a file of weights is cut short."""
    if path.suffix == ".safetensors":
        read_header(path)
    elif path.suffix in TORCH_ENDINGS:
        _scan_torch(path, quick=True)


def _scan_torch(path: Path, *, quick: bool = False) -> FiniteReport:
    try:
        with path.open("rb") as file:
            return scan_torch_file(file, path.name, quick=quick, with_torch=False).report
    except CannotTell:
        return FiniteReport(unchecked=(path.name,))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _shards(path: Path, names: Iterable[str]) -> list[str]:
    """Name the shard files that a sharded checkpoint's index asks for. Raises `OSError`, `ValueError`."""
    for index in _INDICES:
        if index in names:
            weight_map = json.loads((path / index).read_text(encoding="utf-8"))["weight_map"]
            return sorted(set(map(str, weight_map.values())))
    return []


def check_finite(path: Path) -> FiniteReport:
    """Count non-finite elements in all weights of a checkpoint, or in one file.

    What cannot be judged without unpickling is named in `unchecked`. Raises `ValueError` on a torn file, `OSError`
    when one cannot be read.
    """
    if path.is_file():
        return _scan(path)
    files = sorted(file for file in path.iterdir() if is_weights(file.name))
    unread: list[str] = []
    for folder in _sharded(path, [file.name for file in path.iterdir()]):
        files += sorted((path / folder).glob("*_states.pt"))  # DeepSpeed's; the others' are parts of tensors
        unread += [f"{folder}/{file.name}" for file in sorted((path / folder).glob("*.distcp"))]
    return merge([*map(_scan, files), FiniteReport(unchecked=tuple(unread))])


def _scan(path: Path) -> FiniteReport:
    return scan_file(path) if path.suffix == ".safetensors" else _scan_torch(path)


def newest_before(checkpoints: Iterable[Checkpoint], onset_step: int) -> list[Checkpoint]:
    """Keep whole checkpoints saved before the first abnormal step, newest first.

    `checkpoint-N` holds the weights after update N, so N < onset. Finite is not enough: one step at a learning
    rate of 10 leaves finite, dead weights, hence before the onset and not merely before the first NaN.
    """
    good = [checkpoint for checkpoint in checkpoints if not checkpoint.problem and checkpoint.step < onset_step]
    return sorted(good, key=lambda checkpoint: -checkpoint.step)
