"""The odd rank out that the ranks of all nodes agree on, when it runs on another node than this one."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_sentinel.rules.expression import Expression
from grpo_sentinel.rules.view import FINE, Verdict, View, unable


@dataclass
class Elsewhere:
    """Bad when `signal` is further than `beyond` from 0 and the rank that `rank` names is none of this node's.

    For what every rank knows of all ranks: the sidecar of the rank's own node tells of it as well, if it is alive.
    """

    signal: Expression
    rank: Expression
    beyond: float

    def __post_init__(self) -> None:
        if not self.beyond > 0:
            raise ValueError(f"beyond must be above 0, got {self.beyond!r}")

    def update(self, view: View) -> Verdict:
        value, number = self.signal(view.get), self.rank(view.get)
        if value is None or number is None or value != value:
            return unable(self.signal.missing(view.get) if value is None else self.rank.missing(view.get))
        if number < 0 or abs(value) <= self.beyond or int(number) in view.ranks:
            return FINE
        limit = self.beyond if value > 0 else -self.beyond
        return Verdict(bad=True, clear=False, value=value, limit=limit, ranks=(int(number),), signal=self.signal.text)
