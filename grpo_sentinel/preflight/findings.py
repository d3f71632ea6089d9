"""What a check has found so far, before it becomes a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import CheckReport, Fault, gravest_first


@dataclass(slots=True)
class Findings:
    """Faults of one subject, and what is said beside them."""

    subject: str
    faults: list[Fault] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)
    not_seen: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)

    def add(
        self,
        level: Level,
        code: str,
        message: str,
        remedy: str,
        count: int = 1,
        examples: Sequence[str] = (),
        about: str = "",
    ) -> None:
        """Add one fault of the subject; `about` is what part of it (the fault's own `subject`)."""
        self.faults.append(
            Fault(level=level, code=code, where=self.subject, subject=about, message=message, remedy=remedy,
                  count=count, examples=tuple(examples[:3]))
        )  # fmt: skip

    def broken(
        self, code: str, message: str, remedy: str, count: int = 1, examples: Sequence[str] = (), about: str = ""
    ) -> None:
        """Add what ruins a run."""
        self.add(Level.BROKEN, code, message, remedy, count, examples, about)

    def doubtful(
        self, code: str, message: str, remedy: str, count: int = 1, examples: Sequence[str] = (), about: str = ""
    ) -> None:
        """Add what may spoil learning."""
        self.add(Level.DOUBTFUL, code, message, remedy, count, examples, about)

    def cannot_tell(self, code: str, message: str, remedy: str) -> None:
        """Add what could not be judged although it was asked for."""
        self.add(Level.CANNOT_TELL, code, message, remedy)

    def has(self, code: str) -> bool:
        """Whether a fault of that code was added."""
        return any(one.code == code for one in self.faults)

    def report(self, kind: str, seconds: float) -> CheckReport:
        """Close it."""
        return CheckReport(
            kind=kind, subject=self.subject, looked_at=tuple(self.looked_at), not_seen=tuple(self.not_seen),
            faults=gravest_first(self.faults), notes=tuple(self.notes), facts=self.facts, seconds=seconds,
        )  # fmt: skip


__all__ = ["Findings"]
