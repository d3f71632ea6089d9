"""What `launch` makes of a faulty configuration: every valid setting holds, the bad ones go, nothing gets bolder.

A default can be more intrusive than what a misspelled line meant: whoever writes `dry_run: ture` wants no halt. So a
mistake that may concern halting switches `halting.dry_run` on, and a setting that cannot be read takes its least
intrusive value where that is not its default.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_sentinel.config import Config, explain, mistakes_in
from grpo_sentinel.errors import ConfigError
from grpo_sentinel.settings_file import read_tree
from grpo_sentinel.settings_section import Section

_Path = tuple[Any, ...]
_Least = dict[tuple[str, str], object]
_LEAST: _Least = {
    ("agent", "enabled"): False, ("agent", "gate"): "off", ("agent", "capture"): "off",
    ("incidents", "enabled"): False, ("incidents", "samples"): "off", ("http", "enabled"): False,
    ("halting", "pin_checkpoints"): False,
}  # fmt: skip
_DECIDE_HALTS = ("halting", "rules")  # what a rule asks for, and whether it may
_LEAVE_THE_NODE = {("sinks", "wandb"), ("sinks", "mlflow")}  # with a mistake in it such a sink stays off as a whole
_FORCED = {("halting", "dry_run"), ("http", "host")}  # whatever the file says of them elsewhere


@dataclass(frozen=True, slots=True)
class Salvage:
    """What holds of a file, one sentence for each setting that does not, and what is held back because of these."""

    config: Config
    mistakes: tuple[str, ...] = ()
    held_back: tuple[str, ...] = ()


def salvage(path: str | Path | None) -> Salvage:
    """Read as much of a configuration as is valid. Never raises for what the file holds, or for its absence."""
    if path is None:
        return Salvage(Config())
    source = Path(path)
    try:
        data, node = read_tree(source)
    except ConfigError as error:
        return _held_back(Config(), [str(error)], {("halting", "dry_run"): True})
    mistakes: list[str] = []
    least: _Least = {}
    while True:
        errors = mistakes_in(data)
        if not errors:
            return _held_back(Config.model_validate(data), mistakes, least)
        mistakes += [explain(one, source, node) for one in errors]
        places = [_drop(data, _whole(one["loc"])) for one in reversed(errors)]  # backwards: lists keep their places
        if not any(places):  # nothing that could be taken out: the file as a whole is of no use
            return _held_back(Config(), mistakes, {("halting", "dry_run"): True})
        for place in filter(None, reversed(places)):
            least.update(_least(place))


def _whole(location: _Path) -> _Path:
    return location[:2] if location[:2] in _LEAVE_THE_NODE else location


def _drop(tree: Any, location: _Path) -> _Path:
    """Take what a key path names out of the tree, or the last value on the way to it; gives its path, () for none."""
    steps: list[tuple[Any, Any]] = []
    node = tree
    for part in location:
        if isinstance(node, dict):
            keys = [key for key in node if str(key) == str(part)]
            if not keys and part != "[key]":
                return ()  # gone already
            step = keys[:1]
        else:
            step = [part] if isinstance(node, list) and isinstance(part, int) and part < len(node) else []
        if not step:
            break  # "[key]", or a kind of value: not a place of its own
        steps.append((node, step[0]))
        node = node[step[0]]
    if not steps:
        return ()
    holder, last = steps[-1]
    del holder[last]
    return tuple(key for _, key in steps)


def _least(place: _Path) -> _Least:
    """Give what must be held back for one setting that was dropped."""
    section, name = str(place[0]), str(place[1]) if len(place) > 1 else ""
    out: _Least = {}
    if section in _DECIDE_HALTS or section not in Config.model_fields or _like(name, ["dry_run"]):
        out["halting", "dry_run"] = True
    if (section, name) in _LEAVE_THE_NODE:
        out[section, name] = getattr(Config().sinks, name)
    if section == "http":
        out["http", "host"] = Config().http.host  # the mistake may have been what guards an open address
    part = getattr(Config(), section, None)
    for key in [key for owner, key in _LEAST if owner == section]:
        known = name in type(part).model_fields if isinstance(part, Section) else False
        if name in ("", key) or (not known and _like(name, [key])):  # the whole section, the key, or its misspelling
            out[section, key] = _LEAST[section, key]
    return out


def _like(name: str, known: list[str]) -> bool:
    return bool(difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.75))


def _held_back(config: Config, mistakes: list[str], least: _Least) -> Salvage:
    told = []
    for (section, key), value in least.items():
        part = getattr(config, section)
        if (section, key) == ("http", "host") and part.host == value:
            continue  # nothing to hold back
        if (section, key) in _FORCED or key not in part.model_fields_set:  # else it is said well in the same section
            config = config.model_copy(update={section: part.model_copy(update={key: value})})
            told.append(f"{section}.{key}: {'off' if isinstance(value, Section) else str(value).lower()}")
    return Salvage(config, tuple(" ".join(one.split()) for one in mistakes), tuple(told))


__all__ = ["Salvage", "salvage"]
