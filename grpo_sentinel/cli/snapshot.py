"""`grpo-sentinel snapshot`: proof of a fix (S40): one step as it was when it was healthy, and as it is now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from grpo_sentinel.cli.check_policy import DTYPES
from grpo_sentinel.cli.check_printing import finish
from grpo_sentinel.preflight import snapshot as snapshots
from grpo_sentinel.preflight.data_shapes import Fields
from grpo_sentinel.preflight.snapshot_compare import compare as compare_snapshots
from grpo_sentinel.preflight.snapshot_take import SnapshotOptions, from_bundle, take

_PATH = click.Path(path_type=Path)


@click.group()
def snapshot() -> None:
    """Save one step with fixed seed and samples; compare it with another."""


@snapshot.command(short_help="Save one step as a file.")
@click.argument("out", metavar="OUT.json", type=_PATH)
@click.option("--from", "source", default="", metavar="MODEL_DIR|MODULE:FUNCTION",
              help="A model, or a function that builds a trainer, a loop's step, or (model, tokenizer).")  # fmt: skip
@click.option("--bundle", type=_PATH, metavar="INCIDENT", help="A recorded incident instead: folder or .tar.gz.")
@click.option("--step", type=int, metavar="N", help="Step of the bundle; default: the last before the onset.")
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True, help="Rank of the bundle.")
@click.option("--like", type=_PATH, metavar="FIRST.json", help="Take the very samples and seed of this one.")
@click.option("--data", multiple=True, metavar="FILE", help="Samples: their responses, else greedy completions.")
@click.option("--prompt", default="", metavar="FIELD", help="Field of the prompt.")
@click.option("--response", default="", metavar="FIELD", help="Field of the response.")
@click.option("--reward", default="", metavar="MODULE:FUNCTION|DIR", help="Score the completions with it.")
@click.option("--samples", type=click.IntRange(1, 256), default=8, show_default=True, help="How many.")
@click.option("--max-tokens", type=click.IntRange(1, 4096), default=32, show_default=True, help="Of a completion.")
@click.option("--dtype", type=DTYPES, default="float32", show_default=True, help="Dtype of a model that is loaded.")
@click.option("--device", default="", help="cpu, cuda, cuda:1; default: a GPU where there is one.")
@click.option("--seed", type=int, default=0, show_default=True, help="Set before building and before the step.")
def save(
    out: Path, source: str, bundle: Path | None, step: int | None, rank: int, like: Path | None, data: tuple[str, ...],
    prompt: str, response: str, reward: str, samples: int, max_tokens: int, dtype: str, device: str, seed: int,
) -> int:  # fmt: skip
    """Save one step: loss, rewards, log-probs, gradient and activation norm and digest of the weights of each layer.

    Nothing is updated. Exit code 0, 2: usage.
    """
    if bool(source) == (bundle is not None):
        raise click.UsageError("give --from MODEL_DIR|MODULE:FUNCTION, or --bundle INCIDENT")
    if bundle is not None:
        taken = from_bundle(bundle, step, rank)
    else:
        options = SnapshotOptions(
            data=data, fields=Fields(prompt=prompt, response=response), reward=reward, samples=samples,
            max_tokens=max_tokens, dtype=dtype, device=device, seed=seed,
        )  # fmt: skip
        if like is not None:
            first = snapshots.load(like)
            options = replace(options, like=first, seed=first.seed)
        taken = take(source, options)
    snapshots.save(taken, out)
    loss = "not known" if taken.loss is None else f"{taken.loss:.6g}"
    click.echo(
        f"{out}: {taken.kind}, {taken.samples.count} samples, loss {loss}, {len(taken.layers)} layers, {taken.dtype}"
    )
    if taken.attached:
        click.echo(f"  an autograd graph is kept that no backward needs: {', '.join(taken.attached)}")
    return 0


@snapshot.command()
@click.argument("before", metavar="BEFORE.json", type=_PATH)
@click.argument("after", metavar="AFTER.json", type=_PATH)
@click.option("--tolerance", type=float, metavar="X", help="Instead of the one of the coarser dtype.")
@click.option("--other-samples", is_flag=True, help="Compare although they were made on other samples.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs (schema grpo-sentinel/snapshot-check).")
def compare(before: Path, after: Path, tolerance: float | None, other_samples: bool, as_json: bool) -> int:
    """Compare two snapshots; the first difference is named by layer.

    Exit code 0: the same within the tolerance, 1: they differ or cannot be compared, 2: usage.
    """
    pair = snapshots.load(before), snapshots.load(after)
    return finish(compare_snapshots(*pair, tolerance, other_samples=other_samples), as_json)
