"""`grpo-sentinel check gradients`: one backward of a checkpoint, looked at closely."""

from __future__ import annotations

import click

from grpo_sentinel.cli.check_numbers import SECONDS, Number
from grpo_sentinel.cli.check_policy import DTYPES
from grpo_sentinel.cli.check_printing import finish
from grpo_sentinel.preflight.apart import gradients_apart
from grpo_sentinel.preflight.data_shapes import Fields
from grpo_sentinel.preflight.gradients import GradientOptions


@click.command()
@click.argument("checkpoint", metavar="CHECKPOINT_DIR|MODULE:FUNCTION")
@click.option("--data", multiple=True, metavar="FILE", help="Samples: their responses, else completions of prompts.")
@click.option("--prompt", default="", metavar="FIELD", help="Field of the prompt.")
@click.option("--response", default="", metavar="FIELD", help="Field of the response.")
@click.option("--reward", default="", metavar="MODULE:FUNCTION|DIR", help="A reward, for real advantages.")
@click.option("--samples", type=click.IntRange(2, 1000), default=16, show_default=True, help="Completions in all.")
@click.option("--group-size", type=click.IntRange(2, 64), default=4, show_default=True, help="Completions a prompt.")
@click.option("--max-tokens", type=click.IntRange(1, 4096), default=64, show_default=True, help="Of a completion.")
@click.option("--dtype", type=DTYPES, default="float32", show_default=True, help="Dtype of the model.")
@click.option("--device", default="", help="cpu, cuda, cuda:1; default: a GPU where there is one.")
@click.option("--max-norm", type=Number(min=0), metavar="N", help="Limit of the gradient norm; none by default.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the sampling.")
@click.option("--timeout", type=SECONDS, default=45.0, show_default=True, metavar="SECONDS", help="For all of it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs (schema grpo-sentinel/gradients-check).")
def gradients(
    checkpoint: str, data: tuple[str, ...], prompt: str, response: str, reward: str, samples: int, group_size: int,
    max_tokens: int, dtype: str, device: str, max_norm: float | None, seed: int, timeout: float, as_json: bool,
) -> int:  # fmt: skip
    """Check gradients: distribution by layer, the sample and token that carry it, dtype headroom, optimizer state.

    One backward, and one for each sample; nothing is updated or written. The optimizer's file is not unpickled. Exit
    code 0: nothing was found, 1: faults, 2: usage.
    """
    options = GradientOptions(
        data=data, fields=Fields(prompt=prompt, response=response), reward=reward, dtype=dtype, device=device,
        samples=samples, group_size=group_size, max_tokens=max_tokens, max_norm=max_norm, seed=seed,
        timeout_seconds=timeout,
    )  # fmt: skip
    return finish(gradients_apart(checkpoint, options), as_json)
