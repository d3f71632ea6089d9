"""Profiles: what differs by algorithm and setting. Picked from the trainer's own configuration, as far as it shows.

A profile is a YAML file: `when` (configuration key -> value or list of values, or `{above: x}`, `{below: x}`),
`disable` (rule -> why it cannot apply), `parameters` (rule -> detector parameters). All that match apply, in the
order of their file names; what a user set by hand is never touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from grpo_sentinel.config import RuleOverride
from grpo_sentinel.errors import ConfigError
from grpo_sentinel.rules.load import override_rule, read_mapping
from grpo_sentinel.rules.rule import Rule, RuleSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One setting and what it changes."""

    name: str
    help: str = ""
    when: Mapping[str, Any] = field(default_factory=dict)
    disable: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def matches(self, context: Mapping[str, Any]) -> bool:
        """Does the configuration show this setting? A key that is not shown matches nothing."""
        return bool(self.when) and all(_met(wanted, _find(context, key)) for key, wanted in self.when.items())


def builtin_profiles() -> tuple[Profile, ...]:
    """Read profiles/*.yaml of the package, by name."""
    folder = resources.files("grpo_sentinel.rules").joinpath("profiles")
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".yaml")), key=lambda entry: entry.name)
    return tuple(parse_profile(entry.read_text(encoding="utf-8"), entry.name) for entry in files)


def parse_profile(text: str, source: str) -> Profile:
    """Read one profile; raises `ConfigError` with the file and the wrong key."""
    data = read_mapping(text, source)
    known = ("name", "help", "when", "disable", "parameters")
    if not isinstance(data.get("name"), str):
        raise ConfigError(f"{source}: expected a mapping with a name; the keys are {', '.join(known)}")
    for key, value in data.items():
        if key not in known:
            raise ConfigError(f"{source}: unknown key {key!r}; the keys are {', '.join(known)}")
        if key in known[2:] and not isinstance(value, Mapping):
            raise ConfigError(f"{source}: {key} must be a mapping, got {value!r}")
    return Profile(**data)


def choose(rules: RuleSet, context: Mapping[str, Any]) -> tuple[Profile, ...]:
    """Pick by context (`auto`), by comma-separated names, or from a file that `calibrate` wrote."""
    profiles = builtin_profiles()
    if rules.profile == "auto":
        return tuple(profile for profile in profiles if profile.matches(context))
    by_name = {profile.name: profile for profile in profiles}
    chosen = []
    for name in (part.strip() for part in rules.profile.split(",")):
        if name in by_name:
            chosen.append(by_name[name])
        elif Path(name).is_file():
            chosen.append(parse_profile(Path(name).read_text(encoding="utf-8"), name))
        elif name and name != "none":
            raise ConfigError(
                f"rules.profile: no profile {name!r}; known are auto, none, {', '.join(by_name)}, or a file"
            )
    return tuple(chosen)


def apply(rules: RuleSet, profiles: tuple[Profile, ...]) -> tuple[RuleSet, dict[str, str]]:
    """Give the changed rules, and for each rule that is switched off the reason."""
    off: dict[str, str] = {}
    changed: dict[str, Rule] = {rule.name: rule for rule in rules}
    for profile in profiles:
        for name, reason in profile.disable.items():
            if name not in changed:
                raise ConfigError(f"profile {profile.name}: there is no rule named {name!r}; correct the name")
            off[name] = reason
        for name, parameters in profile.parameters.items():
            if name not in changed:
                raise ConfigError(f"profile {profile.name}: there is no rule named {name!r}; correct the name")
            kept = {key: value for key, value in parameters.items() if key not in rules.pinned.get(name, ())}
            changed[name] = override_rule(changed[name], RuleOverride(parameters=kept))
    return replace(rules, rules=tuple(changed[rule.name] for rule in rules)), off


def _find(context: Mapping[str, Any], key: str) -> Any:
    """Look a key up at the top or one level down (`trainer: {beta: 0}`), where integrations group their settings."""
    if key in context:
        return context[key]
    for value in context.values():
        if isinstance(value, Mapping) and key in value:
            return value[key]
    return None


def _met(wanted: Any, found: Any) -> bool:
    if found is None:
        return False
    if isinstance(wanted, Mapping):
        if isinstance(found, bool) or not isinstance(found, int | float):
            return False
        return bool(found > wanted.get("above", float("-inf")) and found < wanted.get("below", float("inf")))
    if isinstance(wanted, list):
        return any(_met(item, found) for item in wanted)
    if isinstance(wanted, str) and isinstance(found, str):
        return wanted.lower() == found.lower()
    return bool(wanted == found)
