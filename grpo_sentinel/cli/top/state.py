"""What the person looking has chosen, and what each key changes in it: no terminal, no clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from grpo_sentinel.records import Action


class View(Enum):
    """What the middle of the screen shows."""

    RANKS = "ranks"
    FINDINGS = "findings"
    DEVICES = "devices"
    HEALTH = "sentinel"


class Ask(Enum):
    """What a key asks the loop to do."""

    NOTHING = "nothing"
    QUIT = "quit"
    REQUEST = "request"


@dataclass(frozen=True, slots=True)
class State:
    """The view, the selected line in it, a question that waits for y or n, and what was last said."""

    view: View = View.RANKS
    line: int = 0
    question: Action | None = None
    said: str = ""
    helping: bool = False


KEYS = (("tab", "view"), ("jk", "select"), ("c", "checkpoint"), ("h", "halt"), ("?", "help"), ("q", "quit"))
HELP = (
    ("tab", "next view; r f d s: ranks, findings, devices, the sentinel itself"),
    ("↑ ↓ j k", "select a line; page up and page down: ten lines"),
    ("c", "ask the run for a checkpoint"),
    ("h", "ask the run for a checkpoint and to stop, all ranks at the same step"),
    ("q", "leave; the run goes on"),
)
_VIEW_KEYS = {"r": View.RANKS, "f": View.FINDINGS, "d": View.DEVICES, "s": View.HEALTH}
_ACTION_KEYS = {"c": Action.CHECKPOINT, "h": Action.CHECKPOINT_AND_HALT}
_STEPS = {"down": 1, "j": 1, "up": -1, "k": -1, "pagedown": 10, "pageup": -10}


def press(state: State, key: str, lines: int) -> tuple[State, Ask]:
    """Take one key; `lines` is how many lines can be selected in this view. Anything but `y` answers no."""
    if state.question is not None:
        if key == "y":
            return state, Ask.REQUEST
        return replace(state, question=None, said="not asked"), Ask.NOTHING
    if key in ("q", "ctrl-c", "eof"):
        return state, Ask.QUIT
    state = replace(state, said="", helping=False)
    if key == "?":
        return replace(state, helping=True), Ask.NOTHING
    if key in _ACTION_KEYS:
        return replace(state, question=_ACTION_KEYS[key]), Ask.NOTHING
    if key == "tab":
        views = list(View)
        return replace(state, view=views[(views.index(state.view) + 1) % len(views)], line=0), Ask.NOTHING
    if key in _VIEW_KEYS:
        return replace(state, view=_VIEW_KEYS[key], line=0), Ask.NOTHING
    if key in _STEPS:
        return replace(state, line=max(0, min(lines - 1, state.line + _STEPS[key]))), Ask.NOTHING
    return state, Ask.NOTHING
