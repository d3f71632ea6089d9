"""Fits thresholds to healthy runs: no more false alarms than a budget, and what that costs in detection delay.

    healthy runs ─▶ count alarms ─▶ noisy rules at LEVELS thresholds in one more reading ─▶ loosen greedily ─▶ profile
                                                 changed rules, old and new, on a run with a fault put in ─▶ delays

With `tighten`, warnings and criticals that judged and stayed silent also at narrower thresholds get those, by at most
TIGHTEN levels and always one level short of the first that speaks: what one run never does, the next one may do.

Rules that decide by a bound (`bound: true`) are never loosened: one that fires on a healthy run is a fault of the run
or of the rule, and is named. With `n` healthy steps and no alarm, the true rate is below 3/n per step (95 %).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_sentinel.config import RuleOverride
from grpo_sentinel.errors import ConfigError
from grpo_sentinel.records import EventRecord, Finding, FindingState, Frame, Severity
from grpo_sentinel.rules.engine import Engine
from grpo_sentinel.rules.load import override_rule
from grpo_sentinel.rules.robust import MAD_TO_SIGMA, mad, median
from grpo_sentinel.rules.rule import Rule, RuleSet
from grpo_sentinel.wording import counted

LEVELS = 8
TIGHTEN = 2
"""Levels by which a silent rule may be narrowed: to 0.59 of its threshold."""

TIGHTEN_STEPS = 1000
"""Healthy steps without which nothing is narrowed: fewer prove nothing about a rate of 0.2 in 1,000."""

FACTOR = 1.3  # a threshold of one level over that of the level before
SIZES = (5.0, 10.0, 30.0, 100.0)
"""Faults that are put in: a lasting shift by so many robust standard deviations of the signal."""

WARM_UP = 150
"""Steps before and after the onset of such a fault."""

_SEPARATOR = "__level_"
_UP: dict[str, tuple[str, ...]] = {
    "spike": ("ratio", "sigmas", "over_max"), "shift": ("ratio", "sigmas"), "change_point": ("limit",),
    "trend": ("ratio",), "odd_rank": ("sigmas",), "record": ("margin",), "flat": ("points",), "count": ("count",),
    "drift": ("min_growth",), "bound": ("max",), "collapse": ("above",),
}  # fmt: skip
_DOWN: dict[str, tuple[str, ...]] = {"bound": ("min",), "collapse": ("below",), "drift": ("horizon_steps",)}
_WHOLE = ("points", "count")
_DEFAULTS = {"spike": {"ratio": 10.0, "sigmas": 8.0}, "shift": {"sigmas": 6.0}, "change_point": {"limit": 8.0}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One healthy run; `items` may be called again and again."""

    name: str
    context: Mapping[str, Any] = field(default_factory=dict)
    items: Callable[[], Iterator[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One rule whose thresholds were moved."""

    rule: str
    parameters: Mapping[str, Any]
    before: Mapping[str, Any]
    alarms_before: int
    alarms_after: int
    delays: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)  # size -> steps before, after


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What calibration found."""

    steps: int
    runs: int
    budget: float  # alarms per 1000 steps
    alarms_before: int
    alarms_after: int
    changes: tuple[Change, ...]
    disabled: Mapping[str, str]
    exact: Mapping[str, int]  # rules with a bound that fired -> alarms
    profiles: tuple[str, ...] = ()

    @property
    def certain(self) -> float:
        """Upper 95 % bound of the rate that is left, alarms per 1000 steps (Poisson)."""
        return 1000 * _upper(self.alarms_after) / max(1, self.steps)


def calibrate(rules: RuleSet, runs: Sequence[Run], budget: float, *, tighten: bool = False) -> Calibration:
    """Move thresholds until all alarms of all rules together keep the budget. Raises `ConfigError` without a step."""
    alarms, counts, profiles, active, judged = _count(rules, runs)
    steps, first = sum(counts), counts[0]
    if not steps:
        raise ConfigError("calibrate: the runs hold no step; give runs with metrics")
    exact = {name: count for name, count in alarms.items() if active[name].bound}
    noisy = [active[name] for name in alarms if name not in exact]
    allowed = budget * steps / 1000 - sum(exact.values())
    levels = (
        _by_level(active, noisy, runs, range(1, LEVELS + 1)) if sum(alarms.values()) > budget * steps / 1000 else {}
    )
    chosen = _choose(levels, allowed)
    changes, disabled = [], {}
    windows = _windows(runs[0], first) if any(chosen.values()) else []
    for rule in noisy:
        level = chosen.get(rule.name, 0)
        if not level:
            continue
        if level > LEVELS or level not in levels[rule.name]:
            often = counted(alarms[rule.name], "time")
            disabled[rule.name] = f"fires {often} in {counted(steps, 'healthy step')}, also with wide thresholds"
            continue
        given = loosened(rule, level)
        changes.append(
            Change(
                rule=rule.name,
                parameters=given,
                before=loosened(rule, 0),
                alarms_before=alarms[rule.name],
                alarms_after=levels[rule.name][level],
                delays=_delays(rule, override(rule, given), windows),
            )
        )
    if tighten and steps >= TIGHTEN_STEPS:
        changes += _tightened(active, [name for name in judged if name not in alarms], runs, first)
    left = sum(alarms.values()) - sum(change.alarms_before - change.alarms_after for change in changes)
    left -= sum(alarms[name] for name in disabled)
    return Calibration(
        steps=steps, runs=len(runs), budget=budget, alarms_before=sum(alarms.values()), alarms_after=left,
        changes=tuple(changes), disabled=disabled, exact=exact, profiles=profiles,
    )  # fmt: skip


def _tightened(active: Mapping[str, Rule], silent: Sequence[str], runs: Sequence[Run], frames: int) -> list[Change]:
    """Narrow rules that judged and never spoke, as far as they stay silent one level further too."""
    rules = [active[name] for name in silent]
    rules = [
        rule for rule in rules if not rule.bound and rule.enabled and rule.severity > Severity.NOTE
        and any(True for _ in _tunable(rule.detect, (), 0))
    ]  # fmt: skip
    counts = _by_level(active, rules, runs, range(-TIGHTEN - 1, 0))
    windows = _windows(runs[0], frames)
    out = []
    for rule in rules:
        level = 0
        while level < TIGHTEN and all(counts[rule.name].get(-step, 1) == 0 for step in range(1, level + 3)):
            level += 1
        if level:
            given = loosened(rule, -level)
            delays = _delays(rule, override(rule, given), windows)
            before = loosened(rule, 0)
            out.append(
                Change(rule=rule.name, parameters=given, before=before, alarms_before=0, alarms_after=0, delays=delays)
            )
    return out


def loosened(rule: Rule, level: int) -> dict[str, Any]:
    """Give the parameters of a profile that widen thresholds by so many levels; below 0 narrows, 0 is today's."""
    found = dict(_tunable(rule.detect, (), level))
    if found:
        return found
    window = min(1000, math.ceil(rule.window * FACTOR**level))
    bad = min(window, math.ceil(rule.bad * FACTOR**level) + (level if rule.bad < 4 else 0))
    window = max(window, bad)
    return {"for": str(bad) if bad == window else f"{bad} of {window}"}


def override(rule: Rule, parameters: Mapping[str, Any]) -> Rule:
    """Apply parameters as a profile would."""
    return override_rule(rule, RuleOverride(parameters=dict(parameters)))


def _tunable(spec: Mapping[str, Any], path: tuple[str, ...], level: int) -> Iterator[tuple[str, Any]]:
    """Walk a detector and its parts; what stands under `not` or `unless` works the other way and is left alone."""
    kind = str(spec.get("kind"))
    if kind == "not":
        return
    known = {**_DEFAULTS.get(kind, {}), **spec}
    for names, factor in ((_UP.get(kind, ()), FACTOR**level), (_DOWN.get(kind, ()), FACTOR**-level)):
        for name in names:
            value = known.get(name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
                continue
            scaled = math.ceil(value * factor) if name in _WHOLE else float(f"{value * factor:.4g}")
            yield ".".join((*path, name)), scaled if level else value
    parts = spec.get("of")
    if isinstance(parts, Mapping):
        yield from _tunable(parts, (*path, "of"), level)
    elif isinstance(parts, (list, tuple)):
        for index, part in enumerate(parts):
            if isinstance(part, Mapping):
                yield from _tunable(part, (*path, "of", str(index)), level)


# ---- counting


def _engine(rules: RuleSet, run: Run) -> Engine:
    engine = Engine(rules, run_id=run.name)
    engine.configure(run.context)
    return engine


def _feed(engine: Engine, item: Any) -> list[Finding]:
    if isinstance(item, Frame):
        return engine.frame(item)
    return engine.event(item) if isinstance(item, EventRecord) else engine.sample(item)


def _fired(told: Iterable[Finding], seen: set[str]) -> Iterator[str]:
    """Names of rules that fired an alarm for the first time with this id; refinements are no new alarms."""
    for finding in told:
        if finding.state is FindingState.FIRING and finding.severity > Severity.NOTE and finding.finding_id not in seen:
            if len(seen) < 100_000:
                seen.add(finding.finding_id)
            yield finding.rule


def _count(
    rules: RuleSet, runs: Sequence[Run]
) -> tuple[Counter[str], list[int], tuple[str, ...], dict[str, Rule], list[str]]:
    judged: dict[str, None] = {}
    alarms: Counter[str] = Counter()
    counts = [0] * len(runs)
    profiles: dict[str, None] = {}
    active = {rule.name: rule for rule in rules}
    for place, run in enumerate(runs):
        engine, seen = _engine(rules, run), set[str]()
        for item in run.items():
            counts[place] += isinstance(item, Frame)
            alarms.update(_fired(_feed(engine, item), seen))
        profiles.update(dict.fromkeys(engine.profile_names))
        active.update({rule.name: rule for rule in engine.rules})
        judged.update(dict.fromkeys(rule.name for rule in engine.rules if rule.name not in engine.abstaining()))
    return alarms, counts, tuple(profiles), active, list(judged)


def _by_level(
    active: Mapping[str, Rule], noisy: Sequence[Rule], runs: Sequence[Run], wanted: range
) -> dict[str, dict[int, int]]:
    """Count the alarms of every noisy rule at every level: copies under names of their own, in one reading."""
    copies = []
    out: dict[str, dict[int, int]] = {rule.name: {} for rule in noisy}
    for rule in noisy:
        for level in wanted:
            try:
                copy = override(rule, loosened(rule, level))
            except ConfigError:
                continue  # a ratio of 1 or a share above it is no threshold
            copies.append(replace(copy, name=f"{rule.name}{_SEPARATOR}{level}", attribution=""))
            out[rule.name][level] = 0
    exact = tuple(rule for rule in active.values() if rule.bound and rule.enabled)  # they keep baselines clean
    for run in runs:
        engine, seen = Engine(RuleSet(rules=(*exact, *copies), profile="none"), run_id=run.name), set[str]()
        for item in run.items():
            for name in _fired(_feed(engine, item), seen):
                origin, separator, step = name.partition(_SEPARATOR)
                if separator:
                    out[origin][int(step)] += 1
    return out


def _choose(levels: Mapping[str, Mapping[int, int]], allowed: float) -> dict[str, int]:
    """Loosen the rule that fires most, level by level, until the rest is allowed; above the last level it is off."""
    chosen = dict.fromkeys(levels, 1)
    if not levels:
        return {}

    def left(name: str) -> int:
        return levels[name].get(chosen[name], 0)

    while sum(map(left, chosen)) > max(0.0, allowed):
        worst = max(chosen, key=left)
        if not left(worst):
            break
        chosen[worst] += 1
    return chosen


def _upper(count: int) -> float:
    """Upper 95 % bound of a Poisson mean with `count` seen (normal approximation above 0; 3 for none)."""
    return 3.0 if count == 0 else count + 1.645 * math.sqrt(count) + 1.35


# ---- what it costs


def _windows(run: Run, frames: int) -> list[list[Frame]]:
    """Cut pieces of a run, the fault to begin in the middle of each; a short run is one piece."""
    length = min(2 * WARM_UP, frames)
    starts = {int((frames - length) * place) for place in (0.25, 0.5, 0.75)}
    out: dict[int, list[Frame]] = {start: [] for start in starts}
    index = 0
    for item in run.items():
        if isinstance(item, Frame):
            for start, window in out.items():
                if start <= index < start + length:
                    window.append(item)
            index += 1
    return [window for window in out.values() if len(window) >= 10]


def _delays(before: Rule, after: Rule, windows: Sequence[list[Frame]]) -> dict[str, tuple[int | None, int | None]]:
    """Steps from a lasting shift of the rule's signal to its alarm, with the old and the new thresholds."""
    signal = next((name for name in before.signals if "[*]" not in name), None)
    sigma = _sigma(signal, windows) if signal is not None else 0.0
    if signal is None or sigma == 0:
        return {}
    sign = -1.0 if _looks_down(before.detect) else 1.0
    out = {}
    for size in SIZES:
        found = [_median_delay(rule, windows, signal, sign * size * sigma) for rule in (before, after)]
        out[f"{size:g} sigma"] = (found[0], found[1])
    return out


def _median_delay(rule: Rule, windows: Sequence[list[Frame]], signal: str, shift: float) -> int | None:
    delays = sorted(_delay(rule, window, signal, shift) for window in windows)
    middle = delays[len(delays) // 2]
    return None if math.isinf(middle) else int(middle)


def _delay(rule: Rule, window: list[Frame], signal: str, shift: float) -> float:
    """Steps until the rule fires; 1 where it fires already, infinite where it never does."""
    engine = Engine(RuleSet(rules=(replace(rule, enabled=True),), profile="none"), run_id="calibration")
    onset = len(window) // 2
    for index, frame in enumerate(window):
        engine.frame(frame if index < onset else _shifted(frame, signal, shift))
        if index >= onset and engine.active():
            return index - onset + 1
    return math.inf


def _shifted(frame: Frame, signal: str, shift: float) -> Frame:
    ranks = {rank: {**row, signal: row[signal] + shift} if signal in row else row for rank, row in frame.ranks.items()}
    return replace(frame, ranks=ranks)


def _sigma(signal: str, windows: Sequence[list[Frame]]) -> float:
    """Robust standard deviation of a signal; a tenth of its level where it hardly moves."""
    values = [
        value
        for window in windows
        for frame in window
        for row in frame.ranks.values()
        if math.isfinite(value := row.get(signal, math.nan))
    ]
    return (MAD_TO_SIGMA * mad(sorted(values)) or 0.1 * abs(median(values))) if values else 0.0


def _looks_down(spec: Mapping[str, Any]) -> bool:
    parts = spec.get("of")
    if isinstance(parts, Mapping):
        return _looks_down(parts)
    if isinstance(parts, (list, tuple)) and parts and isinstance(parts[0], Mapping):
        return _looks_down(parts[0])
    return (
        spec.get("direction") == "down"
        or spec.get("below") is not None
        or (spec.get("min") is not None and spec.get("max") is None)
    )


__all__ = ["LEVELS", "Calibration", "Change", "Run", "calibrate", "loosened"]
