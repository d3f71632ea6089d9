"""How far every rank is from the median rank: the numbers behind the heat map.

    by signal   newest value of every signal    columns = the signals whose furthest rank is furthest
    by step     one signal over a range         columns = groups of steps, per group the value that is furthest

    deviation = (value - median) / max(1.4826 MAD, 0.05 |median|)

That is the figure of `sentinel.rank_deviation`: robust standard deviations, with a floor so that ranks that differ by
next to nothing are not called odd (Iglewicz and Hoaglin 1993). Signals that replicas must agree on have no such floor.
Fewer than three ranks have no odd one: by signal nothing is said then, by step the reference is the window's median.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from grpo_sentinel.catalog import LAYERS, layer_of, signal_of
from grpo_sentinel.history import Series

LEAST_RANKS = 3
MOST_SIGNALS = 24
LIMIT = 99.0
"""Deviations are cut to this size; it also stands for a value that is not finite among finite ones."""

_FLOOR, _FLOOR_SAME = 0.05, 1e-9
_LEFT_OUT = ("sentinel", "device")  # about the sentinel itself, or not of ranks

Ranks = Mapping[int, Mapping[str, float]]
Row = list[float | None]
Cell = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """A map of `len(ranks)` rows and `len(columns)` columns; None = no value there, NaN value = not finite."""

    by: str  # signal | step
    columns: tuple[str | int, ...]
    ranks: tuple[int, ...]
    deviations: tuple[Row, ...]
    values: tuple[Row, ...]
    reference: str  # what a deviation is measured from
    note: str = ""


def by_signal(ranks: Ranks, most: int = MOST_SIGNALS) -> Heat:
    """Compare the newest values of all ranks; keeps the `most` signals that part them most, in order of layer."""
    order = tuple(sorted(ranks))
    if len(order) < LEAST_RANKS:
        text = f"an odd rank can be told among {LEAST_RANKS} or more; this node has {len(order)}"
        return Heat(by="signal", columns=(), ranks=order, deviations=(), values=(), reference="", note=text)
    found: list[tuple[float, str, Row, Row]] = []
    for name in sorted({name for values in ranks.values() for name in values}):
        if layer_of(name) in _LEFT_OUT:
            continue
        column: Row = [ranks[rank].get(name) for rank in order]
        if sum(value is not None for value in column) < LEAST_RANKS:
            continue
        known = signal_of(name)
        apart = deviations(column, same=known is not None and known.merge == "same")
        furthest = max((abs(one) for one in apart if one is not None), default=0.0)
        found.append((furthest, name, apart, column))
    kept = sorted(sorted(found, key=lambda one: -one[0])[:most], key=lambda one: (_layer(one[1]), one[1]))
    return Heat(
        by="signal",
        columns=tuple(name for _, name, _, _ in kept),
        ranks=order,
        deviations=_rows([apart for _, _, apart, _ in kept], len(order)),
        values=_rows([column for _, _, _, column in kept], len(order)),
        reference="the median rank",
        note=f"the {len(kept)} of {len(found)} signals that part the ranks most" if len(found) > len(kept) else "",
    )


def by_step(lines: Mapping[int, Series], columns: int) -> Heat:
    """Compare one signal of all ranks over the steps of `lines`, in at most `columns` groups of steps."""
    order = tuple(sorted(lines))
    ends = [(line.steps[0], line.steps[-1]) for line in lines.values() if line.steps]
    if not ends:
        return Heat(by="step", columns=(), ranks=order, deviations=(), values=(), reference="")
    first, last = min(low for low, _ in ends), max(high for _, high in ends)
    width = max(_spacing(lines.values()), math.ceil((last - first + 1) / max(1, columns)))
    count = (last - first) // width + 1
    low, high = ([_grouped(lines[rank], side, first, width, count) for rank in order] for side in (0, 1))
    known = signal_of(next(iter(lines.values())).signal)
    same = known is not None and known.merge == "same"
    reference = "the median rank" if len(order) >= LEAST_RANKS else "the median of these steps"
    if len(order) >= LEAST_RANKS:
        sides = [
            [deviations([row[place] for row in side], same=same) for place in range(count)] for side in (low, high)
        ]
    else:
        flat = [deviations([value for row in side for value in row]) for side in (low, high)]
        sides = [[side[place::count] for place in range(count)] for side in flat]
    cells = [
        [_further((sides[0][p][r], low[r][p]), (sides[1][p][r], high[r][p])) for p in range(count)]
        for r in range(len(order))
    ]
    return Heat(
        by="step",
        columns=tuple(first + place * width for place in range(count)),
        ranks=order,
        deviations=tuple([deviation for deviation, _ in row] for row in cells),
        values=tuple([value for _, value in row] for row in cells),
        reference=reference,
    )


def deviations(column: Sequence[float | None], *, same: bool = False) -> Row:
    """Give every value's distance from the median in robust standard deviations, cut to `LIMIT`.

    None stays None; a value that is not finite is `LIMIT` away when another one is finite, and 0 when none is.
    """
    finite = [value for value in column if value is not None and math.isfinite(value)]
    if not finite:
        return [None if value is None else 0.0 for value in column]
    middle = median(finite)
    mad = 0.0 if same else median(abs(value - middle) for value in finite)
    scale = max(1.4826 * mad, (_FLOOR_SAME if same else _FLOOR) * abs(middle))
    return [None if value is None else _distance(value - middle, scale) for value in column]


def _distance(difference: float, scale: float) -> float:
    if not math.isfinite(difference):
        return LIMIT
    if difference == 0:
        return 0.0
    if scale == 0:
        return math.copysign(LIMIT, difference)
    return round(max(-LIMIT, min(LIMIT, difference / scale)), 2)


def _spacing(lines: Iterable[Series]) -> int:
    """Give the usual distance between two points: narrower columns would leave gaps between them."""
    longest = max(lines, key=lambda line: len(line.steps)).steps
    return int(median(right - left for left, right in pairwise(longest))) if len(longest) > 1 else 1


def _further(low: Cell, high: Cell) -> Cell:
    """Choose the one of two values, each with its deviation before it, that is further off."""
    return high if abs(high[0] or 0.0) > abs(low[0] or 0.0) else low


def _grouped(line: Series, side: int, first: int, width: int, count: int) -> Row:
    """Put the lows (0) or highs (1) of a line into groups of `width` steps; a group with a NaN or infinity is NaN."""
    out: Row = [None] * count
    pick = max if side else min
    for step, value, bad in zip(line.steps, (line.low, line.high)[side], line.nonfinite, strict=True):
        place = (step - first) // width
        known = out[place]
        if bad or value != value or (known is not None and known != known):
            out[place] = math.nan
        else:
            out[place] = value if known is None else pick(known, value)
    return out


def _rows(columns: Iterable[Row], count: int) -> tuple[Row, ...]:
    made = list(columns)
    return tuple([column[row] for column in made] for row in range(count))


def _layer(name: str) -> int:
    return LAYERS.index(layer_of(name))


__all__ = ["LEAST_RANKS", "LIMIT", "Heat", "by_signal", "by_step", "deviations"]
