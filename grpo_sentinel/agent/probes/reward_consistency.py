"""Reward layer, on the host: do scores belong to the completions that they came with?

    twins      the same completion twice in one group (same prompt, same reference answer): one grader, one score
    repeated   every sample of a batch has the score that the sample in its place had in the batch before

Both are facts about a deterministic grader, whatever it measures: scores that arrive a batch late, belong to other
rows, or come from dice are told by them although mean, spread and advantages look as ever.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

_SAME = 0.01  # difference of two scores, as a share of the function's spread, that batching and rounding may make
_BITS = 40.0  # information in the scores inside groups below which chance may repeat them
_OTHERS = 0.5  # share of completions that must differ from those of the batch before


def twins_of(keys: Sequence[str], group_size: int) -> tuple[tuple[int, int], ...]:
    """Give (first, later) of every row whose completion has come before in its group of adjacent rows."""
    out = []
    for start in range(0, len(keys), group_size):
        first: dict[str, int] = {}
        for row in range(start, min(start + group_size, len(keys))):
            known = first.setdefault(keys[row], row)
            if known != row:
                out.append((known, row))
    return tuple(out)


def mismatches(scores: Sequence[float], twins: Sequence[tuple[int, int]]) -> float:
    """Count later twins whose finite score differs from the first one's by more than 1 % of the scores' range."""
    finite = [score for score in scores if math.isfinite(score)]
    allowed = _SAME * (max(finite) - min(finite)) if finite else 0.0
    gaps = (abs(scores[later] - scores[first]) for first, later in twins)
    return float(sum(gap > allowed and math.isfinite(gap) for gap in gaps))


class Repeats:
    """Remembers the scores of the newest batch, and digests of what they were given for."""

    def __init__(self) -> None:
        self._keys: tuple[str, ...] = ()
        self._columns: dict[str, tuple[float, ...]] = {}

    def look(
        self, columns: Mapping[str, Sequence[float]], keys: Sequence[str], group_size: int | None
    ) -> dict[str, float]:
        """Give `reward.func_repeated[func]` where chance cannot repeat the scores, and other completions got them.

        What differs between groups only may follow from the prompts, and those may be the same as before.
        """
        before, known = self._keys, self._columns
        self._keys, self._columns = tuple(keys), {name: tuple(scores) for name, scores in columns.items()}
        if len(before) != len(keys) or not keys:
            return {}
        others = sum(a != b for a, b in zip(before, keys, strict=True))
        if others < _OTHERS * len(keys):
            return {}
        size = group_size or len(keys)
        return {
            f"reward.func_repeated[{name}]": float(scores == known.get(name))
            for name, scores in self._columns.items()
            if sum(_bits(scores[at : at + size]) for at in range(0, len(scores), size)) > _BITS
        }


def _bits(scores: Sequence[float]) -> float:
    """Information in the scores, by how often each value occurs: sum of -log2(share of its value)."""
    counts = Counter(scores)
    return -sum(count * math.log2(count / len(scores)) for count in counts.values())
