"""When a run's weights may have been harmed first, and so which checkpoint is from before: decided here for all views.

A checkpoint of step N holds the weights after update N: it is from before an onset only where N < onset. What counts
is the onset of the root, not that of a consequence that was found later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import PurePath

from grpo_sentinel.records import Finding, FindingState, Severity

_NAME = re.compile(r"^(?:checkpoint|ckpt|step)[-_]?(\d{1,12})(?:\.(?:pt|pth|ckpt|safetensors))?$")
_WEIGHT_LAYERS = {"data", "reward", "policy", "gradient", "optimizer"}
_KEPT_OUT = {"grad_nonfinite", "nonfinite_updates", "update_skipped"}  # the gate stopped it before the weights
_WEIGHT_SIGNALS = re.compile(r"ecc|remapped|replica|digest|non_?finite")


def step_of(name: str) -> int | None:
    """Read the step out of a checkpoint's name, as of `checkpoint-12`, `step_12` or `ckpt12.pt`; None of any other."""
    match = _NAME.match(name)
    return int(match[1]) if match else None


def touches_weights(finding: Finding) -> bool:
    """Tell whether what was found may have harmed weights or optimizer state.

    A gradient that is not finite has not, where the gate skipped its update; where it did not, the weights themselves
    are found not finite.
    """
    if finding.rule in _KEPT_OUT:
        return False
    about = f"{finding.rule} {finding.signal}".lower()
    return finding.layer in _WEIGHT_LAYERS or _WEIGHT_SIGNALS.search(about) is not None


def first_harm(findings: Iterable[Finding], *, ignore_resolved: bool = False) -> Finding | None:
    """Date the harm to the weights: give the finding of the earliest onset of those that count; None without harm.

    Those are the newest critical finding, every critical one that still fires, and the roots of both. Findings that do
    not touch the numbers (a dead rank, memory, a hang) do not count.
    """
    known = {finding.finding_id: finding for finding in findings}
    critical = [
        one for one in known.values()
        if one.severity is Severity.CRITICAL and touches_weights(one)
        and not (ignore_resolved and one.state is FindingState.RESOLVED)
    ]  # fmt: skip
    return _first(critical, known, touches_weights)


def first_onset(findings: Iterable[Finding]) -> int | None:
    """Give the step before which a kept checkpoint must be: that of `first_harm`.

    Without harm it is that of what is critical otherwise, else of warnings, and their roots; None where nothing fired.
    """
    known = {finding.finding_id: finding for finding in findings}
    first = first_harm(known.values())
    for severity in (Severity.CRITICAL, Severity.WARNING):
        if first is None:
            first = _first([one for one in known.values() if one.severity is severity], known, lambda _: True)
    return None if first is None else first.onset_step


def _first(counting: list[Finding], known: dict[str, Finding], fits: Callable[[Finding], bool]) -> Finding | None:
    if not counting:
        return None
    newest = max(counting, key=lambda one: (one.wall_ns, one.step))
    dated = [newest, *(one for one in counting if one.state is FindingState.FIRING)]
    dated += [root for one in dated if (root := known.get(one.root_id)) is not None and fits(root)]
    return min(dated, key=lambda one: one.onset_step)


def kept_before(paths: Iterable[str], onset: int | None) -> str:
    """Of kept checkpoints, give the newest from before step `onset` (None: of all); "" when none is."""
    steps = {path: step for path in paths if (step := step_of(PurePath(path).name)) is not None}
    good = [path for path, step in steps.items() if onset is None or step < onset]
    return max(good, key=lambda path: steps[path], default="")


__all__ = ["first_harm", "first_onset", "kept_before", "step_of", "touches_weights"]
