"""Lines that tell of a fault in passing: of what is dealt with, of a tracker itself, of a destructor at exit."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from grpo_sentinel.history.logs.lines import Line
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


_ENDING = re.compile(
    r"\b(?:[Kk]illed|[Tt]erminated|TERM\w*|[Cc]ancell?ed|CANCELL?ED|[Aa]bort(?:ed|ing)|died|dead|[Cc]rashed|[Ii]nterrupted"
    r"|core dumped|SIG[A-Z]{3,6}|[Ff]atal|FATAL|[Ee]xit(?:ed|ing)? (?:with|on|status|code)[a-z ]*:? ?(?!0\b)-?\w+"
    r"|user request|SystemExit|BrokenProcessPool)\b|^terminate called|^Traceback \(most recent call last\):$"
)
_OF_MACHINES = re.compile(
    r"process|worker|\bjob\b|task|\bstep|node|rank|\bpid\b|signal|exit|engine|train|program|srun|slurm|\bray|torch|python|error"
    r"|fatal|command|session|\.sh\b",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"\d+")
_KEPT, _LOOKS = 20, 5000  # lines behind the last row; lines that are looked at for what is outlived


@dataclass(slots=True)
class Tails:
    """The lines behind the last row of each source: do they tell of an end before time?"""

    _lines: dict[str, deque[Line]] = field(default_factory=dict)
    _outlived: set[str] = field(default_factory=set)
    _looked: int = 0

    def note(self, line: Line) -> None:
        """Take a line that is no row."""
        lines = self._lines.get(line.source)
        if lines is None:
            lines = self._lines[line.source] = deque(maxlen=_KEPT)
        lines.append(line)

    def forget(self, source: str) -> None:
        """A row follows: what stood before it ended nothing, and will not the next time either."""
        lines = self._lines.get(source)
        if not lines:
            return
        if self._looked < _LOOKS:
            self._looked += len(lines)
            self._outlived.update(_DIGITS.sub("", line.text) for line in lines if _tells(line))
        lines.clear()

    def behind(self, source: str) -> tuple[Line, ...]:
        """Give the last lines behind the last row, oldest first."""
        return tuple(self._lines.get(source, ()))

    def drop(self, source: str, first: int) -> None:
        """Forget the lines from a number on."""
        kept = (line for line in self._lines.pop(source, ()) if line.number < first)
        self._lines[source] = deque(kept, maxlen=_KEPT)

    def ending(self, source: str) -> Line | None:
        """Give the first line that tells of an end, None when there is none."""
        ends = (line for line in self._lines.get(source, ()) if _tells(line))
        return next((line for line in ends if _DIGITS.sub("", line.text) not in self._outlived), None)


def _tells(line: Line) -> bool:
    found = _ENDING.search(line.text) if len(line.text) < 400 else None
    return found is not None and (found[0][:1] in "tTS" or _OF_MACHINES.search(line.text) is not None)


def of_a_tracker(text: str) -> bool:
    """Tell whether an experiment tracker speaks of itself."""
    return text.startswith(_TRACKERS)


def told_in_passing(hit: Hit) -> bool:
    """Tell whether a line says itself that it was dealt with: another way is taken, a sample is left out."""
    text = hit.line.text
    return _HANDLED.search(text) is not None or (hit.marker.layer == "data" and _LEFT_OUT.search(text) is not None)


def opens_aside(text: str) -> bool:
    """Tell whether the traceback that follows is of something that nobody waits for: it ends no process."""
    return _ASIDE.search(text) is not None


_AGAIN = 8


def babbles(text: str) -> bool:
    """Tell whether a line ends in one word again and again, as a completion does that runs to its limit."""
    words = text[-160:].rsplit(None, _AGAIN)[1:-1]  # the last one may be cut, or closed by a quote
    return len(words) == _AGAIN - 1 and words[0] == words[-1] and words[0].isalpha() and len(set(words)) == 1
