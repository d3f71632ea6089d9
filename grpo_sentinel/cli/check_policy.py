"""`grpo-sentinel check policy`: does one step of this policy give numbers that can be trained on?"""

from __future__ import annotations

import click

from grpo_sentinel.cli.check_numbers import SECONDS, Number
from grpo_sentinel.cli.check_printing import finish
from grpo_sentinel.preflight.apart import policy_apart
from grpo_sentinel.preflight.data_shapes import Fields
from grpo_sentinel.preflight.policy import PolicyOptions

DTYPES = click.Choice(["float32", "bfloat16", "float16", "float64"])


@click.command()
@click.argument("model", metavar="MODEL_DIR|MODULE:FUNCTION")
@click.option("--reference", default="", metavar="DIR", help="The reference model: KL, tokenizer, chat template.")
@click.option("--reward-model", default="", metavar="DIR", help="The reward model: scores, tokenizer, chat template.")
@click.option("--reward", default="", metavar="MODULE:FUNCTION", help="A reward function instead.")
@click.option("--data", multiple=True, metavar="FILE", help="Prompts to try it with; as in check data.")
@click.option("--prompt", default="", metavar="FIELD", help="Field of the prompt.")
@click.option("--answer", default="", metavar="FIELD", help="Field of the answer.")
@click.option("--second", multiple=True, metavar="ENGINE",
              help="Compare log-probs with: a dtype, eager or sdpa, or FILE.jsonl of another engine.")  # fmt: skip
@click.option("--samples", type=click.IntRange(2, 10_000), default=100, show_default=True, help="Completions in all.")
@click.option("--group-size", type=click.IntRange(2, 64), default=4, show_default=True, help="Completions a prompt.")
@click.option("--max-tokens", type=click.IntRange(1, 4096), default=32, show_default=True, help="Of a completion.")
@click.option("--dtype", type=DTYPES, default="float32", show_default=True, help="Dtype of policy and reference.")
@click.option("--device", default="", help="cpu, cuda, cuda:1; default: a GPU where there is one.")
@click.option("--attention", default="", metavar="NAME", help="eager, sdpa, flash_attention_2.")
@click.option("--beta", type=Number(min=0), default=0.04, show_default=True, help="Weight of the KL term in the step.")
@click.option("--trained/--untrained", default=None, help="The policy has (not) been updated since its reference.")
@click.option(
    "--max-gap", type=Number(min=0), default=0.05, show_default=True, help="Nats between engines, on average."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the sampling.")
@click.option("--timeout", type=SECONDS, default=45.0, show_default=True, metavar="SECONDS", help="For all of it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs (schema grpo-sentinel/policy-check).")
def policy(
    model: str, reference: str, reward_model: str, reward: str, data: tuple[str, ...], prompt: str, answer: str,
    second: tuple[str, ...], samples: int, group_size: int, max_tokens: int, dtype: str, device: str, attention: str,
    beta: float, trained: bool | None, max_gap: float, seed: int, timeout: float, as_json: bool,
) -> int:  # fmt: skip
    """Check a policy on one step: terms of the loss, KL and entropy against float64, padding, underflow, agreement.

    It samples from the policy and runs one forward and backward; nothing is updated or written. Exit code 0: nothing
    was found, 1: faults, 2: usage.
    """
    options = PolicyOptions(
        reference=reference, reward_model=reward_model, reward=reward, data=data,
        fields=Fields(prompt=prompt, answer=answer), second=second, dtype=dtype, device=device, attention=attention,
        samples=samples, group_size=group_size, max_tokens=max_tokens, beta=beta, trained=trained,
        max_gap_nats=max_gap, seed=seed, timeout_seconds=timeout,
    )  # fmt: skip
    return finish(policy_apart(model, options), as_json)
