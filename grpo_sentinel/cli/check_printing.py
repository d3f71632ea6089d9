"""Print the report of a check: what is wrong with examples and remedy, what was looked at, what could not be seen."""

from __future__ import annotations

import click

from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import CheckReport

_COLOURS = {Level.BROKEN: "red", Level.CANNOT_TELL: "yellow", Level.LOSS: "yellow", Level.DOUBTFUL: "yellow"}
_MOST_ROWS = 40
_MOST_NAMED = 6  # of a list


def finish(report: CheckReport, as_json: bool) -> int:
    """Print and give the exit code: 0 nothing found, 1 faults."""
    from grpo_sentinel.cli.rendering import print_json

    if as_json:
        print_json(report.to_json())
    else:
        print_report(report)
    return report.exit_code


def print_report(report: CheckReport) -> None:
    """Print for people; the first line is the answer."""
    count = len(report.faults)
    answer = "nothing found" if not count else f"{count} kind{'s' if count > 1 else ''} of fault"
    click.echo(f"{report.kind}: " + click.style(answer, fg="red" if count else "green", bold=True))
    for fault in report.faults:
        click.echo(f"  {click.style(fault.level.value, fg=_COLOURS[fault.level])}: {fault.message} [{fault.code}]")
        for example in fault.examples:
            click.echo(f"      {example}")
        click.echo(f"      -> {fault.remedy}")
    for title, lines in (("note", report.notes), ("looked at", report.looked_at), ("not seen", report.not_seen)):
        for line in lines:
            click.echo(f"  {title}: {line}")
    for name, value in report.facts.items():
        _print_fact(name.replace("_", " "), value)
    click.echo(f"  {report.seconds:.1f} s")


def _print_fact(name: str, value: object) -> None:
    """One line; one for each entry where the entries are tables themselves (layers)."""
    if isinstance(value, dict) and value and all(isinstance(one, dict) for one in value.values()):
        rows = list(value.items())
        for key, one in rows[:_MOST_ROWS]:
            click.echo(f"  {name} {key}: {_fact(one)}")
        if len(rows) > _MOST_ROWS:
            click.echo(f"  {name}: {len(rows) - _MOST_ROWS} more (--json)")
    elif text := _fact(value):
        click.echo(f"  {name}: {text}")


def _fact(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_fact(inner)}" for key, inner in list(value.items())[:12] if inner is not None)
    if isinstance(value, (list, tuple)):
        rest = f" and {len(value) - _MOST_NAMED} more" if len(value) > _MOST_NAMED else ""
        return ", ".join(_fact(one) for one in value[:_MOST_NAMED]) + rest
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)
