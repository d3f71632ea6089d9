"""Do two engines give the same log-probs? Another dtype or attention of the same weights, or a file of another engine.

A line of FILE.jsonl: {"prompt_ids": [...], "completion_ids": [...], "logprobs": [...]}, natural logarithm, one
number for each completion token, of the distribution that was sampled from at temperature 1.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeGuard

import torch

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.data_sources import read_rows
from grpo_sentinel.preflight.findings import Findings
from grpo_sentinel.preflight.live.loading import DTYPES, Loaded, load_policy
from grpo_sentinel.preflight.live.rollout import Batch, lay_out
from grpo_sentinel.preflight.live.scoring import Scores, k3, masked_mean, own_error, score
from grpo_sentinel.preflight.policy import PolicyOptions
from grpo_sentinel.preflight.reward_target import Sample

_LEAST_CORRELATION = 0.95
_MOST_ROWS = 256


def compare_engine(
    found: Findings, policy: Loaded, batch: Batch, own: Scores, second: str, options: PolicyOptions
) -> None:
    """Compare with the second engine and judge the gap. Raises `SentinelError` when it cannot be had."""
    path = Path(second).expanduser()
    if path.is_file():
        batch, other = _from_file(policy, path)
        own = score(policy, batch)
        _engine_entropy(found, batch, own, other, second)
    else:
        other = _again(policy, batch, second, options)
    _judge(found, second, batch.completion_BC.cpu(), own.logp64_BC, other, options.max_gap_nats)


def _again(policy: Loaded, batch: Batch, second: str, options: PolicyOptions) -> torch.Tensor:
    if policy.directory is None:
        raise SentinelError(f"--second {second}: a model that a function built cannot be loaded a second time; "
                            "give a directory, or a file of log-probs")  # fmt: skip
    if second not in DTYPES and "." in second:
        raise SentinelError(f"--second {second}: there is no such file; give a dtype, an attention or FILE.jsonl")
    dtype, attention = (second, options.attention) if second in DTYPES else (options.dtype, second)
    loaded = load_policy(str(policy.directory), dtype=dtype, device=str(policy.device), attention=attention)
    return score(loaded, batch).logp64_BC


def _from_file(policy: Loaded, path: Path) -> tuple[Batch, torch.Tensor]:
    pairs: list[tuple[Sample, list[int], list[int]]] = []
    values: list[list[float]] = []
    for row in read_rows(str(path)):
        if len(pairs) == _MOST_ROWS:
            break
        if row.value is None:
            raise SentinelError(f"{path}:{row.number}: {row.error}")
        given: dict[str, Any] = row.value
        prompt, completion, logps = given.get("prompt_ids"), given.get("completion_ids"), given.get("logprobs")
        if not (_whole(prompt) and _whole(completion) and isinstance(logps, list) and len(logps) == len(completion)):
            raise SentinelError(
                f"{path}:{row.number}: expected prompt_ids, completion_ids and one of logprobs for each of them"
            )
        pairs.append((Sample(prompt=[("", "")], completion="", place=f"{path}:{row.number}"), prompt, completion))
        values.append([math.nan if one is None else float(one) for one in logps])
    if not pairs:
        raise SentinelError(f"{path}: there is not one row in it; give log-probs of the other engine")
    batch = lay_out(policy, pairs, 1)
    other = torch.zeros(len(values), batch.width, dtype=torch.float64)
    for row_number, row_values in enumerate(values):
        other[row_number, : len(row_values)] = torch.tensor(row_values, dtype=torch.float64)
    return batch, other


def _whole(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(type(one) is int and one >= 0 for one in value)


def _engine_entropy(found: Findings, batch: Batch, own: Scores, other: torch.Tensor, name: str) -> None:
    """What the engine sampled has, under the trainer's weights, an NLL near the trainer's entropy."""
    mask = batch.completion_BC.cpu()
    nll, entropy = masked_mean(-own.logp64_BC, mask), masked_mean(own.entropy64_BC, mask)
    error = own_error(own, mask)
    found.facts[f"samples of {name}"] = {"nll": nll, "entropy": entropy, "standard_error": error}
    if abs(nll - entropy) > 6 * error + 0.05:
        found.broken("samples-not-own", f"what {name} sampled has NLL {nll:.3f} under these weights, whose entropy is "
                     f"{entropy:.3f} nats (standard error {error:.3f})",
                     "the engine holds other weights, or samples with top_k, top_p or another temperature")  # fmt: skip


def _judge(
    found: Findings, name: str, mask: torch.Tensor, own: torch.Tensor, other: torch.Tensor, limit: float
) -> None:
    fine = mask & torch.isfinite(own) & torch.isfinite(other)
    lost = int((mask & ~fine).sum())
    gap = (other - own)[fine]
    if not gap.numel():
        found.broken("engines-differ", f"{name} has not one finite log-prob", "see its weights and dtype")
        return
    mean = float(gap.abs().mean())
    both = torch.stack([own[fine].exp(), other[fine].exp()])
    varies = gap.numel() > 2 and bool((both.std(1) > 0).all())
    correlation = float(torch.corrcoef(both)[0, 1]) if varies else None
    found.facts[f"engine {name}"] = {
        "tokens": int(gap.numel()), "mean_abs_gap": mean, "max_abs_gap": float(gap.abs().max()),
        "kl_k3": float(k3(own, other)[fine].mean()), "correlation": correlation, "non_finite": lost,
    }  # fmt: skip
    found.looked_at.append(f"log-probs of {name} on the same tokens")
    if lost:
        found.broken("engines-differ", f"{lost} log-probs of {name} are missing or not finite", "see its dtype", lost)
    if mean > limit or (correlation is not None and correlation < _LEAST_CORRELATION):
        close = "" if correlation is None else f", correlation of probabilities {correlation:.3f}"
        found.broken(
            "engines-differ", f"log-probs of {name} differ by {mean:.3g} nats on average (limit {limit:g}){close}",
            "same weights, dtype, template and positions in both; correct with importance weights if it must stay",
        )  # fmt: skip


__all__ = ["compare_engine"]
