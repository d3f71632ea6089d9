"""Settings out of the shell script or command line that starts a trainer. Nothing is run.

Options (`--name value`, `--name=value`) and overrides (`a.b=value`) are read, with variables that it sets itself.
"""

from __future__ import annotations

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


__all__ = ["shell_settings"]
