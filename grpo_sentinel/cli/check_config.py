"""`grpo-sentinel check config`: will these settings train, and survive a halt?"""

from __future__ import annotations

from pathlib import Path

import click

from grpo_sentinel.cli.check_printing import finish
from grpo_sentinel.preflight.config_check import check_config


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--world-size", type=click.IntRange(1), metavar="N", help="Number of ranks, for the geometry of batches.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs (schema grpo-sentinel/config-check).")
def config(file: Path, world_size: int | None, as_json: bool) -> int:
    """Check settings: grpo-sentinel's own, or a trainer's (TRL, verl, OpenRLHF, DeepSpeed).

    FILE is JSON or YAML, or the shell or Python script that starts the trainer; it is read, not run.
    Exit code 0: nothing was found, 1: faults, 2: usage.
    """
    return finish(check_config(file, world_size=world_size), as_json)
