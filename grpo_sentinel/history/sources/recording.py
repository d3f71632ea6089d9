"""From rows of foreign names to step records with the catalogue's signals: what every reader of this folder ends in.

What a log prints is not what an agent measures, so four things are put right here: a value that is not finite becomes
the count that the rules look for, a NaN in a ratio of counts (KL without a reference, clipping of no token) is left
out, a learning rate that was rounded to 0.000 is unknown, not zero, and so is the score of one function of several that
is NaN now and then: it may have given None to a whole batch of another task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from grpo_sentinel.catalog import signal_of
from grpo_sentinel.history.logs.names import canonical
from grpo_sentinel.records import Kind, Mode, StepRecord

_COUNTS = {
    "policy.loss": "policy.loss_nonfinite",
    "policy.pg_loss": "policy.loss_nonfinite",
    "policy.entropy_nats": "policy.entropy_nonfinite",
    "reward.mean": "reward.nonfinite",
    "reward.func_mean": "reward.func_nonfinite",
}
_NAN_IS_NORMAL = ("policy.kl_", "policy.clip_", "policy.approx_kl", "reward.func_std")
_MEAN, _BAD = "reward.func_mean[", "reward.func_nonfinite["
_OTHER_TASKS = 20  # rows in a row in which one function of several may have had nothing to score
_ROUNDED = ("verl",)  # formats that print a learning rate of 1e-6 as 0.000


@lru_cache(maxsize=65536)
def signal_name(raw: str) -> str:
    """Give the catalogue's name of a metric; a name that it does not know stays as it is."""
    if signal_of(raw) is not None:
        return raw
    return canonical(raw) or raw


@lru_cache(maxsize=4096)
def count_name(signal: str) -> str:
    """Give the count of non-finite values that stands beside a signal, "" when there is none."""
    base, bracket, label = signal.partition("[")
    count = _COUNTS.get(base)
    return count + bracket + label if count else ""


def signals(raw: Mapping[str, float | None], form: str = "") -> dict[str, float]:
    """Translate one row; None means that every value was NaN. The first of two names of one signal wins."""
    out: dict[str, float] = {}
    counts: dict[str, float] = {}
    for name, given in raw.items():
        signal = signal_name(name)
        if signal in out:
            continue
        value = math.nan if given is None else given
        count = count_name(signal)
        bad = value - value != 0  # not finite
        if count:
            counts[count] = 1.0 if bad else counts.get(count, 0.0)
        if bad and value != value and signal.startswith(_NAN_IS_NORMAL):
            continue
        out[signal] = value
    for count, value in counts.items():
        out.setdefault(count, value)
    if form in _ROUNDED and out.get("optimizer.learning_rate") == 0.0:
        del out["optimizer.learning_rate"]
    return out


class Recorder:
    """Makes step records of rows: steps where a log shows none, time from the duration of steps."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._step = 0
        self._sequence = 0
        self._wall_ns = 0
        self._without: dict[str, int] = {}  # reward function -> rows since its last finite mean

    def record(
        self,
        values: Mapping[str, float],
        *,
        step: int | None,
        rank: int = 0,
        mode: Mode = Mode.TRAIN,
        wall_ns: int | None = None,
    ) -> StepRecord:
        """Make one record. A row without a step is the next one; without a time it comes a step's duration later."""
        values = self._scored(values)
        at = self._step + 1 if step is None else step
        if wall_ns is not None:
            self._wall_ns = wall_ns
        elif at != self._step:
            seconds = values.get("time.step_seconds", 1.0)
            self._wall_ns += round(min(seconds, 1e6) * 1e9) if seconds > 0 else 1_000_000_000
        self._step = at
        self._sequence += 1
        return StepRecord(
            run_id=self._run_id, rank=rank, sequence=self._sequence, step=at, kind=Kind.STEP, mode=mode, micro_batch=0,
            generation=0, monotonic_ns=self._wall_ns, wall_ns=self._wall_ns, values=values,
        )  # fmt: skip

    def _scored(self, values: Mapping[str, float]) -> Mapping[str, float]:
        """Leave out what a function that gave no score to a whole batch seems to say, while others gave one."""
        means = {name: value for name, value in values.items() if name.startswith(_MEAN)}
        bad = [name for name, value in means.items() if value != value]
        for name in means.keys() - set(bad):
            self._without[name] = 0
        if not bad or len(bad) == len(means):
            return values
        out = dict(values)
        for name in bad:
            self._without[name] = self._without.get(name, 0) + 1
            if self._without[name] < _OTHER_TASKS:
                del out[name]
                out.pop(_BAD + name[len(_MEAN) :], None)
        return out


__all__ = ["Recorder", "signal_name", "signals"]
