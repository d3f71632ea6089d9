"""One pass over the records of a bundle: the series that are plotted, and what each layer shows on the walk backwards.

Every layer is asked the same four questions. A layer without a signal for one is "not watched", which is not "good".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from grpo_sentinel.catalog import SIGNALS, layer_of, split_name
from grpo_sentinel.records import Finding, Mode, StepRecord

LAYERS = ("optimizer", "gradient", "policy", "reward", "data")
"""From the symptom down to the cause."""

QUESTIONS = ("numbers", "shapes", "devices", "dtypes")
_WORDS = {"shapes": ("shape",), "devices": ("device",), "dtypes": ("dtype",)}
_COUNTS = ("nonfinite", "nan_", "inf_", "out_of_vocabulary", "overflow")
DEFAULT_PLOTS = (
    "reward.mean", "policy.loss", "policy.kl_k3_nats", "policy.entropy_nats", "gradient.norm_preclip",
    "optimizer.update_ratio", "optimizer.learning_rate", "memory.rss_bytes", "memory.cuda_allocated_bytes",
    "time.step_seconds",
)  # fmt: skip
MOST_PLOTS = 12

Point = tuple[int, float]


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to one question about one layer: first step and rank where it was wrong, 0 signals = not watched."""

    signals: int = 0
    step: int | None = None
    rank: int | None = None
    signal: str = ""


@dataclass(slots=True)
class Digest:
    """What the records of a bundle show; fed record by record, memory is that of the plotted series."""

    plotted: tuple[str, ...]
    records: int = 0
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)  # rank -> first and last step
    series: dict[str, dict[int, list[Point]]] = field(default_factory=dict)  # signal -> rank -> points
    _watched: dict[str, tuple[str, str]] = field(default_factory=dict)  # signal -> layer and question
    _wrong: dict[tuple[str, str], Answer] = field(default_factory=dict)

    def add(self, record: StepRecord) -> None:
        """Take one record in."""
        self.records += 1
        first, last = self.steps.get(record.rank, (record.step, record.step))
        self.steps[record.rank] = (min(first, record.step), max(last, record.step))
        if record.mode is not Mode.TRAIN:
            return
        for signal in self.plotted:
            if signal in record.values:
                points = self.series.setdefault(signal, {}).setdefault(record.rank, [])
                points.append((record.step, record.values[signal]))
        for name, value in record.values.items():
            place = _place_of(name)
            if place is None:
                continue
            if name not in self._watched:
                self._watched[name] = place.key
            if value - value != 0 or (place.counts_wrong and value > 0):  # NaN and infinities give NaN
                self._note(place.key, Answer(0, record.step, record.rank, name))

    def _note(self, key: tuple[str, str], wrong: Answer) -> None:
        known = self._wrong.get(key)
        if known is None or (known.step or 0) > (wrong.step or 0):
            self._wrong[key] = wrong

    def answer(self, layer: str, question: str) -> Answer:
        """Answer one question about one layer."""
        wrong = self._wrong.get((layer, question), Answer())
        watched = sum(key == (layer, question) for key in self._watched.values())
        return Answer(watched, wrong.step, wrong.rank, wrong.signal)


@dataclass(frozen=True, slots=True)
class _Place:
    """Which question a signal answers, and whether it counts something that must be zero."""

    key: tuple[str, str]
    counts_wrong: bool


@lru_cache(maxsize=10_000)
def _place_of(name: str) -> _Place | None:
    """Find what a signal answers: every number may be NaN, so the first question takes all that no other does."""
    layer = layer_of(name)
    if layer not in LAYERS:
        return None
    base, counts = split_name(name)[0], _counts_wrong(name)
    found = next((q for q, words in _WORDS.items() if counts and any(word in base for word in words)), "numbers")
    return _Place((layer, found), counts)


def _counts_wrong(name: str) -> bool:
    """Tell whether a signal counts something that must be zero."""
    base = split_name(name)[0]
    known = SIGNALS.get(base)
    if known is None or known.unit not in ("count", "flag"):
        return False
    words = (*_COUNTS, "shape_mismatch", "device_mismatch", "dtype_mismatch")  # one dtype of a model is a count of 1
    return any(word in base for word in words)


def plots_for(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Choose the signals to plot: those that findings name, then the usual ones."""
    named = [finding.signal for finding in findings if finding.signal]
    return tuple(dict.fromkeys([*named, *DEFAULT_PLOTS]))[:MOST_PLOTS]


__all__ = ["LAYERS", "QUESTIONS", "Answer", "Digest", "plots_for"]
