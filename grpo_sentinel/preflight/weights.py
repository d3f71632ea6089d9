"""Weights as transformers saves them: one file or shards with an index, of a model or of an adapter."""

from __future__ import annotations

import json
import re
from pathlib import Path

from grpo_sentinel.preflight.look import Look

_SINGLE = ("model", "adapter_model", "pytorch_model", "pytorch_model_fsdp")
_SHARD = re.compile(r"^(?P<base>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.(?:safetensors|bin)$")
_INDEX = re.compile(r"\.(?:safetensors|bin)\.index\.json$")


def check_weights(look: Look, directory: Path, names: set[str]) -> bool:
    """Read all weights in `directory`; tells whether there are any (also when they are broken)."""
    files = {name for name in names if _is_weights(name)}
    indices = {name for name in names if _INDEX.search(name)}
    expected: dict[str, set[str]] = {}
    for index in sorted(indices):
        expected.update(_indexed(look, directory / index))
    _require_shards(look, directory, files | indices, files, set(expected))
    for name in sorted(expected.keys() - names):
        look.broken("missing", directory / name, f"{name} is missing: the index asks for it")
    for name in sorted(files):
        held = _read(look, directory / name)
        lacking = sorted(expected.get(name, set()) - set(held)) if held else []
        if lacking:
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            what = f"{name} lacks {lacking[0]}{more}, which the index places there"
            look.broken("incomplete", directory / name, what)
    return bool(files or indices)


def _is_weights(name: str) -> bool:
    stem, _, ending = name.rpartition(".")
    if ending not in ("safetensors", "bin"):
        return False
    return stem in _SINGLE or ending == "safetensors" or bool(_SHARD.match(name))


def _read(look: Look, path: Path) -> tuple[str, ...]:
    if path.suffix == ".safetensors":
        return look.safetensors(path)
    look.torch_file(path)
    return ()


def _indexed(look: Look, path: Path) -> dict[str, set[str]]:
    """Read an index: file -> names of the tensors that belong there."""
    out: dict[str, set[str]] = {}
    try:
        for tensor, file in json.loads(path.read_text(encoding="utf-8"))["weight_map"].items():
            out.setdefault(Path(str(file)).name, set()).add(str(tensor))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        look.broken("damaged", path, f"{path.name} is not a readable index: {error}")
    return out


def _require_shards(look: Look, directory: Path, present: set[str], files: set[str], indexed: set[str]) -> None:
    """Count shards by their own names: `-00001-of-00003` says that there are three."""
    groups: dict[tuple[str, str, int], set[int]] = {}
    for name in files:
        match = _SHARD.match(name)
        if match:
            key = (match["base"], Path(name).suffix, int(match["count"]))
            groups.setdefault(key, set()).add(int(match["number"]))
    for (base, suffix, count), numbers in sorted(groups.items()):
        for number in sorted(set(range(1, count + 1)) - numbers):
            name = f"{base}-{number:05d}-of-{count:05d}{suffix}"
            if name not in indexed:
                look.broken("missing", directory / name, f"{name} is missing: there should be {count} shards")
        index = f"{base}{suffix}.index.json"
        if index not in present:
            look.broken("missing", directory / index, f"{index} is missing: without it the shards are not found")


__all__ = ["check_weights"]
