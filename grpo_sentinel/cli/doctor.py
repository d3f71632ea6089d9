"""`grpo-sentinel doctor`: what is installed, visible, permitted and missing, each with the remedy."""

from __future__ import annotations

import click

from grpo_sentinel.cli.checkup import CHECKS, Finding, State
from grpo_sentinel.cli.runs import settings
from grpo_sentinel.config import Config
from grpo_sentinel.errors import ConfigError

_MARKS = {State.GOOD: ("ok", "green"), State.NOTE: ("note", "yellow"), State.BAD: ("MISSING", "bold red")}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option(
    "--config", "config_path", metavar="FILE", help="Settings of the sidecar; checked, and used for its directories."
)
def doctor(as_json: bool, config_path: str | None) -> int:
    """Check this machine and installation. Exit code 1 when something is missing that matters, else 0."""
    from grpo_sentinel.cli.rendering import print_json

    findings: list[Finding] = []
    try:
        config = settings(config_path)
    except ConfigError as error:
        config = Config()
        findings.append(
            Finding("configuration", State.BAD, str(error), "correct the file; the rest is checked with defaults")
        )
    for check in CHECKS:
        findings += check(config)
    if as_json:
        print_json({
            "good": all(one.state is not State.BAD for one in findings),
            "checks": [
                {"name": one.name, "state": one.state.value, "found": one.found, "remedy": one.remedy}
                for one in findings
            ],
        })  # fmt: skip
    else:
        _print(findings)
    return 1 if any(one.state is State.BAD for one in findings) else 0


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    width = max(len(one.name) for one in findings)
    for one in findings:
        word, style = _MARKS[one.state]
        console.print(Text.assemble((f"{word:<8}", style), f"{one.name:<{width}}  {one.found}"))
        if one.remedy:
            console.print(Text(f"{'':<8}{'':<{width}}  -> {one.remedy}", style="dim"))
