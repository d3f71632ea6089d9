"""Lines that tell of a fault in passing: of what is dealt with, of a tracker itself, of a destructor at exit."""

from __future__ import annotations

import re

from grpo_sentinel.history.logs.markers import Hit

_TRACKERS = ("wandb: ", "swanlab: ", "mlflow ")  # one that takes the run down raises
_HANDLED = re.compile(
    r"\b(?:falling back|fall(?:s|ing)? back to|continuing without|retry(?:ing)? with|(?:is|was|will be) ignored)\b"
    r"|, ignored\b|\(optional\)|is skipped\b"
)
_LEFT_OUT = re.compile(
    r"\b(?:rows?|samples?|examples?|prompts?|conversations?)\b.{0,40}\b(?:skipped|dropped|filtered|removed)\b"
    r"|\b(?:[Ff]ilter(?:ed|ing)(?: out)?|[Ss]kipp(?:ed|ing)|[Dd]ropp(?:ed|ing))\b.{0,40}"
    r"\b(?:rows?|samples?|examples?|prompts?)\b"
)
_ASIDE = re.compile(
    r"\bException ignored in\b|\bexception was never retrieved"
    r"|^Exception in thread (?:QueueFeeder|NetStat|ChkStop|IntMsg)"
)


def of_a_tracker(text: str) -> bool:
    """Tell whether an experiment tracker speaks of itself."""
    return text.startswith(_TRACKERS)


def told_in_passing(hit: Hit) -> bool:
    """Tell whether a line says itself that it was dealt with: another way is taken, a sample is left out."""
    text = hit.line.text
    return _HANDLED.search(text) is not None or (hit.marker.layer == "data" and _LEFT_OUT.search(text) is not None)


def opens_aside(text: str) -> bool:
    """Tell whether the traceback that follows is of something that nobody waits for: it ends no process."""
    return "xception" in text and _ASIDE.search(text) is not None
