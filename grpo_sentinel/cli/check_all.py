"""`grpo-sentinel check all`: every check that the given paths allow."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from grpo_sentinel.cli.check_environment import with_doctor
from grpo_sentinel.cli.check_numbers import SECONDS, in_order
from grpo_sentinel.cli.check_policy import DTYPES
from grpo_sentinel.cli.check_printing import print_report
from grpo_sentinel.preflight.everything import AllOptions, AllReport, check_everything, read_options
from grpo_sentinel.wording import counted


@click.command()
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE",
              help="YAML or JSON with the options below as keys; options win.")  # fmt: skip
@click.option("--data", multiple=True, metavar="FILE", help="Training data.")
@click.option("--eval", "evaluation", multiple=True, metavar="FILE", help="Evaluation data.")
@click.option("--policy", default="", metavar="DIR", help="The policy.")
@click.option("--reference", default="", metavar="DIR", help="The reference model.")
@click.option("--reward-model", default="", metavar="DIR", help="The reward model.")
@click.option("--reward", default="", metavar="MODULE:FUNCTION", help="The reward function.")
@click.option("--template", default="{answer}", metavar="TEXT", help="A gold completion; as in check reward.")
@click.option("--reward-range", nargs=2, type=float, metavar="LOW HIGH", help="Range of rewards.")
@click.option("--checkpoint", default="", metavar="DIR", help="A checkpoint to resume from.")
@click.option("--checkpoint-dir", default="", metavar="DIR", help="Where checkpoints will go.")
@click.option("--trainer-config", default="", metavar="FILE", help="The trainer's settings; as in check config.")
@click.option("--sentinel-config", default="", metavar="FILE", help="Our own settings.")
@click.option("--world-size", type=click.IntRange(0), default=0, metavar="N", help="Number of ranks.")
@click.option("--dtype", type=DTYPES, default="float32", show_default=True, help="Dtype of models.")
@click.option("--device", default="", help="cpu, cuda, cuda:1; default: a GPU where there is one.")
@click.option("--timeout", type=SECONDS, default=AllOptions().timeout, show_default=True, metavar="SECONDS",
              help="For all of it: what runs a model or a reward shares it.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs (schema grpo-sentinel/all-check).")
def everything(
    config: Path | None, data: tuple[str, ...], evaluation: tuple[str, ...], policy: str, reference: str,
    reward_model: str, reward: str, template: str, reward_range: tuple[float, float] | None, checkpoint: str,
    checkpoint_dir: str, trainer_config: str, sentinel_config: str, world_size: int, dtype: str, device: str,
    timeout: float, as_json: bool,
) -> int:  # fmt: skip
    """Run every check that the given paths allow, and say which were not run for want of one.

    Exit code 0: nothing was found by any, 1: faults, 2: usage, or something could not be checked.
    """
    low, high = in_order(reward_range)
    options = AllOptions(
        data=data, eval=evaluation, policy=policy, reference=reference, reward_model=reward_model, reward=reward,
        template=template, checkpoint=checkpoint, checkpoint_dir=checkpoint_dir, trainer_config=trainer_config,
        sentinel_config=sentinel_config, world_size=world_size, reward_low=low, reward_high=high, device=device,
        dtype=dtype, timeout=timeout,
    )  # fmt: skip
    if config is not None:
        options = read_options(config, options)
    report = check_everything(options, None if as_json or not sys.stderr.isatty() else _say)
    reports = dict(report.reports)
    reports["environment"] = with_doctor(reports["environment"])
    return _finish(replace(report, reports=reports), as_json)


def _say(name: str) -> None:
    click.echo(f"{name} ...", err=True)


def _finish(report: AllReport, as_json: bool) -> int:
    from grpo_sentinel.cli.rendering import print_json

    if as_json:
        print_json(report.to_json())
        return report.exit_code
    for one in report.reports.values():
        print_report(one)
        click.echo()
    for line in report.not_run:
        click.echo(f"not run: {line}")
    found = [name for name, one in report.reports.items() if one.faults]
    answer = f"something found by {', '.join(found)}" if found else "nothing found"
    click.echo(f"{counted(len(report.reports), 'check')} in {report.seconds:.0f} s: {answer}")
    return report.exit_code
