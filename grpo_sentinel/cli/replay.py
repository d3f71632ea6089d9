"""`grpo-sentinel replay`: what would the rules have said of a past run?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from grpo_sentinel.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from grpo_sentinel.cli.replaying import Outcome
    from grpo_sentinel.config import RulesConfig
    from grpo_sentinel.history.sources import Progress
    from grpo_sentinel.records import Finding

SCHEMA = "grpo-sentinel.replay/1"


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--rules", "rule_files", multiple=True, metavar="FILE", help="Further rules (YAML); may be repeated.")
@click.option("--profile", metavar="NAMES", help="Profiles, by name or file; default: by what the source shows.")
@click.option("--config", "config_path", metavar="FILE", help="Settings of the sidecar: their `rules` apply.")
@click.option("--run-id", metavar="ID", help="Run of a history, or `all`; default: the newest.")
@click.option(
    "--fail-on", type=click.Choice(["note", "warning", "critical"]), default="warning", show_default=True,
    help="Exit with 1 when a finding is at least so grave.",
)  # fmt: skip
@click.option(
    "--walk", "with_walk", is_flag=True, help="Print the walk backwards: what each layer shows, and what not."
)
@click.option("--wide", is_flag=True, help="Show findings in full, whatever the width.")
@click.option("--json", "as_json", is_flag=True, help=f"Print JSON for programs (schema {SCHEMA}).")
def replay(
    sources: tuple[str, ...],
    rule_files: tuple[str, ...],
    profile: str | None,
    config_path: str | None,
    run_id: str | None,
    fail_on: str,
    with_walk: bool,
    wide: bool,
    as_json: bool,
) -> int:
    """Run the rules over past runs: a history, an incident, trainer_state.json, TensorBoard, CSV, JSON lines, logs.

    - is standard input, of any of these kinds.

    Exit code 0: nothing at or above --fail-on, 1: findings, 2: usage or nothing that can be read.
    """
    from grpo_sentinel.cli.rendering import print_json
    from grpo_sentinel.cli.replaying import play, sources_of
    from grpo_sentinel.cli.runs import settings
    from grpo_sentinel.history.sources import SourceError
    from grpo_sentinel.records import Severity
    from grpo_sentinel.rules import load_rules

    config = settings(config_path)
    rules = load_rules(_with_profile(config.rules, profile), rule_files, halting=config.halting)
    found = sources_of(sources, run_id)
    outcomes = []
    for source in found:
        with _progress(f"{source.name}") as tell:
            outcomes.append(play(source, rules, tell))
    if as_json:
        print_json({"schema": SCHEMA, "rules": len(rules), "runs": [_body(outcome) for outcome in outcomes]})
    else:
        _print(outcomes, with_walk, wide=wide)
    for source in found:
        if source.others:
            what = "1 other run is" if source.others == 1 else f"{source.others} other runs are"
            click.echo(f"{what} in this history ({source.name} is the newest): --run-id NAME or all", err=True)
    if not any(outcome.frames for outcome in outcomes):
        names = ", ".join(source.name for source in found)
        raise SourceError(f"no step in {names}: nothing was judged")
    worst = max((worst for outcome in outcomes if (worst := outcome.worst()) is not None), default=None)
    return 1 if worst is not None and worst >= Severity[fail_on.upper()] else 0


def _with_profile(config: RulesConfig, profile: str | None) -> RulesConfig:
    return config if profile is None else config.model_copy(update={"profile": profile})


@contextmanager
def _progress(name: str) -> Iterator[Callable[[Progress], None] | None]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(name, total=1.0)
        yield lambda progress: bars.update(task, completed=progress.share)


def _body(outcome: Outcome) -> dict[str, Any]:
    from grpo_sentinel.records import Severity
    from grpo_sentinel.rules.walk import as_json

    return {
        "source": outcome.source.name,
        "kind": outcome.source.kind,
        "run_id": outcome.source.run_id,
        "frames": outcome.frames,
        "first_step": outcome.first_step,
        "last_step": outcome.last_step,
        "profiles": outcome.profiles,
        "rules_judging": outcome.judging,
        "counts": {severity.name.lower(): outcome.count(severity) for severity in Severity},
        "findings": list(outcome.findings.values()),
        "left_out": dict(outcome.left_out),
        "walk": None if outcome.walk is None else as_json(outcome.walk),
        "notes": outcome.notes,
    }


def _print(outcomes: Sequence[Outcome], with_walk: bool = False, *, wide: bool = False) -> None:
    from grpo_sentinel.cli.rendering import plain_console, room_note
    from grpo_sentinel.records import Severity
    from grpo_sentinel.rules.walk import as_lines

    console = plain_console(wide=wide)
    for outcome in outcomes:
        source = outcome.source
        steps = "no steps" if outcome.first_step is None else f"steps {outcome.first_step} to {outcome.last_step}"
        profiles = f", profiles {', '.join(outcome.profiles)}" if outcome.profiles else ""
        console.print(
            f"{source.name}: {source.kind}, {counted(outcome.frames, 'frame')}, {steps}{profiles}; "
            f"{counted(outcome.judging, 'rule')} could judge",
            markup=False,
        )
        if outcome.findings:
            lines, left_out = _table(outcome, console.width)
            for row in (*lines, *room_note(left_out, console)):
                console.print(row)
        counts = ", ".join(f"{outcome.count(severity)} {severity.name.lower()}" for severity in reversed(Severity))
        console.print(f"  {counts}" if outcome.findings else "  nothing found", markup=False)
        for rule, count in outcome.left_out.items():
            console.print(f"  {rule}: {count} more, left out", markup=False)
        for line in as_lines(outcome.walk) if with_walk and outcome.walk is not None else ():
            console.print(f"  {line}", markup=False)
        for text in outcome.notes:
            console.print(f"  note: {text}", markup=False)


def _table(outcome: Outcome, width: int) -> tuple[list[Text], list[str]]:
    """Roots in the order of onset, what follows from each under it."""
    from rich.text import Text

    from grpo_sentinel.cli.rendering import _COLOURS, fitted

    rows = [
        [
            Text(str(finding.onset_step)), Text(str(finding.step)),
            Text(finding.severity.name.lower(), _COLOURS[finding.severity]), Text(finding.layer),
            Text(",".join(map(str, finding.ranks)) or "-"), Text(finding.rule),
            Text(f"{'└ ' * depth}{finding.message}"),
        ]
        for finding, depth in ordered(outcome.findings.values())
    ]  # fmt: skip
    titles = ("since", "told", "severity", "layer", "ranks", "rule", "finding")
    return fitted(titles, rows, width, ("told", "ranks", "layer"), cut=True)


def ordered(findings: Any) -> list[tuple[Finding, int]]:
    """Give each root by onset, gravest first, followed by its chain: `(finding, 0 or 1)`."""
    from grpo_sentinel.views import chains

    everything: list[Finding] = list(findings)
    out: list[tuple[Finding, int]] = []
    for root, chain in sorted(chains(everything), key=lambda one: (one[0].onset_step, -one[0].severity)):
        out.append((root, 0))
        out.extend((one, 1) for one in sorted(chain, key=lambda one: (one.onset_step, -one.severity)))
    return out


__all__ = ["SCHEMA", "ordered", "replay"]
