"""`grpo-sentinel rules`: what is judged and how, tests of rules as data, thresholds fitted to healthy runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from grpo_sentinel.errors import ConfigError, SentinelError
from grpo_sentinel.wording import counted

if TYPE_CHECKING:
    from grpo_sentinel.rules import Rule, RuleSet
    from grpo_sentinel.rules.calibration import Calibration

SCHEMA = "grpo-sentinel.rules/1"
CALIBRATION_SCHEMA = "grpo-sentinel.calibration/1"


def _rule_options(command: Callable[..., int]) -> Callable[..., int]:
    """Options that say which rules are meant."""
    for option in (
        click.option("--profile", metavar="NAMES", help="Profiles that are applied, by name or file."),
        click.option("--config", "config_path", metavar="FILE", help="Settings of the sidecar: their `rules` apply."),
        click.option("--rules", "rule_files", multiple=True, metavar="FILE", help="Further rules; may be repeated."),
    ):
        command = option(command)
    return command


def _load(rule_files: Sequence[str], config_path: str | None, profile: str | None) -> RuleSet:
    from grpo_sentinel.cli.runs import settings
    from grpo_sentinel.rules import load_rules

    config = settings(config_path)
    rules = config.rules if profile is None else config.rules.model_copy(update={"profile": profile})
    return load_rules(rules, rule_files, halting=config.halting)


def _applied(rules: RuleSet) -> tuple[RuleSet, dict[str, str]]:
    """The rules with the named profiles; `auto` needs a trainer and changes nothing here."""
    from grpo_sentinel.rules import profiles

    if rules.profile == "auto":
        return rules, {}
    return profiles.apply(rules, profiles.choose(rules, {}))


@click.group()
def rules() -> None:
    """The rules that judge a run: built-in ones, those of --rules FILE, and what the configuration changes."""


@rules.command("list")
@click.option("--layer", metavar="LAYER", help="Only rules of one layer.")
@click.option("--wide", is_flag=True, help="Show every column, whatever the width.")
@click.option("--json", "as_json", is_flag=True, help=f"Print JSON for programs (schema {SCHEMA}).")
@_rule_options
def list_(
    layer: str | None,
    wide: bool,
    as_json: bool,
    rule_files: tuple[str, ...],
    config_path: str | None,
    profile: str | None,
) -> int:
    """List the rules by layer, in the order in which a fault climbs."""
    from grpo_sentinel.catalog import LAYERS
    from grpo_sentinel.cli.rendering import print_json

    if layer is not None and layer not in LAYERS:
        raise click.UsageError(f"there is no layer {layer}; they are {', '.join(LAYERS)}")
    found, off = _applied(_load(rule_files, config_path, profile))
    shown = [rule for rule in found if layer in (None, rule.layer)]
    if as_json:
        print_json({"schema": SCHEMA, "rules": [_body(rule, off) for rule in shown]})
        return 0
    _print_list(shown, off, wide=wide)
    return 0


def _print_list(shown: Sequence[Rule], off: dict[str, str], *, wide: bool) -> None:
    from rich.text import Text

    from grpo_sentinel.cli.rendering import fitted, plain_console, room_note

    rows = []
    for rule in shown:
        style = "" if rule.enabled and rule.name not in off else "dim"
        how = str(rule.detect.get("kind")) + (", exact" if rule.bound else "")
        if style:
            how += ", off"
        action = rule.action.name.lower().replace("_", "-")
        cells = (
            rule.name, rule.layer, rule.severity.name.lower(), "-" if action in ("note", "alert") else action,
            rule.persistence, how, ", ".join(rule.signals),
        )  # fmt: skip
        rows.append([Text(cell, style=style) for cell in cells])
    console = plain_console(wide=wide)
    titles = ("rule", "layer", "severity", "asks for", "for", "how", "signals")
    lines, left_out = fitted(titles, rows, console.width, ("signals", "how", "for", "asks for"))
    for line in (*lines, *room_note(left_out, console)):
        console.print(line)
    console.print(counted(len(shown), "rule"))


def _body(rule: Rule, off: dict[str, str]) -> dict[str, Any]:
    return {
        "name": rule.name, "layer": rule.layer, "severity": rule.severity, "action": rule.action, "scope": rule.scope,
        "mode": rule.mode, "enabled": rule.enabled and rule.name not in off, "off_because": off.get(rule.name, ""),
        "exact": rule.bound, "for": rule.persistence, "resolve_after": rule.resolve_after, "cooldown": rule.cooldown,
        "detect": rule.detect, "unless": rule.unless, "when": list(rule.when), "signals": list(rule.signals),
        "message": rule.message, "why": rule.why, "remedies": list(rule.remedies), "reference": rule.reference,
        "false_alarm_budget": rule.false_alarm_budget, "source": rule.source, "builtin": rule.builtin,
    }  # fmt: skip


@rules.command(short_help="Show one rule.")
@click.argument("name", metavar="NAME")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@_rule_options
def show(name: str, as_json: bool, rule_files: tuple[str, ...], config_path: str | None, profile: str | None) -> int:
    """Show one rule: what it looks at, when it fires, why it matters, what to try."""
    from difflib import get_close_matches

    from grpo_sentinel.cli.rendering import print_json
    from grpo_sentinel.history.codec import plain

    found, off = _applied(_load(rule_files, config_path, profile))
    by_name = {rule.name: rule for rule in found}
    if name not in by_name:
        close = get_close_matches(name, by_name, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "`grpo-sentinel rules list` shows them"
        raise ConfigError(f"there is no rule named {name!r}; {hint}")
    body = _body(by_name[name], off)
    if as_json:
        print_json(body)
        return 0
    shown = {key: value for key, value in plain(body).items() if value not in (None, "", [], {})}
    click.echo(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=110).rstrip())
    return 0


@rules.command("test", short_help="Test rules with series of YAML.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--verbose", "-v", is_flag=True, help="Name the cases that pass, too.")
@_rule_options
def test_(
    files: tuple[str, ...], verbose: bool, rule_files: tuple[str, ...], config_path: str | None, profile: str | None
) -> int:
    """Test rules: YAML with series that must make a rule fire, and series that must not. FILE may be a directory.

    Exit code 0: all as expected, 1: not.
    """
    from grpo_sentinel.rules.cases import read_cases, run_case

    found, _ = _applied(_load(rule_files, config_path, profile))
    known = {rule.name for rule in found}
    passed = failed = 0
    for path in _case_files(files):
        for case in read_cases(_read(path), path.name):
            if case.rule not in known:
                raise ConfigError(f"{path}: there is no rule named {case.rule!r}; give its file with --rules")
            try:
                problems = run_case(case, found)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ConfigError(f"{case.name}: cannot be played: {type(error).__name__}: {error}") from error
            passed, failed = passed + (not problems), failed + bool(problems)
            for problem in problems:
                click.echo(f"FAILED  {problem}")
            if verbose and not problems:
                click.echo(f"passed  {case.name}")
    click.echo(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _case_files(files: Sequence[str]) -> list[Path]:
    out: list[Path] = []
    for name in files:
        path = Path(name)
        inside = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
        if not inside:
            raise ConfigError(f"{name} holds no *.yaml; give files of cases")
        out += inside
    return out


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read the cases {path}: {why}; give a readable YAML file") from error


@rules.command(short_help="Fit thresholds to healthy runs.")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--budget", type=float, default=0.2, show_default=True, help="Alarms per 1,000 steps, all rules.")
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Write the profile there.")
@click.option("--tighten", is_flag=True, help="Also narrow rules that judged and stayed silent, within bounds.")
@click.option("--run-id", metavar="ID", help="Run of a history, or `all`; default: the newest.")
@click.option("--json", "as_json", is_flag=True, help=f"Print JSON for programs (schema {CALIBRATION_SCHEMA}).")
@_rule_options
def calibrate(
    runs: tuple[str, ...],
    budget: float,
    output: Path | None,
    tighten: bool,
    run_id: str | None,
    as_json: bool,
    rule_files: tuple[str, ...],
    config_path: str | None,
    profile: str | None,
) -> int:
    """Fit thresholds to healthy runs (any source of `replay`) and write them as a profile.

    Only rules that fire on them are loosened, and no more than the budget asks; rules that decide by a bound never are.
    With --tighten, and 1,000 healthy steps or more, silent rules are narrowed to 0.59 of their thresholds at most.
    Exit code 0: the budget is kept, 1: rules that decide by a bound fire too often for it.
    """
    from grpo_sentinel.cli.rendering import print_json
    from grpo_sentinel.cli.replaying import sources_of
    from grpo_sentinel.history.sources import Progress
    from grpo_sentinel.rules.calibration import Run
    from grpo_sentinel.rules.calibration import calibrate as fit

    if budget < 0:
        raise click.UsageError(f"--budget must not be negative, got {budget:g}")
    given = [
        Run(name=one.run_id, context=one.context, items=lambda one=one: one.items(Progress()))  # type: ignore[misc]
        for one in sources_of(runs, run_id)
    ]
    found = fit(_load(rule_files, config_path, profile), given, budget, tighten=tighten)
    text = profile_text(found)
    if output is not None:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise SentinelError(f"cannot write {output}: {error.strerror}; choose another with -o") from error
    if as_json:
        print_json({"schema": CALIBRATION_SCHEMA, "certain_below": found.certain, "result": found})
    else:
        _print_calibration(found, output, text)
    return 1 if found.alarms_after > budget * found.steps / 1000 else 0


def profile_text(found: Calibration) -> str:
    """Write a calibration as a profile, with what it costs as comments."""
    body: dict[str, Any] = {
        "name": "calibrated",
        "help": f"Fitted to {_basis(found)}, {found.budget:g} alarms per 1,000 steps.",
    }
    if found.disabled:
        body["disable"] = dict(found.disabled)
    if found.changes:
        body["parameters"] = {change.rule: dict(change.parameters) for change in found.changes}
    lines = [f"# {line}" for line in _cost_lines(found)]
    if found.profiles:
        lines.append(f"# in force at the time: use it as --profile {','.join((*found.profiles, 'THIS_FILE'))}")
    return "\n".join([*lines, yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=110)])


def _cost_lines(found: Calibration) -> list[str]:
    out = []
    for change in found.changes:
        moved = ", ".join(f"{key} {change.before.get(key)} -> {value}" for key, value in change.parameters.items())
        out.append(f"{change.rule}: {moved}; alarms {change.alarms_before} -> {change.alarms_after}")
        for size, (before, after) in change.delays.items():
            out.append(f"  a lasting shift of {size} is told after {_steps(before)} -> {_steps(after)}")
    return out


def _basis(found: Calibration) -> str:
    return f"{counted(found.steps, 'healthy step')} of {counted(found.runs, 'run')}"


def _steps(delay: int | None) -> str:
    return "not at all" if delay is None else counted(delay, "step")


def _print_calibration(found: Calibration, output: Path | None, text: str) -> None:
    rate = 1000 / found.steps
    click.echo(
        f"{_basis(found)}: {counted(found.alarms_before, 'alarm')} "
        f"({found.alarms_before * rate:.3g} per 1,000 steps), budget {found.budget:g}"
    )
    for line in _cost_lines(found):
        click.echo(f"  {line}")
    for name, why in found.disabled.items():
        click.echo(f"  {name}: switched off, it {why}")
    for name, count in found.exact.items():
        click.echo(
            f"  {name}: {counted(count, 'alarm')}; it decides by a bound and is not loosened: is that run healthy?"
        )
    click.echo(
        f"left: {counted(found.alarms_after, 'alarm')} ({found.alarms_after * rate:.3g} per 1,000 steps, "
        f"with 95 % certainty below {found.certain:.3g})"
    )
    if found.certain > found.budget:
        click.echo(f"  to be sure of the budget, give about {_needed(found.budget)} healthy steps without an alarm")
    if output is not None:
        click.echo(f"profile: {output} (use it with --profile, or as rules.profile)")
    else:
        click.echo(text)


def _needed(budget: float) -> str:
    return f"{3000 / budget:,.0f}" if budget else "endless"


__all__ = ["CALIBRATION_SCHEMA", "SCHEMA", "profile_text", "rules"]
