"""How a log without a fault line ends: with words of an end, in the middle of something, standing still."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from grpo_sentinel.diagnosis.verdict import Candidate, Evidence
from grpo_sentinel.diagnosis.view import LogView
from grpo_sentinel.history.logs.lines import Line

_BAR = re.compile(r"\| *(\d+)/(\d+) \[[\d:]+<")
_DOING = re.compile(
    r"\b(?:[Ss]aving|[Ww]riting|[Uu]ploading|[Ww]aiting|[Ss]ynchroni[sz]ing|[Uu]pdating|[Bb]roadcasting|[Rr]esharding"
    r"|[Oo]ffloading|[Gg]athering|[Ll]oading|[Gg]enerating|[Ss]tarting)\b.{0,100}$"
)
_DATE = re.compile(r"\b(\d{4})[-/](\d\d)[-/](\d\d)[T -](\d\d):(\d\d):(\d\d)")
_SHORT_DATE = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")
_STILL = timedelta(minutes=30)


def ending(view: LogView) -> Candidate | None:
    """Tell of an end before time: words of one behind the last row, or a log that stops in the middle of something.

    A row of metrics as the last line is what an excerpt and the log of a living run end with: that alone tells nothing.
    A bar below its total, or work begun behind the last row, is what a program leaves that ended there without a word.
    """
    end = view.cut_short()
    if end is not None:
        return _undecided(view, "ended", f"the log ends with: {end.text.strip()[:120]}", end)
    for lines in view.behind_rows():
        if lines and _unfinished(lines[-1].text):
            return _undecided(
                view, "stopped", f"the log stops without a word of its end: {lines[-1].text.strip()[-120:]}", lines[-1]
            )
    return None


def _undecided(view: LogView, name: str, says: str, at: Line) -> Candidate:
    return Candidate(
        name=name,
        layer="undetermined",
        role="witness",
        confidence=0.3,
        says=f"nothing wrong in {view.rows_seen} rows of metrics; {says}",
        evidence=(Evidence(source=at.source, line=at.number, text=at.text.strip()[:300]),),
        would_decide=(
            "whether the process still runs, and what it waits for (`py-spy dump`)",
            "the lines of every rank before this one",
            "the scheduler's record of the job",
        ),
    )


def _unfinished(text: str) -> bool:
    bars = _BAR.findall(text)
    if bars:
        return int(bars[-1][0]) < int(bars[-1][1])
    return _DOING.search(text) is not None


def stood_still(view: LogView, at: Line) -> timedelta | None:
    """Give the time without a word before a line, where it is long; None where it is not, or nothing is dated."""
    now = _when(at.text)
    dated = [moment for line in view.before(at) if (moment := _when(line.text, now)) is not None]
    if now is None or not dated:
        return None
    gap = now - dated[-1]
    return gap if gap >= _STILL else None


def _when(text: str, near: datetime | None = None) -> datetime | None:
    """Read the date of a line; one without its year has that of `near`."""
    found = _DATE.search(text)
    parts = [int(part) for part in found.groups()] if found else []
    if not parts and near is not None and (short := _SHORT_DATE.search(text)):
        parts = [near.year, *(int(part) for part in short.groups())]
    try:
        return datetime(*parts) if parts else None  # type: ignore[arg-type]
    except ValueError:
        return None
