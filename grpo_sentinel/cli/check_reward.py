"""`grpo-sentinel check reward`: is this reward function or model sane?"""

from __future__ import annotations

import click

from grpo_sentinel.cli.check_numbers import SECONDS, Number, in_order
from grpo_sentinel.cli.check_printing import finish
from grpo_sentinel.preflight.apart import reward_apart
from grpo_sentinel.preflight.data_shapes import Fields
from grpo_sentinel.preflight.reward import RewardOptions


@click.command()
@click.argument("target", metavar="MODULE:FUNCTION|MODEL_DIR")
@click.option("--data", multiple=True, required=True, metavar="FILE", help="Samples to try it with; as in check data.")
@click.option("--samples", type=click.IntRange(2, 1000), default=20, show_default=True, help="How many of them.")
@click.option("--prompt", default="", metavar="FIELD", help="Field of the prompt.")
@click.option("--response", default="", metavar="FIELD", help="Field of the gold response; else the answer is used.")
@click.option("--answer", default="", metavar="FIELD", help="Field of the answer.")
@click.option(
    "--template", default="{answer}", metavar="TEXT", help="A gold completion, with {answer} where the answer stands."
)
@click.option("--reward-range", nargs=2, type=float, metavar="LOW HIGH", help="Range of its scores.")
@click.option("--max-length", type=click.IntRange(16), default=2048, show_default=True, help="Limit in characters.")
@click.option(
    "--max-std", type=Number(min=0), default=0.5, show_default=True, help="How far a perturbation may move scores."
)
@click.option(
    "--min-rank-correlation", type=Number(-1, 1), default=0.7, show_default=True, help="Least Spearman correlation."
)
@click.option("--timeout", type=SECONDS, default=45.0, show_default=True, metavar="SECONDS", help="For all of it.")
@click.option("--perturbations", default="", metavar="MODULE", help="A module (or file.py) with more PERTURBATIONS.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs (schema grpo-sentinel/reward-check).")
def reward(
    target: str, data: tuple[str, ...], samples: int, prompt: str, response: str, answer: str, template: str,
    reward_range: tuple[float, float] | None, max_length: int, max_std: float, min_rank_correlation: float,
    timeout: float, perturbations: str, as_json: bool,
) -> int:  # fmt: skip
    """Check a reward: finite scores, determinism, canaries that must not win, perturbations, length, model state.

    It runs the code that is named, as the trainer would. Exit code 0: nothing was found, 1: faults, 2: usage.
    """
    low, high = in_order(reward_range)
    options = RewardOptions(
        fields=Fields(prompt=prompt, response=response, answer=answer), samples=samples, template=template, low=low,
        high=high, max_std=max_std, min_rank_correlation=min_rank_correlation, max_length=max_length,
        timeout_seconds=timeout, perturbations=perturbations,
    )  # fmt: skip
    return finish(reward_apart(target, data, options), as_json)
