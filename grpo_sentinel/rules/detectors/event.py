"""Events: something a rank said in words (exception, vote error, halted probe)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from grpo_sentinel.catalog import EVENTS
from grpo_sentinel.rules.exceptions import place_of
from grpo_sentinel.rules.view import FINE, Verdict, View


@dataclass
class Event:
    """Bad for an event of this `kind` whose body fields equal `where` (a list: any of its members).

    `subject` and `detail` name body fields that go into the finding; with `place` so does where it was raised.
    """

    event: str
    where: dict[str, Any] = field(default_factory=dict)
    subject: str = ""
    detail: str = ""
    place: bool = False

    def __post_init__(self) -> None:
        if self.event not in EVENTS:
            raise ValueError(f"unknown event {self.event!r}; known are {', '.join(EVENTS)}")

    def update(self, view: View) -> Verdict:
        if view.event_kind != self.event:
            return FINE
        for key, wanted in self.where.items():
            found = view.event.get(key)
            if found not in wanted if isinstance(wanted, list) else found != wanted:
                return FINE
        ranks = () if view.rank is None else (view.rank,)
        place = place_of(view.event) if self.place else ""
        return Verdict(
            bad=True,
            clear=False,
            ranks=ranks,
            subject=self._text(view, self.subject),
            detail=self._text(view, self.detail) + (f" ({place})" if place else ""),
        )

    def _text(self, view: View, key: str) -> str:
        value = view.event.get(key, "") if key else ""
        return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)[:300]
