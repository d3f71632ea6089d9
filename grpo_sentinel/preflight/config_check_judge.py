"""What the checks of settings are told with: a setting by the trainer's own name, what is wrong, what to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from grpo_sentinel.preflight.config_check_names import Settings
from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import Fault


@dataclass(slots=True)
class Judge:
    """Settings, and the faults and notes so far."""

    settings: Settings
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def number(self, name: str) -> float | None:
        """A setting as a number; None when it is not told, or is none."""
        return self.settings.number(name)

    def on(self, name: str) -> bool:
        """A setting is switched on."""
        return self.settings.values.get(name) is True

    def key(self, name: str) -> str:
        """What the trainer calls it."""
        return self.settings.key(name)

    def fault(self, level: Level, code: str, name: str, message: str, remedy: str) -> None:
        """Tell a fault of the setting `name`."""
        key = self.key(name)
        self.faults.append(
            Fault(level=level, code=code, where=key, subject=key, message=f"{key}: {message}", remedy=remedy)
        )

    def broken(self, code: str, name: str, message: str, remedy: str) -> None:
        """Tell what fails, or trains nothing."""
        self.fault(Level.BROKEN, code, name, message, remedy)

    def doubtful(self, code: str, name: str, message: str, remedy: str) -> None:
        """Tell what trains badly."""
        self.fault(Level.DOUBTFUL, code, name, message, remedy)


__all__ = ["Judge"]
