"""Reward layer: the raw scores of every reward function, before the trainer's nan-mean, and the groups inside them.

The score matrix is small (rows x functions), so it is copied whole and all mathematics is done on the host in float64.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from grpo_sentinel.agent.probes.model_state import observe_model
from grpo_sentinel.agent.probes.pack import Harvest, Pack, Part, vector

__all__ = ["CallMeter", "History", "finish", "observe", "observe_model"]


class History:
    """What reward signals remember between steps: the largest combined reward of the run so far."""

    def __init__(self) -> None:
        self.ceiling = -math.inf


class CallMeter:
    """Times the calls of reward functions and counts those that raised."""

    def __init__(self) -> None:
        self._slowest: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    @contextmanager
    def measure(self, func: str) -> Iterator[None]:
        """Wrap one call: `with meter.measure("accuracy"): ...`. An exception is counted and passes through."""
        self._failures.setdefault(func, 0)
        started = time.perf_counter()
        try:
            yield
        except BaseException:
            self._failures[func] += 1
            raise
        finally:
            self._slowest[func] = max(self._slowest.get(func, 0.0), time.perf_counter() - started)

    def harvest(self) -> dict[str, float]:
        """Give the slowest call of each function since the last harvest, and its failures since the start."""
        slowest, self._slowest = self._slowest, {}
        out = {f"reward.func_latency_seconds[{func}]": seconds for func, seconds in slowest.items()}
        out.update({f"reward.func_failures[{func}]": float(count) for func, count in self._failures.items()})
        return out


@dataclass(frozen=True, slots=True)
class _Meta:
    names: tuple[str, ...]
    weights: tuple[float, ...] | None  # None: they follow the scores in the vector
    rows: int
    group_size: int | None
    lengths: bool
    history: History | None


def observe(
    rewards_BF: torch.Tensor,
    func_names: Sequence[str],
    *,
    weights: Sequence[float] | torch.Tensor | None = None,
    group_size: int | None = None,
    completion_lengths_B: torch.Tensor | Sequence[int] | None = None,
    history: History | None = None,
) -> Pack:
    """Read the raw scores of one generation batch; NaN stands for None. Groups are adjacent rows of `group_size`.

    The combined reward is the weighted sum over functions, NaN where every function is NaN (a function that returned
    None for a row is left out of that row, as TRL does). `history` is updated at harvest. Functions of one name are
    told apart by a number (`length`, `length#2`). Raises ValueError when names do not fit the matrix. Never
    synchronises.
    """
    scores_BF = rewards_BF.detach()
    scores_BF = scores_BF.unsqueeze(1) if scores_BF.dim() == 1 else scores_BF
    if scores_BF.dim() != 2 or scores_BF.shape[1] != len(func_names):
        raise ValueError(
            f"rewards of shape {tuple(rewards_BF.shape)} do not fit the {len(func_names)} names {list(func_names)}"
        )
    pieces = [scores_BF]
    known: tuple[float, ...] | None = (1.0,) * len(func_names)
    if isinstance(weights, torch.Tensor):
        known = None
        pieces.append(weights)
    elif weights is not None:
        known = tuple(float(weight) for weight in weights)
    lengths = completion_lengths_B is not None and len(completion_lengths_B) == len(scores_BF)
    if lengths:
        pieces.append(torch.as_tensor(completion_lengths_B))
    meta = _Meta(_distinct(func_names), known, len(scores_BF), group_size, lengths, history)
    return Pack("reward", vector(pieces), finish, meta)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    out: list[str] = []
    for name in names:
        repeats = sum(other == name or other.startswith(f"{name}#") for other in out)
        out.append(f"{name}#{repeats + 1}" if repeats else name)
    return tuple(out)


def finish(parts: Sequence[Part]) -> Harvest:
    """Turn the scores of a step's generation batches into signals; several batches are judged together."""
    meta: _Meta = parts[-1].meta
    cut = [_cut(part) for part in parts if part.meta.names == meta.names]
    scores_BF = torch.cat([scores for scores, _, _ in cut])
    combined_B = torch.cat([combined for _, combined, _ in cut])
    values = _functions(scores_BF, meta.names)
    values.update(_combined(combined_B, meta.history))
    if meta.group_size and meta.group_size > 1 and len(combined_B) % meta.group_size == 0:
        values.update(_groups(combined_B.view(-1, meta.group_size)))
    if all(part.meta.lengths for part in parts):
        values.update(_correlation(combined_B, torch.cat([lengths for _, _, lengths in cut])))
    bad = (~combined_B.isfinite()).nonzero().flatten()[:16].tolist()
    return Harvest(values, samples={"reward.nonfinite": tuple(bad)} if bad else {})


def _cut(part: Part) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cut one vector into scores, combined reward and lengths."""
    meta: _Meta = part.meta
    width = len(meta.names)
    sizes = [meta.rows * width, 0 if meta.weights is not None else width, meta.rows if meta.lengths else 0]
    scores, weights, lengths = part.values.split(sizes)
    scores_BF = scores.view(meta.rows, width)
    if meta.weights is not None:
        weights = torch.tensor(meta.weights, dtype=torch.float64)
    weighted_BF = scores_BF * weights
    # Only None (NaN) is left out; a weight of 0 times an infinite score stays visible as what it is: NaN.
    combined_B = torch.where(scores_BF.isnan(), 0.0, weighted_BF).sum(1)
    combined_B[scores_BF.isnan().all(1)] = math.nan
    return scores_BF, combined_B, lengths


def _functions(scores_BF: torch.Tensor, names: Sequence[str]) -> dict[str, float]:
    out: dict[str, float] = {}
    variances: dict[str, float] = {}
    for name, scores in zip(names, scores_BF.unbind(1), strict=True):
        finite = scores[scores.isfinite()]
        out[f"reward.func_samples[{name}]"] = float(len(scores))
        out[f"reward.func_nonfinite[{name}]"] = float(len(scores) - len(finite))
        out[f"reward.func_infinite[{name}]"] = float(scores.isinf().sum())
        if len(finite):
            out[f"reward.func_mean[{name}]"] = float(finite.mean())
            out[f"reward.func_min[{name}]"] = float(finite.min())
            out[f"reward.func_max[{name}]"] = float(finite.max())
        if len(finite) > 1:
            variances[name] = float(finite.var())
            out[f"reward.func_std[{name}]"] = math.sqrt(variances[name])
    total = sum(variances.values())
    if 0 < total < math.inf:
        out.update({f"reward.func_variance_share[{name}]": share / total for name, share in variances.items()})
    return out


def _combined(combined_B: torch.Tensor, history: History | None) -> dict[str, float]:
    finite = combined_B[combined_B.isfinite()]
    out = {"reward.nonfinite": float(len(combined_B) - len(finite))}
    if not len(finite):
        return out
    out["reward.mean"] = float(finite.mean())
    out["reward.min"] = float(finite.min())
    out["reward.max"] = float(finite.max())
    if len(finite) > 1:
        out["reward.std"] = float(finite.std())
    if history is not None:
        history.ceiling = max(history.ceiling, out["reward.max"])
        out["reward.at_ceiling_ratio"] = float((finite >= history.ceiling).double().mean())
    return out


def _groups(reward_GN: torch.Tensor) -> dict[str, float]:
    """Judge the groups whose rewards are all finite; all-right and all-wrong need a batch that knows both."""
    whole = reward_GN[reward_GN.isfinite().all(1)]
    if not len(whole):
        return {}
    low, high = float(whole.min()), float(whole.max())
    flat = whole.amax(1) == whole.amin(1)
    out = {
        "reward.group_std_mean": float(whole.std(1).mean()),
        "reward.zero_std_ratio": float(flat.double().mean()),
    }
    if high > low:
        level = whole[:, 0]
        out["reward.all_right_ratio"] = float((flat & (level == high)).double().mean())
        out["reward.all_wrong_ratio"] = float((flat & (level == low)).double().mean())
    return out


def _correlation(reward_B: torch.Tensor, length_B: torch.Tensor) -> dict[str, float]:
    """Pearson correlation over rows with a finite reward; absent when either does not vary."""
    keep = reward_B.isfinite() & length_B.isfinite()
    x, y = reward_B[keep], length_B[keep]
    if len(x) < 3 or bool(x.min() == x.max()) or bool(y.min() == y.max()):
        return {}
    x, y = x - x.mean(), y - y.mean()
    x, y = x / x.abs().max(), y / y.abs().max()  # squares of 1e200 would overflow
    size = float(x.square().sum().sqrt() * y.square().sum().sqrt())
    return {"reward.length_correlation": max(-1.0, min(1.0, float((x * y).sum()) / size))} if size else {}
