"""What has been seen of the rows so far: counts, first examples, histograms; sums of what several processes saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from grpo_sentinel.preflight.data_answers import OneAnswer
from grpo_sentinel.preflight.data_faults import Tally
from grpo_sentinel.preflight.data_groups import Groups
from grpo_sentinel.preflight.data_lengths import Lengths, Rewards
from grpo_sentinel.preflight.data_shapes import Fields


@dataclass(slots=True)
class Totals:
    """Of all rows of all files; `rows` and `shapes` by file."""

    tally: Tally = field(default_factory=Tally)
    rewards: Rewards = field(default_factory=Rewards)
    groups: Groups = field(default_factory=Groups)
    answers: OneAnswer = field(default_factory=OneAnswer)
    lengths: Lengths = field(default_factory=Lengths)
    prompts: Lengths = field(default_factory=Lengths)
    rows: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, Fields] = field(default_factory=dict)
    total: int = 0
    bad: int = 0  # rows with a fault
    only_repeated: int = 0  # rows with no other fault than that they are there again

    def as_json(self) -> dict[str, Any]:
        """What a process of --jobs hands over; rewards and rows of one are only known together with those of others."""
        return {
            "tally": asdict(self.tally), "lengths": self.lengths.as_json(), "prompts": self.prompts.as_json(),
            "total": self.total, "bad": self.bad, "rows": self.rows, "answers": self.answers.as_json(),
            "groups": [self.groups.listed, self.groups.listed_flat],
        }  # fmt: skip

    def merge(self, done: Mapping[str, Any]) -> None:
        """Add what another process saw, as it handed it over."""
        self.tally.merge(Tally(**done["tally"]))
        self.lengths.merge(Lengths.from_json(done["lengths"]))
        self.prompts.merge(Lengths.from_json(done["prompts"]))
        self.total += done["total"]
        self.bad += done["bad"]
        for source, count in done["rows"].items():
            self.rows[source] = self.rows.get(source, 0) + count
        self.answers.merge(done["answers"])
        self.groups.listed += done["groups"][0]
        self.groups.listed_flat += done["groups"][1]


__all__ = ["Totals"]
