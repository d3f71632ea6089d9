"""Reads a settings file as plain YAML, and finds the line of what it says: what it means is for `config` to judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from grpo_sentinel.errors import ConfigError


def read_tree(source: Path) -> tuple[dict[Any, Any], Any]:
    """Read a YAML file: its settings, not yet checked, and the composed tree that `line_of` reads.

    Raises `ConfigError` when it cannot be read or parsed, or is no mapping. An empty file has no settings.
    """
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read the configuration {source}: {why}; give a readable YAML file") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date such as 2026-13-45 is a ValueError
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}" if where is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{source}{line}: not valid YAML ({problem}); correct the line") from error
    refuse_multiplied(node, source)
    _refuse_twice(node, source)
    if data is None:
        return {}, node
    if not isinstance(data, dict):
        kind = type(data).__name__
        raise ConfigError(f"{source}: expected a mapping of settings, got {kind}; see config.example.yaml")
    return data, node


_MOST_SETTINGS = 200_000


def refuse_multiplied(node: Any, source: Path | str) -> None:
    """Refuse aliases of aliases that stand for millions of settings: whoever walks or prints them never ends."""
    sizes: dict[int, int] = {}

    def size(one: Any) -> int:
        if id(one) not in sizes:
            sizes[id(one)] = 1  # while it is counted: an alias may lead back to where it stands
            parts = one.value if isinstance(one, yaml.SequenceNode) else []
            if isinstance(one, yaml.MappingNode):
                parts = [part for pair in one.value for part in pair]
            sizes[id(one)] = 1 + sum(map(size, parts))
        return sizes[id(one)]

    if size(node) > _MOST_SETTINGS:
        raise ConfigError(f"{source}: its aliases stand for more than {_MOST_SETTINGS:,} settings; write them out")


def _refuse_twice(node: Any, source: Path) -> None:
    """Refuse a key that stands twice in one mapping: YAML would take the later one without a word."""
    waiting, met = [node], set()
    while waiting:
        node = waiting.pop()
        if id(node) in met:  # an alias may lead back to where it stands
            continue
        met.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            waiting += [value for _, value in node.value]
            lines: dict[str, int] = {}
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                line = key.start_mark.line + 1
                if key.value in lines:
                    first = lines[key.value]
                    raise ConfigError(
                        f"{source} line {line}: {key.value} stands in line {first} already; put both into one"
                    )
                lines[key.value] = line


def line_of(node: Any, location: tuple[int | str, ...]) -> int | None:
    """Find the 1-based line of a key path in a composed YAML tree; the deepest part that exists counts."""
    line: int | None = None
    for part in location:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    line, node = key.start_mark.line + 1, value
                    break
            else:
                return line
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            return line
    return line
