"""The typed detectors: kind of a rule -> class. Each is a dataclass whose `init` fields are its parameters."""

from __future__ import annotations

from importlib import import_module

KINDS: dict[str, str] = {
    "bound": "bound:Bound",
    "nonfinite": "nonfinite:Nonfinite",
    "spike": "spike:Spike",
    "drift": "drift:Drift",
    "collapse": "collapse:Collapse",
    "flat": "flat:Flat",
    "record": "record:Record",
    "shift": "shift:Shift",
    "change_point": "change_point:ChangePoint",
    "trend": "trend:Trend",
    "unpaid": "unpaid:Unpaid",
    "after_update": "after_update:AfterUpdate",
    "share": "window:Share",
    "count": "window:Count",
    "recent": "window:Recent",
    "unlikely": "window:Unlikely",
    "counter": "counter:Counter",
    "odd_rank": "odd_rank:OddRank",
    "elsewhere": "elsewhere:Elsewhere",
    "replica": "replica:Replica",
    "missing_rank": "replica:MissingRank",
    "settings": "settings:Settings",
    "correlation": "correlation:Correlation",
    "event": "event:Event",
    "all": "combine:All",
    "any": "combine:Any",
    "not": "combine:Not",
    "dead": "liveness:Dead",
    "left": "liveness:Left",
    "silence": "liveness:Silence",
    "late": "liveness:Late",
}
"""`module:Class` below this package; a table, so that what exists can be seen in one place."""


def detector_class(kind: str) -> type:
    """Load the class of a kind; raises KeyError with a sentence that names the known ones."""
    if kind not in KINDS:
        raise KeyError(f"unknown kind of detector {kind!r}; known are {', '.join(KINDS)}")
    module, _, name = KINDS[kind].partition(":")
    found: type = getattr(import_module(f"{__name__}.{module}"), name)
    return found
