"""Groups of rewards: a row with a list of them, or rows of one prompt. One whose rewards are equal teaches nothing.

Advantages are differences within a group (GRPO: (r - mean) / std over the group's completions), so data can have
rewards of every height and no advantage at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from grpo_sentinel.preflight.data_repeats import MOST_REMEMBERED

_ENOUGH = 8  # groups, before that all of them are equal says something of the data
_MUCH = 0.5  # share of equal groups from which on it is told


@dataclass(slots=True)
class Groups:
    """Counts of groups so far, and of those without spread; of at most `MOST_REMEMBERED` prompts one reward each."""

    listed: int = 0  # groups that are one row
    listed_flat: int = 0
    _first: dict[int, float] = field(default_factory=dict)
    _flat: dict[int, bool] = field(default_factory=dict)  # of prompts with several rewards

    def add_list(self, rewards: Sequence[float]) -> None:
        """Take the rewards of a row that is a group; one alone is none."""
        if len(rewards) > 1:
            self.listed += 1
            self.listed_flat += _equal(min(rewards), max(rewards))

    def add_one(self, prompt: int, reward: float) -> None:
        """Take the reward of a row whose prompt has that hash."""
        first = self._first.get(prompt)
        if first is not None:
            self._flat[prompt] = self._flat.get(prompt, True) and _equal(first, reward)
        elif len(self._first) < MOST_REMEMBERED:
            self._first[prompt] = reward

    @property
    def count(self) -> int:
        """Groups of two rewards or more."""
        return self.listed + len(self._flat)

    @property
    def flat(self) -> int:
        """Those of them whose rewards are all equal."""
        return self.listed_flat + sum(self._flat.values())

    def fault(self) -> str:
        """Say that not one group has an advantage; "" where one has, or where hardly any prompt comes twice."""
        meant = self.listed or len(self._flat) * 2 >= len(self._first)
        return f"{self.count:,} of {self.count:,} groups" if meant and self.count == self.flat >= _ENOUGH else ""

    def note(self) -> str:
        """Give the share of groups without advantage where it is high, "" elsewhere."""
        if not self.flat or self.flat < _MUCH * self.count:
            return ""
        return (
            f"rewards are all equal in {self.flat:,} of {self.count:,} groups ({self.flat / self.count:.0%}): these "
            "have no advantage and teach nothing"
        )


def _equal(low: float, high: float) -> bool:
    return math.isclose(low, high, rel_tol=1e-9, abs_tol=1e-12)


__all__ = ["Groups"]
