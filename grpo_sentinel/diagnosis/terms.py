"""The terms of a reward that is a sum, whatever the trainer calls them, and what each is about."""

from __future__ import annotations

import re

from grpo_sentinel.diagnosis.found import Point
from grpo_sentinel.diagnosis.view import LogView

_TERM = re.compile(
    r"(?:train/)?rewards?/(?P<name>[^/]+?)(?:/mean|/avg)?$"
    r"|(?:[\w-]+/)*(?P<other>(?!(?:raw|avg|mean|task|total|sum|final|max|min|zero|group|train|eval|kl|std)_)[a-z]\w*_rewards?)"
    r"(?:/mean|/avg)?$"
)
_WHOLE = ("overall", "mean", "avg", "std", "max", "min", "total", "sum", "chosen", "rejected", "margins", "accuracies")
_OF_ANSWERS = re.compile(r"correct|accura|\bacc\b|answer|math|solution|exact|verif|solve|pass|success", re.IGNORECASE)
_OF_SHAPE = re.compile(r"format|length|len_|xml|tag|strict|soft|style|int_|number|think", re.IGNORECASE)
_TAKES = re.compile(
    r"penal|overlong|repet|length|(?:^|_)len(?:_|$)|cost|toxic|cosine|soft_over|truncat|kl\b", re.IGNORECASE
)
"""Terms that only take away, or come into play at the limit: 0 is what they are in a sound run."""


def terms_of(view: LogView) -> dict[str, list[Point]]:
    """Series of the means of every term of the reward, by its name."""
    out: dict[str, list[Point]] = {}
    for raw in dict.fromkeys(raw for row in view.rows for raw in row.raw):
        found = _TERM.fullmatch(raw)
        name = (found["name"] or found["other"]) if found else None
        if name and name.lower() not in _WHOLE and not name.endswith(("_std", "_max", "_min")):
            out.setdefault(name, view.series(raw))
    return out


def of_answers(name: str) -> bool:
    """Tell whether a term is about the answers themselves, not about their form."""
    return _OF_ANSWERS.search(name) is not None and _OF_SHAPE.search(name) is None


def of_form(name: str) -> bool:
    """Tell whether a term pays for the form of an answer, which every policy learns soon."""
    return _OF_SHAPE.search(name) is not None and not takes(name)


def takes(name: str) -> bool:
    """Tell whether a term only takes away."""
    return _TAKES.search(name) is not None
