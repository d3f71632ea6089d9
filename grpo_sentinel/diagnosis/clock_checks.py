"""A device that lowers its clocks: steps take several times as long while nothing else of the work changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median

from grpo_sentinel.diagnosis.found import LENGTH, finite_points, first_beyond, found
from grpo_sentinel.diagnosis.lines_checks import evidence
from grpo_sentinel.diagnosis.verdict import Candidate
from grpo_sentinel.diagnosis.view import LogView


def clocks_lowered(view: LogView) -> Candidate | None:
    """Steps of twice the time at the same lengths, and a line that tells of clocks or temperature."""
    lines = view.hits.get("throttled")
    points = finite_points(view, ("time.step_seconds",))
    if not lines or len(points) < 6:
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
    return replace(candidate, evidence=(*candidate.evidence, evidence(lines[0])))


CLOCK_CHECKS: tuple[Callable[[LogView], Candidate | None], ...] = (clocks_lowered,)
