"""What to try, for the run at hand: the options of its own trainer, and nothing that needs a run which was watched.

The remedies of the rules name an option once for each trainer (`TRL a, verl b, OpenRLHF --c`). Of such a row only the
own trainer's is kept; a sentence that speaks to other trainers alone is left out.
"""

from __future__ import annotations

import re

from grpo_sentinel.diagnosis.view import LogView

_FORMATS = {"verl": "verl", "openrlhf": "OpenRLHF", "trl": "TRL", "hf": "TRL", "swift": "TRL", "table": "TRL"}
_PACKAGES = (("/verl/", "verl"), ("/openrlhf/", "OpenRLHF"), ("/trl/", "TRL"))
_NAMES = r"(?:TRL|verl|OpenRLHF)"
_OPTION = re.compile(rf"\b({_NAMES})\b:? (?=\S)")
_ALIKE = re.compile(rf"^({_NAMES}(?: and \w+)+)[: ]")
_WATCHED = re.compile(r"\brules\.override\b|\bhalting\.|resume-point|\bgate off\b")
_CLAUSES = re.compile(rf"; (?=[^;:()]{{2,40}}: {_NAMES}\b)")
_SENTENCES = re.compile(r"(?<=[.)])\s+(?=[A-Z]|verl\b)")


def fitting(remedies: tuple[str, ...], view: LogView) -> tuple[str, ...]:
    """Leave out of some remedies what is for other trainers or for watched runs; all of them where nothing is left."""
    own = trainer_of(view)
    kept = [text for text in remedies if view.watched or not _WATCHED.search(text)]
    if own is not None:
        kept = [text for remedy in kept if (text := of_trainer(remedy, own))]
    return tuple(dict.fromkeys(kept)) or remedies


def trainer_of(view: LogView) -> str | None:
    """Name the trainer whose rows or frames a log holds; None where there are none, or those of several."""
    names = {_FORMATS[row.format] for row in view.rows[:50] if row.format in _FORMATS}
    if not names:
        paths = [frame.path for traceback, _ in view.tracebacks for frame in traceback.frames]
        names = {next((name for part, name in _PACKAGES if part in path), "") for path in paths} - {""}
    return names.pop() if len(names) == 1 else None


def of_trainer(remedy: str, own: str) -> str:
    """Keep of every sentence the options of one trainer; empty where the whole speaks to others."""
    return " ".join(filter(None, (_sentence(text, own) for text in _SENTENCES.split(remedy))))


def _sentence(text: str, own: str) -> str:
    alike = _ALIKE.match(text)
    if alike is not None:
        return text if own in alike[1] else ""
    kept = [clause for part in _CLAUSES.split(text) if (clause := _clause(part, own))]
    joined = "; ".join(clause.rstrip(".") for clause in kept[:-1]) + ("; " if len(kept) > 1 else "")
    whole = joined + kept[-1] if kept else ""
    return f"{whole}." if whole and text.endswith(".") and not whole.endswith(".") else whole


def _clause(text: str, own: str) -> str:
    options = list(_OPTION.finditer(text))
    if not options:
        return text
    start = options[0].start()
    end = _closing(text, start)
    stops = [*(option.start() for option in options[1:] if option.start() < end), end]
    parts = [text[option.start() : stop].rstrip(" ,;/.") for option, stop in zip(options, stops, strict=False)]
    lead, rest = text[:start], text[end:]
    if any(part.count("(") != part.count(")") for part in parts) or (lead.count("(") > 1 and not lead.endswith("(")):
        return text  # one bracket inside the other: better all than half of it
    mine = [part for part in parts if part.startswith(own)]
    if mine:
        return f"{lead.removeprefix('Elsewhere: ')}{', '.join(mine)}{rest}"
    if lead.endswith("("):
        return f"{lead[:-1].rstrip()}{rest[1:]}"
    if "(" in lead and ")" not in lead:
        return text
    return lead.rstrip("; ") if lead.endswith("; ") else ""


def _closing(text: str, start: int) -> int:
    """Give where a row of options ends: at the bracket in which it stands, else at the end of the sentence."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth < 0:
            return place
    return len(text.rstrip("."))
