"""`grpo-sentinel check environment`: will this node and installation carry a run?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from grpo_sentinel.cli.check_printing import finish
from grpo_sentinel.preflight.environment import EnvironmentOptions, check_environment
from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import CheckReport, Fault, gravest_first

_DIRECTORY = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command()
@click.option("--policy", type=_DIRECTORY, metavar="DIR", help="The policy's model directory.")
@click.option("--reference", type=_DIRECTORY, metavar="DIR", help="The reference model's.")
@click.option("--reward-model", type=_DIRECTORY, metavar="DIR", help="The reward model's.")
@click.option("--checkpoint-dir", type=click.Path(path_type=Path), metavar="DIR", help="Where checkpoints will go.")
@click.option("--checkpoints", type=click.IntRange(1), default=3, show_default=True, help="How many will be kept.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for programs (schema grpo-sentinel/environment-check)."
)
def environment(
    policy: Path | None, reference: Path | None, reward_model: Path | None, checkpoint_dir: Path | None,
    checkpoints: int, as_json: bool,
) -> int:  # fmt: skip
    """Check versions that break together, driver, limits, shared memory, disk, clock, and tokenizers of the models.

    Imports no training library. Exit code 0: nothing was found, 1: faults, 2: usage.
    """
    named = {"policy": policy, "reference": reference, "reward": reward_model}
    options = EnvironmentOptions(
        models={role: path for role, path in named.items() if path is not None}, checkpoint_dir=checkpoint_dir,
        checkpoints=checkpoints,
    )  # fmt: skip
    return finish(with_doctor(check_environment(options)), as_json)


def with_doctor(report: CheckReport) -> CheckReport:
    """Add what `doctor` knows of this machine; its notes stay notes."""
    from grpo_sentinel.cli.checkup import State, memory_limit, nvml, packages, python, rings, shared_memory
    from grpo_sentinel.config import Config

    checks = (python, packages, rings, shared_memory, nvml, memory_limit)
    found = [one for check in checks for one in check(Config())]
    faults = [
        Fault(level=Level.BROKEN, code="doctor", where=one.name, message=f"{one.name}: {one.found}", remedy=one.remedy)
        for one in found
        if one.state is State.BAD
    ]
    notes = tuple(f"{one.name}: {one.found}; {one.remedy}" for one in found if one.state is State.NOTE)
    good = tuple(f"{one.name}: {one.found}" for one in found if one.state is State.GOOD)
    return replace(
        report, faults=gravest_first([*report.faults, *faults]), notes=report.notes + notes,
        looked_at=report.looked_at + good,
    )  # fmt: skip
