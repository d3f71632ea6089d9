"""`grpo-sentinel check data`: are these samples fit to be trained on?"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from grpo_sentinel.cli.check_numbers import in_order
from grpo_sentinel.cli.check_printing import finish
from grpo_sentinel.preflight.data import DataOptions, Progress, check_data
from grpo_sentinel.preflight.data_checks import Limits
from grpo_sentinel.preflight.data_shapes import Fields
from grpo_sentinel.preflight.data_sources import STDIN, expand


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--prompt", default="", metavar="FIELD", help="Field of the prompt; dots lead into mappings.")
@click.option("--response", default="", metavar="FIELD", help="Field of the response.")
@click.option("--answer", default="", metavar="FIELD", help="Field that the reward function compares with.")
@click.option("--reward", default="", metavar="FIELD", help="Field of the reward.")
@click.option("--require", multiple=True, metavar="FIELD", help="A further field that every row must have.")
@click.option("--reward-range", nargs=2, type=float, metavar="LOW HIGH", help="Range of rewards.")
@click.option(
    "--max-length",
    type=click.IntRange(1),
    metavar="N",
    help="Limit of prompt and response: tokens with --tokenizer (default: the model's), else characters.",
)
@click.option(
    "--repeats", type=click.FloatRange(0, 1), default=Limits().repeats, show_default=True, metavar="SHARE",
    help="Share of rows that may repeat an earlier one; 1: all, and a clean copy keeps them.",
)  # fmt: skip
@click.option("--tokenizer", type=click.Path(path_type=Path), metavar="DIR", help="Directory of a model or tokenizer.")
@click.option("--eval", "evaluation", multiple=True, metavar="FILE", help="Evaluation set: its prompts must not be in.")
@click.option("--write-clean", type=click.Path(path_type=Path), metavar="FILE",
              help="Write the good rows as JSON lines; FILE.dropped.jsonl accounts for every other row.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(0, 256), default=0, metavar="N",
              help="Processes; default: by size and cores. A clean copy is written by one.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs (schema grpo-sentinel/data-check).")
def data(
    files: tuple[str, ...], prompt: str, response: str, answer: str, reward: str, require: tuple[str, ...],
    reward_range: tuple[float, float] | None, max_length: int | None, repeats: float, tokenizer: Path | None,
    evaluation: tuple[str, ...], write_clean: Path | None, jobs: int, as_json: bool,
) -> int:  # fmt: skip
    """Check samples: fields, empty texts, lengths, characters that poison, duplicates, answers, rewards, leakage.

    FILE is JSONL, JSON, CSV or Parquet, also compressed, a folder, a glob, or - for standard input. Exit code 0:
    nothing was found, 1: faults, 2: usage.
    """
    low, high = in_order(reward_range)
    options = DataOptions(
        fields=Fields(prompt=prompt, response=response, answer=answer, reward=reward, required=require),
        limits=Limits(reward_low=low, reward_high=high, max_length=max_length, repeats=repeats),
        evaluation=evaluation,
        tokenizer=tokenizer, write_clean=write_clean, jobs=jobs,
    )  # fmt: skip
    with _bar(files, shown=not as_json and sys.stderr.isatty()) as progress:
        report = check_data(files, options, progress)
    return finish(report, as_json)


@contextlib.contextmanager
def _bar(files: tuple[str, ...], shown: bool) -> Iterator[Progress | None]:
    """A bar over the bytes of all files, on stderr, on a terminal only."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    sizes = {name: 0 if name == STDIN else Path(name).stat().st_size for name in expand(files)}
    columns: list[Any] = [
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}% {task.fields[rows]:,} rows"),
        TimeRemainingColumn(),
    ]
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=sum(sizes.values()) or None, rows=0)
        done: dict[str, int] = {}

        def advance(source: str, position: int, rows: int) -> None:
            done[source] = position
            bar.update(task, completed=sum(done.values()), rows=rows)

        yield advance
