"""A device that lowers its clocks: steps take several times as long while nothing else of the work changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from statistics import median

from grpo_sentinel.diagnosis.found import LENGTH, finite_points, first_beyond, found
from grpo_sentinel.diagnosis.lines_checks import evidence
from grpo_sentinel.diagnosis.verdict import Candidate
from grpo_sentinel.diagnosis.view import LogView


def clocks_lowered(view: LogView) -> Candidate | None:
    """Steps of twice the time at the same lengths, and a line or a figure that tells of lowered clocks."""
    lines = view.hits.get("throttled", [])
    points = finite_points(view, ("time.step_seconds",))
    if len(points) < 6 or not (lines or _figure_fell(view)):
        return None
    quarter = max(2, len(points) // 4)
    before, after = (median(p[2] for p in part) for part in (points[:quarter], points[-quarter:]))
    lengths = [p[2] for p in finite_points(view, LENGTH)]
    longer = bool(lengths) and median(lengths[-quarter:]) > 1.3 * median(lengths[:quarter])
    if after < 2 * before or longer:
        return None
    index, row, _ = first_beyond(points, (before + after) / 2, up=True)
    candidate = found(
        view, "clocks_lowered", "device", 0.75, index, row,
        f"a step takes {after:.3g} s instead of {before:.3g} s at the same work, and a device lowers its clocks",
    )  # fmt: skip
    return replace(candidate, evidence=(*candidate.evidence, *map(evidence, lines[:1])))


def _figure_fell(view: LogView) -> bool:
    """Tell whether a clock that stands in the rows has fallen by a third."""
    for name in dict.fromkeys(raw for row in view.rows for raw in row.raw if _CLOCK.search(raw)):
        values = [p[2] for p in finite_points(view, (name,))]
        quarter = max(2, len(values) // 4)
        if len(values) >= 6 and median(values[-quarter:]) < 0.67 * median(values[:quarter]):
            return True
    return False


_CLOCK = re.compile(r"(?:sm|gpu|graphics)[_./ ]?clock|clocks?[_./ ]?(?:sm|gpu|mhz)", re.IGNORECASE)


CLOCK_CHECKS: tuple[Callable[[LogView], Candidate | None], ...] = (clocks_lowered,)
