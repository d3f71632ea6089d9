"""Reward and data layers, on the host: how often each prompt was solved over the run, and where samples come from.

Digests of prompts, counts and names of sources are kept, never a text; memory is bounded.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence

_PROMPTS = 2048  # the least recently seen is forgotten first; a look at all of them takes a quarter of a millisecond
_ENOUGH = 32  # prompts seen in two batches or more
_NEVER, _ALWAYS = 0.05, 0.95
_SAMPLES = 500  # of which sources are counted


class PromptHistory:
    """Success rates of prompts, where rewards take two values; shares of sources among the newest samples."""

    def __init__(self) -> None:
        self._levels: set[float] = set()
        self._tallies: OrderedDict[str, list[float]] = OrderedDict()  # digest -> batches, samples, sum of rewards
        self._sources: deque[str] = deque(maxlen=_SAMPLES)

    def add(self, prompts: Sequence[str], rewards: Sequence[float]) -> None:
        """Take a generation batch: digest and combined reward of each row; what is not finite is left out."""
        if not prompts:
            return
        if len(self._levels) <= 2:  # more than two values have no success rate, now and for the rest of the run
            self._levels.update(filter(math.isfinite, rewards))
        if len(self._levels) > 2 or len(prompts) != len(rewards):
            self._tallies.clear()
            return
        seen = set()
        for prompt, reward in zip(prompts, rewards, strict=True):
            if not math.isfinite(reward):
                continue
            tally = self._tallies.setdefault(prompt, [0.0, 0.0, 0.0])
            tally[0] += prompt not in seen
            tally[1] += 1
            tally[2] += reward
            seen.add(prompt)
            self._tallies.move_to_end(prompt)
        while len(self._tallies) > _PROMPTS:
            self._tallies.popitem(last=False)

    def add_sources(self, sources: Sequence[object]) -> None:
        """Take the source of each row of one generation batch; None is left out."""
        self._sources.extend(str(source) for source in sources if source is not None)

    def values(self) -> dict[str, float]:
        """Give the signals; what is not known is absent."""
        out: dict[str, float] = {}
        if len(self._levels) == 2:
            low, high = min(self._levels), max(self._levels)
            often = [(total / n - low) / (high - low) for batches, n, total in self._tallies.values() if batches > 1]
            if len(often) >= _ENOUGH:
                out["reward.endpoint_prompt_ratio"] = sum(not _NEVER <= p <= _ALWAYS for p in often) / len(often)
        if self._sources:
            counts = Counter(self._sources).values()
            out["data.sources"] = float(len(counts))
            out["data.source_imbalance"] = max(counts) / min(counts)
        return out
