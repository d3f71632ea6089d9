"""A short fixed vector per rank, gathered with every n-th step vote: finds the odd rank out over all nodes.

Each rank sends what its last record said. All ranks then hold all rows and compute the same: per vital the median over
ranks, how far each rank is from it, and which one is furthest. Nothing grows with the run; a rank whose sidecar is gone
is still seen by the others.

    deviation = (value - median) / max(1.4826 x median of |value - median|, 0.05 x |median|, tiny)

The median is the lower one, so that of two ranks the larger value is the odd one; from four ranks on the spread is the
upper one: of four healthy ranks the lower is the smallest gap there is, and any rank seems far away beside it.

An infinite deviation: not finite among finite ones, or another parameter digest than most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

VITALS: dict[str, tuple[str, ...]] = {
    "before_collective": ("time.before_collective_seconds",),
    "loss": ("policy.loss",),
    "gradient_norm": ("gradient.norm_before_reduce", "gradient.norm_local"),
    "reward_mean": ("reward.mean",),
    "memory": ("memory.cuda_allocated_bytes", "memory.rss_bytes"),
    "digest": ("optimizer.parameter_digest",),
}
"""Vital -> the signals that it is read from, the first that is there."""

_TINY = 1e-12
_LEAST_SHARE = 0.05
_MANY = 4  # ranks


class Vitals:
    """Remembers the vitals of this rank's newest record: one number each."""

    def __init__(self) -> None:
        self._step = 0
        self._values: dict[str, float] = {}

    def note_generation(self, values: Mapping[str, float]) -> None:
        """Take what a generation record says; it holds until the next one."""
        self._take(values)

    def note_step(self, step: int, values: Mapping[str, float]) -> None:
        """Take what a step record says; what it does not say is unknown, not as before."""
        reward = self._values.get("reward_mean")
        self._step, self._values = step, {} if reward is None else {"reward_mean": reward}
        self._take(values)
        if values.get("policy.loss_nonfinite"):
            self._values["loss"] = math.inf

    def _take(self, values: Mapping[str, float]) -> None:
        for vital, names in VITALS.items():
            found = next((values[name] for name in names if name in values), None)
            if found is not None:
                self._values[vital] = math.inf if math.isnan(found) else found

    def row(self) -> list[float]:
        """Give the vector to send: step, then one number per vital, NaN for unknown."""
        return [float(self._step), *(self._values.get(vital, math.nan) for vital in VITALS)]


def compare(rows: Sequence[Sequence[float]], rank: int) -> dict[str, float]:
    """Judge all ranks' rows as seen by `rank`: own and largest deviation per vital, and who has the largest.

    A vital that fewer than two ranks know is absent. Of two ranks the one with the larger value is the odd one.
    """
    out: dict[str, float] = {}
    for column, vital in enumerate(VITALS, start=1):
        known = {index: row[column] for index, row in enumerate(rows) if not math.isnan(row[column])}
        if len(known) < 2 or (vital == "digest" and len({rows[index][0] for index in known}) > 1):
            continue  # digests of different steps differ by themselves
        deviations = _from_majority(known) if vital == "digest" else _from_median(known)
        odd = max(deviations, key=lambda index: abs(deviations[index]))
        if rank in deviations:
            out[f"sentinel.rank_deviation[{vital}]"] = deviations[rank]
        out[f"sentinel.odd_rank_deviation[{vital}]"] = deviations[odd]
        out[f"sentinel.odd_rank[{vital}]"] = float(odd) if deviations[odd] else -1.0
        out[f"sentinel.compared_ranks[{vital}]"] = float(len(known))
    return out


def _from_median(known: Mapping[int, float]) -> dict[int, float]:
    finite = [value for value in known.values() if math.isfinite(value)]
    if not finite:
        return dict.fromkeys(known, 0.0)
    middle = _median(finite)
    distances = [abs(value - middle) for value in finite]
    spread = 1.4826 * (_median(distances) if len(finite) < _MANY else sorted(distances)[len(finite) // 2])
    scale = max(spread, _LEAST_SHARE * abs(middle), _TINY)
    return {rank: (value - middle) / scale if math.isfinite(value) else math.inf for rank, value in known.items()}


def _from_majority(known: Mapping[int, float]) -> dict[int, float]:
    usual = Counter(known.values()).most_common(1)[0][0]
    return {rank: 0.0 if value == usual else math.inf for rank, value in known.items()}


def _median(values: Sequence[float]) -> float:
    """The lower median: of two values the smaller."""
    return sorted(values)[(len(values) - 1) // 2]
