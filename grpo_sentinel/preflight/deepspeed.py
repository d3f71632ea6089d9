"""Checkpoints of DeepSpeed: a file `latest` that names a tag, and in the tag's directory one set of files per rank.

    latest                                                  "global_step120"
    global_step120/mp_rank_00_model_states.pt               weights (ZeRO 0 to 2), one per model-parallel rank
    global_step120/zero_pp_rank_3_mp_rank_00_model_states.pt    weights (ZeRO 3), one per data-parallel rank too
    global_step120/[bf16_]zero_pp_rank_3_mp_rank_00_optim_states.pt   optimizer (ZeRO 1 to 3)

How many ranks there were stands in the files themselves (`dp_world_size`, `mp_world_size`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from grpo_sentinel.halting.inert_pickle import Node
from grpo_sentinel.preflight.look import Look

_TAG = re.compile(r"^global_step(\d+)$")
_MODEL = re.compile(r"^(?:zero_pp_rank_(?P<dp>\d+)_)?mp_rank_(?P<mp>\d+)_model_states\.pt$")
_OPTIMIZER = re.compile(r"^(?:bf16_|fp16_)?zero_pp_rank_(?P<dp>\d+)_mp_rank_(?P<mp>\d+)_optim_states\.pt$")
_OTHER = re.compile(r"^(?:layer_\d+-.*model_states|expp_rank_\d+_.*optim_states|layer_.*expert.*)\.pt$")


def is_tag_directory(names: Iterable[str]) -> bool:
    """Tell whether these are the files of one tag."""
    return any(_MODEL.match(name) or _OPTIMIZER.match(name) for name in names)


def tag_directories(directory: Path, names: Iterable[str]) -> list[Path]:
    """List the tags inside a checkpoint directory."""
    return sorted(directory / name for name in names if _TAG.match(name) and (directory / name).is_dir())


def check_latest(look: Look, directory: Path, tags: list[Path], step: int | None) -> Path | None:
    """Find the tag that DeepSpeed would load; None when it would find none."""
    latest = directory / "latest"
    try:
        tag = latest.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        look.broken("missing", latest, "latest is missing or unreadable: DeepSpeed finds the checkpoint by it")
        return tags[-1] if tags else None
    chosen = directory / Path(tag).name
    if not chosen.is_dir():
        look.broken("missing", chosen, f"{tag} is missing: latest names it")
        return None
    match = _TAG.match(tag)
    if match and step is not None and int(match[1]) != step:
        look.broken("step", latest, f"latest names {tag}, but the directory is of step {step}")
    return chosen


def check_tag(look: Look, directory: Path) -> int:
    """Check the files of one tag; gives the number of ranks that saved, as the files say (0: they do not say)."""
    names = {entry.name for entry in directory.iterdir()}
    models = {name: match for name in names if (match := _MODEL.match(name))}
    optimizers = {name: match for name in names if (match := _OPTIMIZER.match(name))}
    data_parallel, model_parallel, own_optimizer = 0, 0, False
    for name in sorted(models):
        tree = look.torch_file(directory / name)
        if isinstance(tree, Node):
            data_parallel = max(data_parallel, _whole(tree.get("dp_world_size")))
            model_parallel = max(model_parallel, _whole(tree.get("mp_world_size")))
            own_optimizer = own_optimizer or tree.get("optimizer") is not None
    for name in sorted(name for name in names if name in optimizers or _OTHER.match(name)):
        look.torch_file(directory / name)
    if not models:
        look.broken("missing", directory, f"{directory.name} holds no model states")
    _require_ranks(look, directory, "model states", models, data_parallel, model_parallel)
    _require_ranks(look, directory, "optimizer states", optimizers, data_parallel, model_parallel)
    if not optimizers and not own_optimizer:
        look.loss("no-state", directory, f"{directory.name} holds no optimizer states: moments start anew")
    return data_parallel * max(1, model_parallel)


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _require_ranks(
    look: Look, directory: Path, what: str, files: dict[str, re.Match[str]], data_parallel: int, model_parallel: int
) -> None:
    """Name the shards that are not there: by the sizes that the files state, else by gaps in their numbers."""
    held = {(int(match["dp"]) if match["dp"] is not None else None, int(match["mp"])) for match in files.values()}
    if not held:
        return
    sharded = {dp for dp, _ in held if dp is not None}
    model_ranks = range(max(model_parallel, 1 + max(mp for _, mp in held)))
    data_ranks: list[int | None] = list(range(max(data_parallel, 1 + max(sharded)))) if sharded else [None]
    for mp in model_ranks:
        for dp in data_ranks:
            if (dp, mp) not in held:
                rank = f"model-parallel rank {mp}" + (f", data-parallel rank {dp}" if dp is not None else "")
                look.broken("missing", directory, f"{what} of {rank} are missing in {directory.name}")


__all__ = ["check_latest", "check_tag", "is_tag_directory", "tag_directories"]
