"""Reads rule files: built-in and user rules have one format, and every mistake gets file, line and remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from grpo_sentinel.catalog import LAYERS, signal_of
from grpo_sentinel.config import HaltingConfig, RuleOverride, RulesConfig
from grpo_sentinel.errors import ConfigError
from grpo_sentinel.records import Action, Severity
from grpo_sentinel.rules.message import problem_of
from grpo_sentinel.rules.parameters import ParameterError, build
from grpo_sentinel.rules.rule import MODES, SCOPES, Rule, RuleSet
from grpo_sentinel.settings_file import line_of, refuse_multiplied

_REQUIRED = ("name", "severity", "detect", "message", "why", "remedies")
_OPTIONAL = (
    "layer", "scope", "mode", "when", "unless", "for", "resolve_after", "cooldown", "bound", "outcome", "attribution",
    "enabled", "action", "reference", "false_alarm_budget",
)  # fmt: skip
_TUNABLE = {"for", "resolve_after", "cooldown"}  # parameters of an override that belong to the rule, not the detector


def load_rules(
    config: RulesConfig | None = None,
    extra: Iterable[str | Path] = (),
    *,
    halting: HaltingConfig | None = None,
    strict: bool = True,
) -> RuleSet:
    """Load the built-in rules, then user files, then apply what the configuration changes.

    `halting` gives the two numbers of the rule `nonfinite_updates`, where `config.override` does not set them.

    Raises `ConfigError` with file, line and remedy. With `strict=False` a broken *user* rule is left out and reported
    in `problems`; the others work.
    """
    config = _with_halting(config or RulesConfig(), halting)
    rules: dict[str, Rule] = {}
    for layer in LAYERS:
        entry = resources.files("grpo_sentinel.rules").joinpath("catalogue").joinpath(f"{layer}.yaml")
        if entry.is_file():
            _read(entry.read_text(encoding="utf-8"), f"{layer}.yaml", rules, None, builtin=True)
    problems: list[str] = []
    for name in (*config.files, *map(str, extra)):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            _report(f"cannot read the rule file {name}: {error}; give a readable YAML file", problems, strict)
            continue
        _read(text, name, rules, None if strict else problems, builtin=False)
    rules = _configured(rules, config, problems, strict)
    ordered = sorted(rules.values(), key=lambda rule: LAYERS.index(rule.layer))
    pinned = {name: tuple(override.parameters) for name, override in config.override.items()}
    return RuleSet(rules=tuple(ordered), problems=tuple(problems), profile=config.profile, pinned=pinned)


def _with_halting(config: RulesConfig, halting: HaltingConfig | None) -> RulesConfig:
    if halting is None:
        return config
    given = config.override.get("nonfinite_updates", RuleOverride())
    numbers = {"count": halting.nonfinite_updates, "window_steps": halting.nonfinite_window_steps}
    change = given.model_copy(update={"parameters": {**numbers, **given.parameters}})
    return config.model_copy(update={"override": {**config.override, "nonfinite_updates": change}})


def read_mapping(text: str, source: str) -> dict[str, Any]:
    """Read a YAML mapping (a profile, a file of cases); raises `ConfigError` naming the file."""
    try:
        refuse_multiplied(yaml.compose(text, Loader=yaml.SafeLoader), source)
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: not valid YAML ({error}); correct it") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: expected a mapping, got {type(data).__name__}; see docs/rules.md")
    return data


def parse_rules(text: str, source: str) -> list[Rule]:
    """Read one file's text; raises `ConfigError` at the first mistake."""
    rules: dict[str, Rule] = {}
    _read(text, source, rules, None, builtin=False)
    return list(rules.values())


def override_rule(rule: Rule, change: RuleOverride) -> Rule:
    """Apply a change of severity, action, switch and parameters; raises `ConfigError` for what does not fit."""
    detect: Any = rule.detect
    updates: dict[str, Any] = {}
    for key, value in change.parameters.items():
        if key in _TUNABLE:
            updates.update(_tuned(key, value, f"rules.override.{rule.name}.parameters.{key}"))
        else:
            detect = _with(detect, key.split("."), value, f"rules.override.{rule.name}.parameters.{key}")
    try:
        build(detect, "label")
    except ParameterError as error:
        raise ConfigError(f"rules.override.{rule.name}: {error}; see `detect` of the rule in docs/rules") from None
    if change.severity is not None:
        updates["severity"] = Severity[change.severity.upper()]
    if change.action is not None:
        updates["action"] = _action(change.action)
    if change.enabled is not None:
        updates["enabled"] = change.enabled
    return replace(rule, detect=detect, **updates)


def _with(spec: Any, path: Sequence[str], value: Any, place: str) -> Any:
    """Copy a detector mapping with one parameter changed; `of.0.ratio` reaches into nested ones."""
    key = path[0]
    if isinstance(spec, list):
        if not key.isdigit() or int(key) >= len(spec):
            raise ConfigError(f"{place}: expected a position below {len(spec)}, got {key!r}")
        copy = list(spec)
        copy[int(key)] = _with(spec[int(key)], path[1:], value, place) if path[1:] else value
        return copy
    if not path[1:]:
        return {**spec, key: value}
    if key not in spec:
        raise ConfigError(f"{place}: the detector has no part {key!r}; it has {', '.join(spec)}")
    return {**spec, key: _with(spec[key], path[1:], value, place)}


def _configured(rules: dict[str, Rule], config: RulesConfig, problems: list[str], strict: bool) -> dict[str, Rule]:
    for name in (*config.disabled, *config.override):
        if name not in rules:
            close = get_close_matches(name, rules, n=1)
            hint = f"did you mean {close[0]}?" if close else "`grpo-sentinel rules list` shows the known ones"
            _report(f"rules: there is no rule named {name!r}; {hint}", problems, strict)
    out = dict(rules)
    for name, change in config.override.items():
        if name not in rules:
            continue
        try:
            out[name] = override_rule(rules[name], change)
        except ConfigError as error:
            _report(str(error), problems, strict)
    for name in config.disabled:
        if name in out:
            out[name] = replace(out[name], enabled=False)
    return out


def _report(text: str, problems: list[str], strict: bool) -> None:
    if strict:
        raise ConfigError(text)
    problems.append(text)


def _read(text: str, source: str, rules: dict[str, Rule], problems: list[str] | None, *, builtin: bool) -> None:
    """Add a file's rules; with `problems` a broken one is reported there and left out."""
    lenient = problems is not None
    kept = problems if problems is not None else []
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        refuse_multiplied(node, source)
        data = yaml.safe_load(text)
    except ConfigError as error:
        _report(str(error), kept, not lenient)
        return
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{source} line {mark.line + 1}" if mark is not None else source
        _report(f"{place}: not valid YAML ({getattr(error, 'problem', error)}); correct the line", kept, not lenient)
        return
    if not isinstance(data, Mapping) or not isinstance(data.get("rules"), list):
        _report(f"{source}: expected a mapping with a list `rules`, see docs/rules.md", kept, not lenient)
        return
    for index, entry in enumerate(data["rules"]):
        try:
            rule = _rule(entry, data.get("layer"), source, line_of(node, ("rules", index)), builtin)
            if rule.name in rules:
                raise ParameterError(f"the name {rule.name!r} is taken ({rules[rule.name].source})", ("name",))
        except ParameterError as error:
            line = line_of(node, ("rules", index, *error.path))
            key = ".".join(str(part) for part in error.path)
            place = f"{source} line {line}: rules[{index}]" + (f".{key}" if key else "")
            _report(f"{place}: {error}", kept, not lenient)
            continue
        rules[rule.name] = rule


def _rule(entry: Any, layer: Any, source: str, line: int | None, builtin: bool) -> Rule:
    if not isinstance(entry, Mapping):
        raise ParameterError(f"expected a mapping, got {entry!r}")
    for key in entry:
        if key not in _REQUIRED and key not in _OPTIONAL:
            close = get_close_matches(str(key), (*_REQUIRED, *_OPTIONAL), n=1)
            raise ParameterError(f"unknown key {key!r}" + (f"; did you mean {close[0]}?" if close else ""), (str(key),))
    for key in _REQUIRED:
        if key not in entry:
            raise ParameterError(f"the key {key!r} is missing; every rule needs {', '.join(_REQUIRED)}")
    name = entry["name"]
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ParameterError(f"expected a name of small letters, digits and _, got {name!r}", ("name",))
    rule = Rule(
        name=name,
        layer=_choice(entry.get("layer", layer), LAYERS, "layer"),
        severity=Severity[_choice(entry["severity"], ("note", "warning", "critical"), "severity").upper()],
        action=_action(entry.get("action", "note" if entry["severity"] == "note" else "alert")),
        scope=_choice(entry.get("scope", "merged"), SCOPES, "scope"),
        mode=_choice(entry.get("mode", "train"), MODES, "mode"),
        detect=_checked(entry["detect"], "detect"),
        when=_strings(entry.get("when", []), "when"),
        unless=None if entry.get("unless") is None else _checked(entry["unless"], "unless"),
        bound=bool(entry.get("bound", False)),
        outcome=bool(entry.get("outcome", False)),
        attribution=_choice(entry.get("attribution", ""), ("", "nonfinite", "own_gradient"), "attribution"),
        enabled=bool(entry.get("enabled", True)),
        message=_template(entry["message"]),
        why=str(entry["why"]).strip(),
        remedies=_strings(entry["remedies"], "remedies"),
        reference=str(entry.get("reference", "")),
        false_alarm_budget=float(entry.get("false_alarm_budget", 0.0)),
        source=f"{source} line {line}",
        builtin=builtin,
        **_tuned("for", entry.get("for", 1), ""),
        **{key: value for field in ("resolve_after", "cooldown") if field in entry for key, value in
           _tuned(field, entry[field], "").items()},
    )  # fmt: skip
    try:
        rule.conditions()
    except ValueError as error:
        raise ParameterError(str(error), ("when",)) from None
    unknown = [signal for signal in rule.signals if signal_of(signal.replace("[*]", "")) is None]
    if builtin and unknown:
        raise ParameterError(f"the catalogue has no signal {unknown[0]}", ("detect",))
    return rule


def _checked(spec: Any, key: str) -> Mapping[str, Any]:
    build(spec, "", (key,))
    return dict(spec)


def _tuned(key: str, value: Any, place: str) -> dict[str, int]:
    """Read `for`, `resolve_after` or `cooldown`; raises ParameterError, or ConfigError when `place` is given."""
    try:
        if key == "for":
            return _persistence(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < (1 if key == "resolve_after" else 0):
            raise ParameterError(f"expected a whole number, got {value!r}", (key,))
        return {key: value}
    except ParameterError as error:
        if place:
            raise ConfigError(f"{place}: {error}") from None
        raise


def _persistence(value: Any) -> dict[str, int]:
    match = re.fullmatch(r"(\d+)(?:\s+of\s+(\d+))?", str(value).strip()) if not isinstance(value, bool) else None
    if match is None:
        raise ParameterError(f"expected a count or 'n of m', got {value!r}", ("for",))
    bad = int(match.group(1))
    window = int(match.group(2) or bad)
    if not 1 <= bad <= window <= 1000:
        raise ParameterError(f"expected 1 <= n <= m <= 1000, got {value!r}", ("for",))
    return {"bad": bad, "window": window}


def _choice(value: Any, known: Sequence[str], key: str) -> str:
    if value not in known:
        raise ParameterError(f"expected one of {', '.join(k or 'nothing' for k in known)}, got {value!r}", (key,))
    return str(value)


def _action(value: Any) -> Action:
    names = [action.name.lower().replace("_", "-") for action in Action]
    return Action(names.index(_choice(value, names, "action")))


def _strings(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ParameterError(f"expected a list of texts, got {value!r}", (key,))
    return tuple(item.strip() for item in value)


def _template(value: Any) -> str:
    text = str(value).strip()
    problem = problem_of(text)
    if problem:
        raise ParameterError(problem, ("message",))
    return text
