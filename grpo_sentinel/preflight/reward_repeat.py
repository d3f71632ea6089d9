"""Does the same text get the same score: again, in another order, in other company, and by itself?

Every second text is a gold answer and the others are wrong ones, for what depends on the batch often shows only where
its scores differ (a mean over the batch that is subtracted). Place and size stay while the company changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from grpo_sentinel.preflight.findings import Findings
from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.reward_cases import with_typo
from grpo_sentinel.preflight.reward_target import Sample
from grpo_sentinel.preflight.reward_trial import Trial

Scores = list[float | None]
_SAME = 1e-9
_MODEL = "check padding side, padding token and attention mask; score each text by itself"
_REMEDIES = {
    "nondeterministic": ("fix the seed, switch dropout off, and keep no state between calls",) * 2,
    "order": ("score each text by itself: its place in the batch must not count", _MODEL),
    "company": ("score each text by itself, without a mean, rank or spread over the batch: the trainer compares the "
                "completions of a prompt itself. Right only where the reward is meant to compare them", _MODEL),
    "batch-size": ("score each text by itself: how many there are must not count", _MODEL),
}  # fmt: skip
"""Of a function, and of a model."""


def try_again(found: Findings, trial: Trial, gold: Sequence[Sample], wrong: Sequence[Sample], tolerance: float) -> str:
    """Try all ways of scoring once more; the code of the first that gives other scores, "" where none does."""
    others = _others(gold, wrong)
    mixed = [(gold if index % 2 == 0 else others)[index] for index in range(len(gold))]
    first = trial.score(mixed)

    def in_other_company() -> Scores:
        right, other = trial.score(gold), trial.score(others)
        return [(right if index % 2 == 0 else other)[index] for index in range(len(gold))]

    tries: tuple[tuple[str, str, Callable[[], Scores]], ...] = (
        ("same input twice", "nondeterministic", lambda: trial.score(mixed)),
        ("another order", "order", lambda: trial.score(mixed[::-1])[::-1]),
        ("among other completions", "company", in_other_company),
        ("one at a time, without padding", "batch-size", lambda: [trial.score([one])[0] for one in mixed]),
    )
    for name, code, again in tries:
        limit = _SAME + (tolerance if code != "nondeterministic" else 0.0)
        moved = [
            f"{one.place}: {a} then {b}"
            for one, a, b in zip(mixed, first, again(), strict=True)
            if (a is None) != (b is None) or (a is not None and b is not None and not _same(a, b, limit))
        ]
        if moved:
            level = Level.DOUBTFUL if code == "company" else Level.BROKEN
            found.add(level, code, f"{name}: {len(moved)} of {len(mixed)} scores are others",
                      _REMEDIES[code][trial.scorer.is_model], len(moved), moved)  # fmt: skip
            return code  # what is not deterministic differs in every further try too
    found.looked_at.append("determinism: same input twice, another order, other company, one at a time")
    return ""


def _others(gold: Sequence[Sample], wrong: Sequence[Sample]) -> list[Sample]:
    """A wrong completion for each: a typo in its own, so that no text stands twice in a batch, else another's."""
    out = []
    for index, one in enumerate(gold):
        text = with_typo(one.completion, one.answer)
        if text is not None:
            out.append(replace(one, completion=text, place=f"{one.place}, typo in the answer"))
        else:
            out.append(wrong[index] if index < len(wrong) else one)
    return out


def _same(a: float, b: float, limit: float) -> bool:
    return a == b or abs(a - b) <= limit or (math.isnan(a) and math.isnan(b))


__all__ = ["try_again"]
