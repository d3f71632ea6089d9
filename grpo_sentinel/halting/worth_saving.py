"""A checkpoint of lost weights is worse than none: it looks newest, and a restart would take it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from grpo_sentinel.records import Action, Finding, FindingState

LOST = frozenset({"weights_nonfinite", "moments_nonfinite"})
"""Rules whose firing means that what would be saved is not finite."""

_NOT_SAVED = "no checkpoint is written ({}): `grpo-sentinel resume-point` names one from before"
_INSTEAD = {Action.CHECKPOINT_AND_HALT: Action.HALT_NOW, Action.CHECKPOINT: Action.ALERT}


def worth_saving(asking: Sequence[Finding], firing: Callable[[], Sequence[Finding]]) -> Sequence[Finding]:
    """Turn checkpoint-and-halt into halt-now, and checkpoint into an alert, while a rule of `LOST` fires.

    `firing` gives what fires now; asked only when something in `asking` would save.
    """
    if not any(finding.action in _INSTEAD for finding in asking):
        return asking
    lost = [one.rule for one in (*asking, *firing()) if one.rule in LOST and one.state is FindingState.FIRING]
    if not lost:
        return asking
    return [
        replace(one, action=_INSTEAD[one.action], message=f"{one.message}; {_NOT_SAVED.format(lost[0])}")
        if one.action in _INSTEAD
        else one
        for one in asking
    ]


__all__ = ["LOST", "worth_saving"]
