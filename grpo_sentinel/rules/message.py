"""Turns a verdict into the words of a finding: numbers with their unit, ranks by name, words that agree with both.

A field with a colon gives the words that go with it as well: `{value:row has|rows have}` is "1 row has" or "3 rows
have", `{ranks:comes|come} late` is "rank 1 comes late". After the same field once more, the words alone are given:
`{value:module|modules} of {subject} {value:is|are} active`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import Formatter

from grpo_sentinel.catalog import signal_of
from grpo_sentinel.rules.quantities import percentage, quantity
from grpo_sentinel.rules.rule import Rule
from grpo_sentinel.rules.view import Verdict
from grpo_sentinel.wording import visible

FIELDS = ("value", "percent", "limit", "step", "onset", "ranks", "subject", "signal", "detail")
COUNTED = ("value", "ranks", "detail")
"""Fields that words may agree with."""

_LONGEST_NAME = 200
_AGREEING = re.compile(r"[^{}:|]+\|[^{}:|]+")


def problem_of(template: str) -> str:
    """Say what is wrong with a message; "" for nothing. Only plain fields: no attribute can be reached."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        return f"not a message template ({error})"
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        if name not in FIELDS or conversion:
            return f"{{{name}}} is no plain field; known are {', '.join(FIELDS)}"
        if spec and (name not in COUNTED or _AGREEING.fullmatch(spec) is None):
            return f"{{{name}:{spec}}} cannot be read; {{value:row has|rows have}} gives words that agree with a number"
    return ""


def in_general(template: str) -> str:
    """Give a message as documents show it: fields by name, words for more than one."""
    return fill(template, {name: f"{{{name}}}" for name in FIELDS}, frozenset())


def fill(template: str, fields: dict[str, str], single: frozenset[str]) -> str:
    """Put the fields in; `single` names those that count one thing."""
    out, given = [], set()
    for text, name, spec, _ in Formatter().parse(template):
        out.append(text)
        if name is None:
            continue
        words = (spec or "").partition("|")[0 if name in single else 2]
        out.append(" ".join([*([] if spec and name in given else [fields[name]]), *([words] if words else [])]))
        given.add(name)
    return "".join(out)


def rank_words(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0 and 3`, or `rank not known`."""
    if not ranks:
        return "rank not known"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 8:
        return f"{len(ranks)} ranks"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _plain(name: str) -> str:
    """Give a trainer's own name as one short line; see `visible`."""
    text = visible(name)
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"


def write(rule: Rule, verdict: Verdict, *, step: int, onset: int, ranks: Sequence[int], subject: str) -> str:
    """Fill the rule's message."""
    base = signal_of(verdict.signal) if verdict.signal and " " not in verdict.signal else None
    unit = base.unit if base is not None else ("bytes" if "_bytes" in verdict.signal else "")
    fields = {
        "value": quantity(verdict.value, unit),
        "percent": percentage(verdict.value),
        "limit": quantity(verdict.limit, unit),
        "step": str(step),
        "onset": str(onset),
        "ranks": rank_words(ranks),
        "subject": _plain(subject) or ("parameter not known" if rule.attribution == "nonfinite" else "?"),
        "signal": verdict.signal,
        "detail": visible(" ".join(verdict.detail.split())),
    }
    single = {name for name in ("value", "detail") if fields[name] == "1"} | ({"ranks"} if len(ranks) <= 1 else set())
    return fill(rule.message, fields, frozenset(single))


__all__ = ["COUNTED", "FIELDS", "fill", "in_general", "problem_of", "rank_words", "write"]
