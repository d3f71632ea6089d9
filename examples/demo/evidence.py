"""Proofs that need no word of grpo-sentinel: what the checkpoints on disk hold, and what the trainer logged itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """One checkpoint as read back from disk: counts over weights and optimizer state."""

    path: Path
    step: int
    values: int
    nonfinite: int


def checkpoints(output_dir: Path) -> list[CheckpointFacts]:
    """Read every complete checkpoint under `output_dir` and count what is not finite, oldest first."""
    folders = sorted(output_dir.glob("checkpoint-*"), key=lambda folder: int(folder.name.rpartition("-")[2]))
    return [read_checkpoint(folder) for folder in folders if (folder / "model.safetensors").is_file()]


def pinned(output_dir: Path) -> list[CheckpointFacts]:
    """Read the checkpoints that grpo-sentinel kept aside, beside the trainer's output directory."""
    return [one for folder in output_dir.parent.glob("sentinel-pinned/*") for one in checkpoints(folder)]


def read_checkpoint(folder: Path) -> CheckpointFacts:
    """Count the values and the non-finite values of one checkpoint (weights and optimizer moments)."""
    import torch
    from safetensors.torch import load_file

    values = nonfinite = 0
    tensors: list[Any] = list(load_file(folder / "model.safetensors").values())
    if (folder / "optimizer.pt").is_file():
        tensors += _tensors(torch.load(folder / "optimizer.pt", weights_only=True))
    for tensor in tensors:
        values += tensor.numel()
        nonfinite += int((~torch.isfinite(tensor)).sum())
    step = int(folder.name.rpartition("-")[2])
    return CheckpointFacts(path=folder, step=step, values=values, nonfinite=nonfinite)


def _tensors(tree: Any) -> Iterator[Any]:
    import torch

    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for branch in tree.values():
            yield from _tensors(branch)
    elif isinstance(tree, list | tuple):
        for branch in tree:
            yield from _tensors(branch)


def logged(output_dir: Path) -> list[dict[str, float]]:
    """Return what the trainer logged at every step, without the times, at full precision."""
    state = json.loads((output_dir / "trainer_state.json").read_text())
    rows = [row for row in state["log_history"] if "loss" in row]
    return [{key: value for key, value in row.items() if key != "step_time"} for row in rows]


def first_difference(one: Path, other: Path) -> str | None:
    """Compare two finished runs bit by bit: every logged number, then the last checkpoint; None when equal."""
    first, second = logged(one), logged(other)
    if len(first) != len(second):
        return f"{len(first)} logged steps against {len(second)}"
    for a, b in zip(first, second, strict=True):
        for key in a.keys() | b.keys():
            if repr(a.get(key)) != repr(b.get(key)):  # repr tells every bit of a float apart, and NaN equals NaN
                return f"step {a.get('step')}: {key} is {a.get(key)!r} against {b.get(key)!r}"
    newest = [checkpoints(folder)[-1].path / "model.safetensors" for folder in (one, other)]
    if newest[0].read_bytes() != newest[1].read_bytes():
        return f"the weights in {newest[0].parent.name} differ"
    return None
