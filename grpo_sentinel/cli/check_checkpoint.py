"""`grpo-sentinel check checkpoint`: can a restart use this directory, or this file?"""

from __future__ import annotations

from pathlib import Path

import click

from grpo_sentinel.preflight.checkpoint import CheckpointReport, Resumable, check_checkpoint
from grpo_sentinel.wording import counted

_COLOURS = {Resumable.YES: "green", Resumable.NO: "red", Resumable.CANNOT_TELL: "yellow"}


@click.command()
@click.argument("directory", metavar="DIR|FILE", type=click.Path(path_type=Path))
@click.option("--quick", is_flag=True, help="Tell whole from half without reading the numbers.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for programs (schema grpo-sentinel/checkpoint-check)."
)
def checkpoint(directory: Path, quick: bool, as_json: bool) -> int:
    """Check a checkpoint: missing or cut files, NaN and infinities by name, optimizer, schedule, random states, step.

    Reads safetensors, torch, DeepSpeed and FSDP files; unpickles none of them. Exit code 0: nothing was found, 1: a
    problem or something that could not be judged, 2: usage.
    """
    from grpo_sentinel.cli.rendering import print_json

    report = check_checkpoint(directory, quick=quick)
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)
    return 1 if report.problems else 0


def _print(report: CheckpointReport) -> None:
    step = f", step {report.step}" if report.step is not None else ""
    click.echo(f"{report.path} ({', '.join(report.layout)}{step})")
    click.echo("resumable: " + click.style(report.resumable.value, fg=_COLOURS[report.resumable], bold=True))
    for problem in report.problems:
        click.echo(f"  {problem.level.value}: {problem.message}")
    if not report.problems:
        click.echo(f"  {report.reasons[0]}")
    tensors, elements = sum(one.tensors for one in report.files), sum(one.elements for one in report.files)
    size = sum(one.bytes for one in report.files)
    click.echo(
        f"{counted(len(report.files), 'file')}, {tensors:,} tensors, {elements:,} numbers looked at, "
        f"{size / 1e6:,.1f} MB, {report.seconds:.1f} s"
    )
