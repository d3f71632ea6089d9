"""Lines that speak of a fault: what each says, which layer it belongs to, and whether it can be the cause.

`role` tells how far a line may be trusted: `cause` names a cause by itself; `symptom` follows from something
earlier when there is anything earlier; `witness` cannot decide alone (an exit code, an asynchronous error);
`teardown` is printed while everything ends and decides nothing. A `cause` beats a `symptom` even when it is
printed later, because collectives time out on the ranks that are *not* at fault.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from grpo_sentinel.history.logs.lines import Line
from grpo_sentinel.history.logs.marker_table import GATES, TABLE


@dataclass(frozen=True, slots=True)
class Marker:
    """One kind of line. `needle` is a plain text that every such line holds: it is looked for first."""

    name: str
    layer: str
    role: str  # cause | symptom | witness | teardown
    needle: str
    pattern: str
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A marker found in a log; `groups` are the named numbers and words of its pattern."""

    marker: Marker
    line: Line
    groups: dict[str, str]


MARKERS: tuple[Marker, ...] = tuple(Marker(*row) for row in TABLE)

_COMPILED = tuple((marker, re.compile(marker.pattern)) for marker in MARKERS)


_RARE = "zqjxkvbywgpfmucldhrsnioate "  # small letters, the rarest in English prose first
_SHORTEST = 5


def _from_its_rarest(text: str) -> str:
    """Give the end of a text from its rarest letter on: capitals, digits and signs are rarer than any small letter."""
    starts = range(max(1, len(text) - _SHORTEST + 1))
    return text[min(starts, key=lambda place: _RARE.find(text[place])) :]


def _gate() -> re.Pattern[str]:
    """Build `A(?:ctorDied|ssertion)|B(?:us error)|...`: one comparison decides about a first letter.

    A search for a set of first letters is the cheapest look there is, the cheaper the rarer these letters are.
    """
    tails: dict[str, list[str]] = {}
    for text in sorted(set(map(_from_its_rarest, GATES))):
        tails.setdefault(text[0], []).append(re.escape(text[1:]))
    return re.compile("|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in tails.items()))


_GATE = _gate()
_RAISE = re.compile(r"(?:^|\s\s)raise [\w.]+\(")  # the source line of a frame: what is raised stands below it

_OPTIONAL = frozenset(
    ("import_error", "shared_object", "undefined_symbol", "hub", "unknown_model", "wrong_gpu", "wrong_dtype",
     "deprecated_arg", "missing_attribute", "not_implemented", "no_compiler", "divisible", "config_key")
)  # fmt: skip
_WARNS = re.compile(r"\b(?:[A-Z]\w*Warning|WARNING|WARN)\b(?<!NCCL WARN)")
"""A warning of a library that is missing or does not fit: the program goes on without it."""


def find_marker(line: Line) -> Hit | None:
    """Give the first marker that this line carries, None for most lines."""
    text = line.text
    if _GATE.search(text) is None or _RAISE.search(text) is not None or "Error: Caught " in text:
        return None  # a loader's worker passes on what it caught: the exception itself stands below
    for marker, pattern in _COMPILED:
        if marker.needle in text:
            found = pattern.search(text)
            if found and marker.name in _OPTIONAL and _WARNS.search(text, 0, found.start()):
                return None
            if found:
                groups = {key: value for key, value in found.groupdict().items() if value is not None}
                return Hit(marker=marker, line=line, groups=groups)
    return None
