"""How much of a batch there is time for: by what the first of it takes, so that a check ends when it should."""

from __future__ import annotations

import time

from grpo_sentinel.preflight.live.loading import Loaded
from grpo_sentinel.preflight.live.rollout import Batch
from grpo_sentinel.preflight.live.scoring import Scores, score

SAMPLING_SHARE = 0.3  # of the time for a whole check; the rest is for what is done with the samples


def affordable(loaded: Loaded, batch: Batch, until: float, passes: float) -> tuple[Batch, Scores, float]:
    """As many groups as `passes` more forwards of each end by `until` (of time.monotonic()), at least one.

    Gives them, their scores, and the seconds that one forward of one sample takes. A backward counts as two forwards.
    """
    began = time.monotonic()
    first = batch.first(1)
    scores = score(loaded, first)
    each = max(time.monotonic() - began, 1e-9) / len(first.samples)
    groups = len(batch.samples) // batch.group_size
    fits = int((until - time.monotonic()) / (each * passes * batch.group_size))
    if min(groups, fits) <= 1:
        return first, scores, each
    batch = batch.first(min(groups, fits))
    return batch, score(loaded, batch), each


__all__ = ["SAMPLING_SHARE", "affordable"]
