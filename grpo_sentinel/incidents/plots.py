"""Line charts as inline SVG: one signal, a line per rank, non-finite values marked, the onset drawn. No script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 640, 206
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 42, 24
_COLOURS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#0891b2", "#65a30d", "#9f1239")
_MOST_POINTS = 400
_LOG_RATIO = 1e4  # a positive range wider than this is drawn on a logarithmic axis

Point = tuple[int, float]


def chart(title: str, unit: str, series: Mapping[int, Sequence[Point]], onsets: Mapping[int, str]) -> str:
    """Draw one signal over steps. NaN and infinities are red ticks at the top edge: a gap would hide them.

    `series[rank]` holds (step, value) in order of step; `onsets` the steps to mark, and what to say of each.
    """
    points = [point for line in series.values() for point in line]
    steps = [*(step for step, _ in points), *onsets] or [0]
    low_x, high_x = min(steps), max(steps)
    high_x += high_x == low_x
    axis = _Axis([value for _, value in points if math.isfinite(value)])
    scale = (_WIDTH - _LEFT - _RIGHT) / max(1, high_x - low_x)

    def x(step: float) -> float:
        return _LEFT + (step - low_x) * scale

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">',
        f'<text x="{_LEFT}" y="16" class="t">{escape(title)}{f" ({escape(unit)})" if unit else ""}'
        f"{', logarithmic' if axis.logarithmic else ''}</text>",
    ]
    for value in axis.ticks():
        y = axis.y(value)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" class="g"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="a" text-anchor="end">{_short(value)}</text>')
    for step, anchor in ((low_x, "start"), (high_x, "end")):
        parts.append(f'<text x="{x(step):.1f}" y="{_HEIGHT - 6}" class="a" text-anchor="{anchor}">step {step}</text>')
    for onset, said in sorted(onsets.items()):
        parts.append(
            f'<path d="M{x(onset):.1f} {_TOP}V{_HEIGHT - _BOTTOM}" class="o"><title>{escape(said)}</title></path>'
        )
    for index, (rank, line) in enumerate(sorted(series.items())):
        colour = _COLOURS[index % len(_COLOURS)]
        for run in _finite_runs(_thin(line)):
            path = " ".join(f"{'M' if i == 0 else 'L'}{x(s):.1f} {axis.y(v):.1f}" for i, (s, v) in enumerate(run))
            path += "h0.01" if len(run) == 1 else ""
            parts.append(f'<path d="{path}" class="l" stroke="{colour}"><title>rank {rank}</title></path>')
        for step, value in _bad(line):
            parts.append(
                f'<path d="M{x(step):.1f} {_TOP}v9" class="n"><title>rank {rank}, step {step}: {value}</title></path>'
            )
        if len(series) > 1 and index < len(_COLOURS):
            parts.append(f'<text x="{_LEFT + 52 * index}" y="33" class="a" style="fill:{colour}">rank {rank}</text>')
    return "".join([*parts, "</svg>"])


class _Axis:
    """The vertical axis: linear, or logarithmic where a linear one would show one point and a flat line."""

    def __init__(self, values: Sequence[float]) -> None:
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        self.logarithmic = low > 0 and high / low > _LOG_RATIO
        self._low, self._high = self._place(low), self._place(high)
        if self._high - self._low < 1e-12 * max(1.0, abs(self._high)) or not math.isfinite(self._high - self._low):
            spread = abs(self._high) * 0.05 or 0.5
            self._low, self._high = self._high - spread, self._high + spread

    def _place(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else max(-1e300, min(1e300, value))

    def y(self, value: float) -> float:
        share = (self._place(value) - self._low) / (self._high - self._low)
        return _HEIGHT - _BOTTOM - max(0.0, min(1.0, share)) * (_HEIGHT - _TOP - _BOTTOM)

    def ticks(self) -> list[float]:
        places = [self._low + (self._high - self._low) * share for share in (0.0, 0.5, 1.0)]
        return [10**place for place in places] if self.logarithmic else places


def _thin(line: Sequence[Point]) -> list[Point]:
    """Keep at most `_MOST_POINTS` points: of every group its smallest and largest, so that a spike stays."""
    if len(line) <= _MOST_POINTS:
        return list(line)
    size = math.ceil(2 * len(line) / _MOST_POINTS)
    out: list[Point] = []
    for start in range(0, len(line), size):
        group = line[start : start + size]
        finite = [point for point in group if math.isfinite(point[1])]
        if len(finite) < len(group) or not finite:
            out.append((group[0][0], math.nan))
        ends = {min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])} if finite else set()
        out.extend(sorted(ends))
    return out


def _finite_runs(line: Sequence[Point]) -> list[list[Point]]:
    runs: list[list[Point]] = [[]]
    for point in line:
        if math.isfinite(point[1]):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _bad(line: Sequence[Point]) -> list[Point]:
    bad = [point for point in line if not math.isfinite(point[1])]
    return bad[:: math.ceil(len(bad) / _MOST_POINTS)] if bad else []


def _short(value: float) -> str:
    return f"{value:.3g}"


__all__ = ["chart"]
