"""What a check before a run hands over: what it looked at, what it could not see, what is wrong, each with a remedy.

One schema for `check data`, `reward`, `environment` and `config`; the level and the problem are those of `check
checkpoint`, so that a program reads `level`, `code`, `where`, `subject` and `message` the same way everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grpo_sentinel.preflight.look import Level, Problem

SCHEMA_VERSION = 1
EXAMPLE_CHARACTERS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Problem):
    """One kind of thing that is wrong: how often, the first examples, and what to do."""

    remedy: str
    count: int = 1
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """The outcome of one check; `faults` is empty only when nothing was found."""

    kind: str  # data, reward, environment, config
    subject: str
    looked_at: tuple[str, ...]
    not_seen: tuple[str, ...] = ()  # what could not be judged for want of input, and what would show it
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()  # worth knowing, nothing wrong
    facts: Mapping[str, object] = field(default_factory=dict)
    seconds: float = 0.0

    def to_json(self) -> dict[str, object]:
        """Give the report in its versioned schema."""
        return {
            "schema": f"grpo-sentinel/{self.kind}-check", "version": SCHEMA_VERSION, "subject": self.subject,
            "clean": not self.faults, "faults": list(self.faults), "looked_at": list(self.looked_at),
            "not_seen": list(self.not_seen), "notes": list(self.notes), "facts": dict(self.facts),
            "seconds": round(self.seconds, 3),
        }  # fmt: skip

    @property
    def exit_code(self) -> int:
        """0 when nothing was found, else 1."""
        return 1 if self.faults else 0


def gravest_first(faults: list[Fault]) -> tuple[Fault, ...]:
    """Order by level, then as found."""
    order = list(Level)
    return tuple(sorted(faults, key=lambda fault: order.index(fault.level)))


def excerpt(text: object, limit: int = EXAMPLE_CHARACTERS) -> str:
    """Cut a text of a user's data to `limit` characters on one line; what does not print is escaped."""
    shown = text if isinstance(text, str) else repr(text)
    head = shown[: limit + 1]
    out = "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in head)
    return out if len(shown) <= limit and len(out) <= limit else out[: limit - 1] + "…"


__all__ = ["EXAMPLE_CHARACTERS", "SCHEMA_VERSION", "CheckReport", "Fault", "excerpt", "gravest_first"]
