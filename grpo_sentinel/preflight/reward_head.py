"""Loss of a reward model's head on labelled samples (S20): under 0.1 is usual, over 0.5 it has not learned its task.

Pairs (`chosen`, `rejected`): mean of -ln sigmoid(r_chosen - r_rejected) (Bradley and Terry 1952; Ouyang et al. 2022);
a head that knows nothing stands at ln 2 = 0.693. Samples with a number as reward: mean squared difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from grpo_sentinel.preflight.data_shapes import joined, split_conversation, texts_of
from grpo_sentinel.preflight.reward_target import Sample
from grpo_sentinel.preflight.reward_trial import Trial, finite_pairs

USUAL, MOST = 0.1, 0.5
_FEWEST = 4  # labelled samples: of fewer no mean is told
_LABELS = ("reward", "score")


@dataclass(frozen=True, slots=True)
class HeadLoss:
    """Mean loss over `count` samples; `kind` is pairs or labels."""

    kind: str
    value: float
    count: int

    def says(self) -> str:
        """One sentence with its numbers."""
        what = "pairs of chosen and rejected" if self.kind == "pairs" else "labelled samples"
        limits = f"usual below {USUAL:g}, alarm above {MOST:g}"
        return f"the loss of its head is {self.value:.3g} on {self.count} {what} ({limits})"


def head_loss(trial: Trial, samples: Sequence[Sample]) -> HeadLoss | None:
    """Score labelled samples; None where the data holds neither pairs nor rewards. Raises `OutOfTime`."""
    pairs = [(one, other) for one in samples if (other := _rejected(one)) is not None]
    if len(pairs) >= _FEWEST:
        better, worse = trial.score([one for one, _ in pairs]), trial.score([other for _, other in pairs])
        losses = [_softplus(b - a) for a, b in finite_pairs(better, worse)]
        return HeadLoss("pairs", math.fsum(losses) / len(losses), len(losses)) if losses else None
    labelled = [(one, label) for one in samples if (label := _label(one)) is not None]
    if len(labelled) < _FEWEST:
        return None
    scores = trial.score([one for one, _ in labelled])
    squares = [(a - b) ** 2 for a, b in finite_pairs(scores, [label for _, label in labelled])]
    return HeadLoss("labels", math.fsum(squares) / len(squares), len(squares)) if squares else None


def _softplus(x: float) -> float:
    """ln(1 + e^x) without overflow."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _rejected(sample: Sample) -> Sample | None:
    if "chosen" not in sample.columns or "rejected" not in sample.columns:
        return None
    chosen, rejected = (_answer(sample.columns[name]) for name in ("chosen", "rejected"))
    if not rejected or chosen != sample.completion:
        return None
    return replace(sample, completion=rejected, place=f"{sample.place}, rejected")


def _answer(value: object) -> str:
    """The text of a response; of a whole conversation its last message."""
    messages, wrong = texts_of(value)
    if wrong:
        return ""
    before, last = split_conversation(messages)
    return joined(last) if before and last else joined(messages) if messages else ""


def _label(sample: Sample) -> float | None:
    value = next((sample.columns[name] for name in _LABELS if name in sample.columns), None)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


__all__ = ["MOST", "USUAL", "HeadLoss", "head_loss"]
