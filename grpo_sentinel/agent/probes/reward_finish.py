"""Reward layer, on the host: from the copied score matrix to its signals, in Python floats."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from grpo_sentinel.agent.probes.pack import Harvest, Part
from grpo_sentinel.agent.probes.prompt_history import PromptHistory
from grpo_sentinel.agent.probes.reward_consistency import Repeats, mismatches, twins_of
from grpo_sentinel.agent.probes.reward_shape import Newest
from grpo_sentinel.stats import Comoments, Moments


class History:
    """What reward signals remember between steps: the run's largest combined reward, the newest batch's scores."""

    def __init__(self) -> None:
        self.ceiling = -math.inf
        self.newest = Newest()
        self.repeats = Repeats()
        self.prompts = PromptHistory()


@dataclass(frozen=True, slots=True)
class Meta:
    """How the vector of one generation batch is laid out: scores by row, weights unless known, lengths."""

    names: tuple[str, ...]
    weights: tuple[float, ...] | None  # None: they follow the scores in the vector
    rows: int
    group_size: int | None
    lengths: tuple[float, ...] | bool  # True: they end the vector; False: unknown
    history: History | None
    keys: tuple[str, ...] = ()  # digests of the completions; empty: unknown
    prompts: tuple[str, ...] = ()  # likewise
    sources: tuple[object, ...] = ()


def finish(parts: Sequence[Part]) -> Harvest:
    """Turn the scores of a step's generation batches into signals; several batches are judged together."""
    meta: Meta = parts[-1].meta
    cut = [_cut(part) for part in parts if part.meta.names == meta.names]
    columns = [[score for scores, _, _ in cut for score in scores[index]] for index in range(len(meta.names))]
    combined = [reward for _, rewards, _ in cut for reward in rewards]
    values = _functions(dict(zip(meta.names, columns, strict=True)))
    values.update(_combined(combined, meta.history))
    size = meta.group_size
    if size and size > 1 and len(combined) % size == 0:
        values.update(_groups([combined[start : start + size] for start in range(0, len(combined), size)]))
    if all(part.meta.lengths is not False for part in parts):
        values.update(_correlation(combined, [length for _, _, lengths in cut for length in lengths]))
    values.update(_consistency(parts, cut))
    if meta.history is not None:
        values.update(meta.history.prompts.values())
    bad: tuple[int, ...] = ()
    if values["reward.nonfinite"]:
        bad = tuple(row for row, reward in enumerate(combined) if not math.isfinite(reward))[:16]
    return Harvest(values, samples={"reward.nonfinite": bad} if bad else {})


def _consistency(
    parts: Sequence[Part], cut: Sequence[tuple[list[list[float]], list[float], Sequence[float]]]
) -> dict[str, float]:
    """Ask of every batch of known completions whether its scores are theirs; remember its prompts and sources."""
    out: dict[str, float] = {}
    same = [part.meta for part in parts if part.meta.names == parts[-1].meta.names]
    for meta, (columns, rewards, _) in zip(same, cut, strict=True):
        named = dict(zip(meta.names, columns, strict=True))
        twins = twins_of(meta.keys, meta.group_size) if meta.group_size else ()
        for name, scores in named.items() if twins else ():
            key = f"reward.func_twin_mismatch[{name}]"
            out[key] = out.get(key, 0.0) + mismatches(scores, twins)
        if meta.history is not None:
            meta.history.prompts.add(meta.prompts, rewards)
            meta.history.prompts.add_sources(meta.sources)
        if meta.history is not None and meta.keys:
            for key, flag in meta.history.repeats.look(named, meta.keys, meta.group_size).items():
                out[key] = max(flag, out.get(key, 0.0))
    return out


def _cut(part: Part) -> tuple[list[list[float]], list[float], Sequence[float]]:
    """Cut one vector into the scores of each function, the combined reward of each row, and the lengths."""
    meta: Meta = part.meta
    numbers: list[float] = part.values.tolist()
    width, size = len(meta.names), len(meta.names) * meta.rows
    weights = meta.weights if meta.weights is not None else numbers[size : size + width]
    rows = [numbers[start : start + width] for start in range(0, size, width)] if width else [[]] * meta.rows
    lengths = meta.lengths if isinstance(meta.lengths, tuple) else numbers[-meta.rows :] if meta.rows else []
    columns = [numbers[index:size:width] for index in range(width)]
    return columns, [_weighted(row, weights) for row in rows], lengths


def _weighted(scores: Sequence[float], weights: Sequence[float]) -> float:
    """Add up what is not None (NaN); a weight of 0 times an infinite score stays visible as what it is: NaN."""
    total: float = sum(map(operator.mul, scores, weights))
    if scores and not math.isnan(total):
        return total
    known = [score * weight for score, weight in zip(scores, weights, strict=True) if not math.isnan(score)]
    return sum(known) if known else math.nan


def _functions(columns: Mapping[str, Sequence[float]]) -> dict[str, float]:
    out: dict[str, float] = {}
    variances: dict[str, float] = {}
    for name, scores in columns.items():
        moments = Moments.of(scores)
        out[f"reward.func_samples[{name}]"] = float(len(scores))
        out[f"reward.func_nonfinite[{name}]"] = moments.nonfinite
        out[f"reward.func_infinite[{name}]"] = float(sum(map(math.isinf, scores)))
        if moments.count:
            out[f"reward.func_mean[{name}]"] = moments.mean
            out[f"reward.func_min[{name}]"] = moments.low
            out[f"reward.func_max[{name}]"] = moments.high
        variance = moments.variance()
        if variance is not None:
            variances[name] = variance
            out[f"reward.func_std[{name}]"] = math.sqrt(variance)
    total = sum(variances.values())
    if len(variances) > 1 and 0 < total < math.inf:  # one function alone has all of it
        out.update({f"reward.func_variance_share[{name}]": share / total for name, share in variances.items()})
    return out


def _combined(rewards: Sequence[float], history: History | None) -> dict[str, float]:
    moments = Moments.of(rewards)
    out = {"reward.nonfinite": moments.nonfinite}
    if not moments.count:
        return {**out, "reward.mean": math.nan} if rewards else out
    out.update({"reward.mean": moments.mean, "reward.min": moments.low, "reward.max": moments.high})
    std = moments.std()
    if std is not None:
        out["reward.std"] = std
    if history is not None:
        history.ceiling = max(history.ceiling, moments.high)
        out["reward.at_ceiling_ratio"] = rewards.count(history.ceiling) / moments.count
        history.newest.add(rewards)
        bimodality = history.newest.bimodality()
        if bimodality is not None:
            out["reward.bimodality"] = bimodality
    return out


def _groups(groups: Sequence[Sequence[float]]) -> dict[str, float]:
    """Judge the groups whose rewards are all finite; all-right and all-wrong need a batch that knows both."""
    whole = [moments for moments in map(Moments.of, groups) if not moments.nonfinite]
    if not whole:
        return {}
    low, high = min(group.low for group in whole), max(group.high for group in whole)
    flat = [group.low for group in whole if group.low == group.high]
    out = {
        "reward.group_std_mean": sum(group.std() or 0.0 for group in whole) / len(whole),
        "reward.zero_std_ratio": len(flat) / len(whole),
    }
    if len({reward for group in groups for reward in group}) == 2 and len(whole) == len(groups):
        rights = [sum(reward == high for reward in group) for group in groups]
        out["reward.learnability_index"] = sum(map(_learnability, rights, map(len, groups))) / len(groups)
    if high > low:
        out["reward.all_right_ratio"] = flat.count(high) / len(whole)
        out["reward.all_wrong_ratio"] = flat.count(low) / len(whole)
    return out


@lru_cache(maxsize=1024)
def _learnability(right: int, size: int) -> float:
    """Expected std of a group's rewards of 0 and 1 at success probability p = right / size (rlvr-audit)."""
    p = right / size
    shares = [math.comb(size, m) * p**m * (1 - p) ** (size - m) for m in range(size + 1)]
    return sum(share * math.sqrt(m / size * (1 - m / size)) for m, share in enumerate(shares))


def _correlation(rewards: Sequence[float], lengths: Sequence[float]) -> dict[str, float]:
    """Pearson correlation over rows with a finite reward; absent when either does not vary."""
    if not math.isfinite(sum(rewards)):
        pairs = [(reward, length) for reward, length in zip(rewards, lengths, strict=True) if math.isfinite(reward)]
        rewards, lengths = [reward for reward, _ in pairs], [length for _, length in pairs]
    if len(rewards) < 3:
        return {}
    scale = max(map(abs, rewards)) or 1.0  # squares of 1e200 would overflow
    xs, ys = [reward / scale for reward in rewards], lengths
    x, y = Moments.of(xs), Moments.of(ys)
    cross = math.fsum((a - x.mean) * (b - y.mean) for a, b in zip(xs, ys, strict=True))
    varies = x.low < x.high and y.low < y.high
    found = Comoments(x.count, x.mean, y.mean, x.m2, y.m2, cross).correlation() if varies else None
    return {} if found is None else {"reward.length_correlation": found}
