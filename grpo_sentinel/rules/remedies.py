"""What to try for a cause that the diagnosis of a log names: the remedies of the rules, and what only logs need.

`remedies.yaml` beside this file is a table from causes to rules of the catalogue (`rules`), to words for the reader of
a log (`also`), or to another cause (`like`).
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Any

import yaml

from grpo_sentinel.catalog import LAYERS


def remedies_of(cause: str) -> tuple[str, ...]:
    """Give the remedies of a cause, those of the rules first; none for a cause that the table does not hold."""
    entry = _table().get(cause, {})
    of_rules = (remedy for rule in entry.get("rules", ()) for remedy in remedies_of_rule(rule))
    others = remedies_of(entry["like"]) if "like" in entry else ()
    return tuple(dict.fromkeys((*of_rules, *entry.get("also", ()), *others)))


def remedies_of_rule(name: str) -> tuple[str, ...]:
    """Give the remedies of a built-in rule. Raises KeyError when there is none of that name."""
    line = f"- name: {name}\n"
    for layer in LAYERS:
        text = _catalogue(layer)
        if line in text:
            return _rules(layer)[name]
    raise KeyError(name)


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = yaml.safe_load(_files().joinpath("remedies.yaml").read_text(encoding="utf-8"))
    return table


@lru_cache(maxsize=len(LAYERS))
def _catalogue(layer: str) -> str:
    entry = _files().joinpath("catalogue").joinpath(f"{layer}.yaml")
    return str(entry.read_text(encoding="utf-8")) if entry.is_file() else ""


@lru_cache(maxsize=len(LAYERS))
def _rules(layer: str) -> dict[str, tuple[str, ...]]:
    return {rule["name"]: tuple(rule["remedies"]) for rule in yaml.safe_load(_catalogue(layer))["rules"]}


def _files() -> Any:
    return resources.files("grpo_sentinel.rules")
