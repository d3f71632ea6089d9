"""Settings that ranks were given: what must be the same on all of them, by the events in which they told it."""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import dataclass
from typing import Any

from grpo_sentinel.rules.view import FINE, Verdict, View


@dataclass
class Settings:
    """Bad when ranks of this node told unequal values of one of `keys` in their `config` events.

    Names the minority, and all ranks where there is none. A key that a rank has told less often than another is not
    compared: its next event may be on its way. Constant size: one value of every key and rank.
    """

    keys: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.keys:
            raise ValueError("settings needs at least one key")
        self._told: dict[str, dict[int, tuple[int, Any]]] = {key: {} for key in self.keys}  # times told, newest value

    def update(self, view: View) -> Verdict:
        if view.event_kind != "config" or view.rank is None:
            return FINE
        for key, told in self._told.items():
            value = view.event.get(key)
            if isinstance(value, str | int | float):
                told[view.rank] = (told.get(view.rank, (0, None))[0] + 1, value)
        for key, told in self._told.items():
            if len({times for times, _ in told.values()}) == 1 and len({value for _, value in told.values()}) > 1:
                return self._unlike(key, {rank: value for rank, (_, value) in sorted(told.items())})
        return FINE

    def _unlike(self, key: str, values: dict[int, Any]) -> Verdict:
        common, times = Tally(values.values()).most_common(1)[0]
        odd = [rank for rank, value in values.items() if value != common]
        ranks = odd if 2 * times > len(values) else list(values)
        groups: dict[Any, list[int]] = {}
        for rank, value in values.items():
            groups.setdefault(value, []).append(rank)
        text = ", ".join(f"{value} on {_ranks(ranks)}" for value, ranks in groups.items())
        return Verdict(bad=True, clear=False, ranks=tuple(ranks), subject=key, detail=text)


def _ranks(ranks: list[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks[:8]))}{', ...' if len(ranks) > 8 else ''}"
