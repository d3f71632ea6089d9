"""`check checkpoint`: can a restart use this directory? Yes, no, or cannot tell, with the reasons.

    transformers, TRL    model.safetensors or shards, optimizer.pt, scheduler.pt, rng_state*.pth, trainer_state.json
    DeepSpeed            latest, global_step<N>/
    FSDP and others      .metadata, __<rank>_<n>.distcp
    a loop of one's own  checkpoint_12.pt, or a directory of files of torch.save and safetensors

Every number is looked at, nothing is unpickled, and torch is not needed, except for files older than torch 1.6.
"""

from __future__ import annotations

import enum
import os
import time
from dataclasses import dataclass
from pathlib import Path

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.harm import step_of
from grpo_sentinel.preflight import dcp, deepspeed, own_layout
from grpo_sentinel.preflight.look import FileRead, Level, Look, Problem
from grpo_sentinel.preflight.training_state import check_trainer_state, check_training_files
from grpo_sentinel.preflight.weights import check_weights

SCHEMA = "grpo-sentinel/checkpoint-check"
SCHEMA_VERSION = 1
_TRAINER_FILES = {"trainer_state.json", "optimizer.pt", "scheduler.pt", "training_args.bin"}


class Resumable(enum.Enum):
    """The answer."""

    YES = "yes"
    NO = "no"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    """Answer and reasons; `problems` is empty only when nothing at all was found."""

    path: Path
    layout: tuple[str, ...]  # transformers, deepspeed, distributed, weights, own
    step: int | None
    resumable: Resumable
    finite: bool | None  # every number was looked at and is finite; None = not all could be looked at
    problems: tuple[Problem, ...]
    files: tuple[FileRead, ...]
    seconds: float

    @property
    def reasons(self) -> tuple[str, ...]:
        """What the answer rests on, the gravest first."""
        told = [problem.message for problem in self.problems]
        return tuple(told) or ("everything that a restart needs is there, whole and finite",)

    def to_json(self) -> dict[str, object]:
        """Give the report in its versioned schema."""
        return {
            "schema": SCHEMA, "version": SCHEMA_VERSION, "path": str(self.path), "layout": list(self.layout),
            "step": self.step, "resumable": self.resumable.value, "finite": self.finite, "reasons": list(self.reasons),
            "problems": list(self.problems), "files": list(self.files), "seconds": round(self.seconds, 3),
        }  # fmt: skip


def check_checkpoint(path: Path, *, quick: bool = False, reported: bool = False) -> CheckpointReport:
    """Check one checkpoint, a directory or a file; `quick` tells whole from half without reading the numbers.

    `reported`: the trainer said that this save had ended. Raises `SentinelError` when `path` is not there, cannot be
    listed, or holds checkpoints instead of being one.
    """
    began = time.monotonic()
    path = path.resolve()
    step = step_of(path.name)
    layout: tuple[str, ...] = ("own",)
    if path.is_file():
        look = Look(path.parent, quick)
        found_step = own_layout.check_file(look, path, step)
    else:
        names = _names(path)
        look = Look(path, quick)
        layout, found_step = _check(look, names, step, reported)
    if quick:
        look.note(Level.CANNOT_TELL, "unread", "", "its numbers were not read (quick): they may be non-finite")
    order = list(Level)
    problems = tuple(sorted(look.problems, key=lambda problem: order.index(problem.level)))
    return CheckpointReport(
        path=path, layout=layout, step=found_step if found_step is not None else step, resumable=_answer(problems),
        finite=_finite(problems), problems=problems, files=tuple(look.files), seconds=time.monotonic() - began,
    )  # fmt: skip


def _names(path: Path) -> set[str]:
    try:
        names = set(os.listdir(path))
    except OSError as error:
        raise SentinelError(f"cannot read {path}: {error.strerror}; give one checkpoint") from error
    inside = sorted(name for name in names if step_of(name) is not None)
    if inside and not names & _TRAINER_FILES:
        raise SentinelError(
            f"{path} holds {len(inside)} checkpoints; name one of them, for example {path / inside[-1]}, or let "
            "`grpo-sentinel resume-point` choose"
        )
    return names


def _check(look: Look, names: set[str], step: int | None, reported: bool) -> tuple[tuple[str, ...], int | None]:
    if own_layout.is_own(look.root, names, reported=reported):
        return ("own",), own_layout.check_own(look, names, step, reported=reported)
    layout: list[str] = []
    ranks = 0
    optimizer_elsewhere = False
    weights = check_weights(look, look.root, names)
    tags = deepspeed.tag_directories(look.root, names)
    if tags or "latest" in names:
        tag = deepspeed.check_latest(look, look.root, tags, step)
    else:
        tag = look.root if deepspeed.is_tag_directory(names) else None
    if tag is not None:
        layout.append("deepspeed")
        ranks = deepspeed.check_tag(look, tag)
        weights = optimizer_elsewhere = True
    for directory in [look.root, *sorted(look.root / name for name in names if (look.root / name).is_dir())]:
        inside = names if directory == look.root else {entry.name for entry in directory.iterdir()}
        if dcp.is_distributed(inside):
            layout.append("distributed")
            dcp.check_distributed(look, directory)
            optimizer = directory.name.startswith("optimizer")
            weights, optimizer_elsewhere = weights or not optimizer, optimizer_elsewhere or optimizer
    trainer = bool(names & _TRAINER_FILES) or step is not None
    if not weights:
        look.broken("missing", "", "there are no weights in it")
    if not trainer:
        return tuple(dict.fromkeys(layout)) or ("weights",), None
    found = check_trainer_state(look, names, step)
    check_training_files(look, names, found or step, optimizer_elsewhere=optimizer_elsewhere, ranks=ranks)
    return ("transformers", *dict.fromkeys(layout)), found


def _answer(problems: tuple[Problem, ...]) -> Resumable:
    levels = {problem.level for problem in problems}
    if Level.BROKEN in levels:
        return Resumable.NO
    return Resumable.CANNOT_TELL if Level.CANNOT_TELL in levels else Resumable.YES


def _finite(problems: tuple[Problem, ...]) -> bool | None:
    if any(problem.level is Level.BROKEN and problem.code == "non-finite" for problem in problems):
        return False
    return None if any(problem.level is not Level.LOSS for problem in problems) else True


__all__ = ["SCHEMA", "SCHEMA_VERSION", "CheckpointReport", "Resumable", "check_checkpoint"]
