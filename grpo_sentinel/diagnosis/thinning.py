"""Which rows of a long log are kept, and which ranks printed side by side."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from grpo_sentinel.history.logs.formats import Row

FEWEST = 3  # rows of a rank that are looked at by themselves
_RANK = re.compile(r"\[rank(\d+)\]|\b[Rr]ank (\d+)\b|local_rank: (\d+)")
_RANK_FILE = re.compile(r"\brank[-_. ]?(\d{1,6})\b|attempt_\d+/(\d{1,6})/std(?:out|err)")


def rank_of(text: str, source: str = "") -> int | None:
    """Read the rank that a line names, else the one its file is named after, None when neither tells."""
    found = _RANK.search(text) or _RANK_FILE.search(source)
    return int(next(group for group in found.groups() if group is not None)) if found else None


def by_rank(rows: Sequence[Row]) -> list[list[Row]]:
    """Give the rows of each rank where several printed the same steps side by side; else nothing."""
    groups: dict[tuple[str, int | None], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.source, row.rank), []).append(row)
    printing = [own for own in groups.values() if len(own) >= FEWEST]
    if len(printing) < 2 or not all(_overlap(printing[0], own) for own in printing[1:]):
        return []
    return printing


def _overlap(first: list[Row], other: list[Row]) -> bool:
    """Tell whether two lists of rows are of the same steps: half of the shorter one's lie within the other's."""
    steps = [{row.step for row in rows if row.step is not None} for rows in (first, other)]
    if not all(steps):
        return first[0].source == other[0].source or rank_of("", first[0].source) != rank_of("", other[0].source)
    return 2 * len(steps[0] & steps[1]) >= min(map(len, steps))


def broken(row: Row) -> bool:
    """Tell whether a value of a row is not finite."""
    return any(value is None or not math.isfinite(value) for value in row.raw.values())


def thinned(rows: list[Row]) -> list[Row]:
    """Every second row, and each in which something stops being finite: it may be the onset."""
    out, before = [], False
    for place, row in enumerate(rows):
        now = broken(row)
        if place % 2 == 0 or (now and not before):
            out.append(row)
        before = now
    return out if len(out) < 0.75 * len(rows) else rows[::2]
