"""Settings out of what starts a trainer: a shell script or command line, or the Python script that makes a config.

Nothing is run. Of a shell script, options (`--name value`, `--name=value`) and overrides (`a.b=value`) are read, with
variables that it sets itself; of a Python script, the literals that a call of `...Config(...)` is given, and those of
dicts that it is given as `**settings`.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

_OPTION = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_SHORT = re.compile(r"-[-A-Za-z]")
_ENDS_OPTION = re.compile(r"[|;&<>)]|\d>|EOF$")
_CONFIGS = ("GRPOConfig", "TrainingArguments", "RLOOConfig")


def shell_settings(text: str) -> dict[str, Any]:
    """Options and overrides of a shell script, keys as they are written; {} when there is none."""
    words = [_known(word, known) for word, known in _words(text)]
    found: dict[str, Any] = {}
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        if option := _OPTION.fullmatch(word):
            values = [] if option[2] is None else [option[2]]
            while option[2] is None and at < len(words) and _is_value(words[at]):
                values.append(words[at])
                at += 1
            found[option[1].replace("-", "_")] = _value(values)
        elif override := _OVERRIDE.fullmatch(word):
            found[override[1]] = _value([override[2]])
    return found


def _words(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Words of the script, each with the variables that are set before it."""
    known: dict[str, str] = {}
    for line in re.sub(r"\\[ \t]*\n", " ", text).splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a quotation over several lines, an apostrophe in prose
            words = line.replace('"', " ").replace("'", " ").split()
        for word in (one.rstrip(";") for one in words):
            assigned = _ASSIGNMENT.fullmatch(word)
            if assigned and not word.startswith("+"):
                known = {**known, assigned[1]: _known(assigned[2], known)}
            yield word, known


def _known(word: str, variables: Mapping[str, str]) -> str:
    """Put in the variables that are known; another stays as it is."""
    return _VARIABLE.sub(lambda one: variables.get(one[1] or one[3], one[0] if one[2] is None else one[2]), word)


def _is_value(word: str) -> bool:
    return not (_SHORT.match(word) or _ENDS_OPTION.match(word) or _OVERRIDE.fullmatch(word))


def _value(words: list[str]) -> Any:
    """What a shell hands over as text, as YAML reads it; an option without a value is on."""
    if not words:
        return True
    if len(words) > 1 and all(map(_is_number, words)):
        return [_value([word]) for word in words]
    try:  # of several words that are no numbers, the rest belongs to the command
        value = yaml.safe_load(words[0])
    except (yaml.YAMLError, ValueError, RecursionError):
        return words[0]
    return words[0] if value is None and words[0] not in ("null", "~") else value


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def python_settings(text: str) -> dict[str, Any]:
    """What the calls of a trainer's config are given in a Python script, as far as it is written there.

    Raises `SyntaxError`, or `ValueError` and `RecursionError` where Python's own parser does.
    """
    tree = ast.parse(text)
    names: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for target, value in _assignments(tree):
        if isinstance(target, ast.Name):
            names[target.id] = _literal(value, names)
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            settings, key = names.get(target.value.id), _literal(target.slice, names)
            if isinstance(settings, dict) and isinstance(key, str):
                settings[key] = _literal(value, names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node.func).endswith(_CONFIGS):
            given = _keywords(node, names)
            found |= {name: value for name, value in given.items() if value is not None}
    return found


def _assignments(tree: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Targets and values in the order of lines."""
    found = [node for node in ast.walk(tree) if isinstance(node, (ast.Assign, ast.AnnAssign))]
    return [
        (target, node.value)
        for node in sorted(found, key=lambda node: node.lineno)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if node.value is not None
    ]


def _keywords(call: ast.Call, names: Mapping[str, Any]) -> dict[str, Any]:
    """What a call is given by name, `**settings` among it."""
    out: dict[str, Any] = {}
    for one in call.keywords:
        out |= {one.arg: _literal(one.value, names)} if one.arg else _settings(one.value, names)
    return out


def _settings(node: ast.expr | None, names: Mapping[str, Any]) -> dict[str, Any]:
    """A dict, as far as it is written out: `{...}`, `dict(...)`, or a name for one; {} for anything else."""
    if isinstance(node, ast.Name):
        known = names.get(node.id)
        return dict(known) if isinstance(known, dict) else {}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        return {**(_settings(node.args[0], names) if node.args else {}), **_keywords(node, names)}
    out: dict[str, Any] = {}
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:  # {**others}
                out |= _settings(value, names)
            elif isinstance(key, ast.Constant) and isinstance(key.value, str):
                out[key.value] = _literal(value, names)
    return out


def _called(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _literal(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """A literal, a dict as far as it is one, or a name for one; None for anything else."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _settings(node, names) or None


__all__ = ["python_settings", "shell_settings"]
