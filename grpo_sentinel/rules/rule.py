"""A rule as data, and the set of them that an engine runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_sentinel.records import Action, Severity
from grpo_sentinel.rules.detectors import detector_class
from grpo_sentinel.rules.expression import Condition, Expression
from grpo_sentinel.rules.parameters import build, parameters_of
from grpo_sentinel.rules.view import Detector

SCOPES = ("merged", "rank", "sample", "event", "tick")
MODES = ("train", "evaluation", "any")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that can be wrong. `detect` and `unless` stay mappings: every subject gets a detector of its own."""

    name: str
    layer: str
    severity: Severity
    action: Action
    detect: Mapping[str, Any]
    scope: str = "merged"
    mode: str = "train"
    when: tuple[str, ...] = ()  # conditions without which a step is not judged
    unless: Mapping[str, Any] | None = None  # a detector that, when bad, makes the step count as fine
    bad: int = 1  # `for: bad of window`
    window: int = 1
    resolve_after: int = 5  # clear views in a row
    cooldown: int = 20  # views after a resolution in which it does not fire again
    bound: bool = False  # decides without a baseline; while broken, no baseline learns
    outcome: bool = False  # what training comes to: any layer shows in it, see root_cause
    attribution: str = ""  # nonfinite: rank and parameter from `nonfinite` events; own_gradient: rank from hooks' norms
    enabled: bool = True
    message: str
    why: str
    remedies: tuple[str, ...]
    reference: str = ""
    false_alarm_budget: float = 0.0  # per 1000 healthy steps
    source: str = ""  # file and line
    builtin: bool = True

    def detector(self, label: str = "") -> Detector:
        """Make a fresh detector for one label."""
        return build(self.detect, label)

    def exception(self, label: str = "") -> Detector | None:
        """Make the `unless` detector, if there is one."""
        return None if self.unless is None else build(self.unless, label, ("unless",))

    def conditions(self, label: str = "") -> tuple[Condition, ...]:
        return tuple(Condition(text, label) for text in self.when)

    @property
    def see(self) -> str:
        """Where its reader finds more: our page on it, or what the author of a user's rule names as its reference."""
        if not self.builtin:
            return self.reference
        return f"docs/rules/{self.layer}.md, {self.name}; `grpo-sentinel rules show {self.name}`"

    @property
    def persistence(self) -> str:
        """`for` as written in the file."""
        return f"{self.bad} of {self.window}" if self.bad != self.window else str(self.bad)

    @property
    def signals(self) -> tuple[str, ...]:
        """Names of all signals it reads, `[*]` kept, in order of mention."""
        names = dict.fromkeys(_names(self.detect))
        if self.unless is not None:
            names.update(dict.fromkeys(_names(self.unless)))
        for text in self.when:
            names.update(dict.fromkeys(Condition(text).names))
        return tuple(names)


def _names(spec: Mapping[str, Any]) -> Iterator[str]:
    types = parameters_of(detector_class(str(spec.get("kind"))))
    for key, value in spec.items():
        kind = str(types.get(key, ""))
        if "Expression" in kind and value is not None:
            for item in value if isinstance(value, list | tuple) else (value,):
                yield from Expression(item).names
        elif "Detector" in kind and value is not None:
            for item in value if isinstance(value, list | tuple) else (value,):
                yield from _names(item)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """Rules in the order of the backward walk, with what was left out and why."""

    rules: tuple[Rule, ...]
    problems: tuple[str, ...] = ()  # user rules that were left out, one sentence each
    profile: str = "auto"
    pinned: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # rule -> parameters a user set

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __getitem__(self, name: str) -> Rule:
        for rule in self.rules:
            if rule.name == name:
                return rule
        raise KeyError(name)
