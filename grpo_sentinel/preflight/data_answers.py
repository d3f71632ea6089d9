"""Whether every row has one and the same answer, as a column that was filled or joined wrongly has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_sentinel.preflight.data_repeats import text_hash
from grpo_sentinel.preflight.report import excerpt

_ENOUGH = 32  # rows, as for rewards that are all the same
_PROMPTS = 8  # different ones: completions of one prompt share its answer


@dataclass(slots=True)
class OneAnswer:
    """The first answer, whether another was seen, and a few prompts."""

    differ: bool = False
    _first: int | None = None
    _text: str = ""
    _count: int = 0
    _prompts: list[int] = field(default_factory=list)

    def add(self, prompt: int, answer: Any) -> None:
        """Take the answer of one row; an empty one is told elsewhere."""
        if self.differ or answer is None or answer == "":
            return
        text = str(answer)
        self._take(text_hash(text), text, 1, (prompt,))

    def merge(self, given: Sequence[Any]) -> None:
        """Take in what `as_json` gave in a process forked from this one."""
        differ, first, text, count, prompts = given
        if differ:
            self.differ = True
        elif first is not None:
            self._take(first, text, count, prompts)

    def as_json(self) -> list[Any]:
        """Give it as what JSON can hold."""
        return [self.differ, self._first, self._text, self._count, self._prompts]

    def _take(self, answer: int, text: str, count: int, prompts: Sequence[int]) -> None:
        if self._first is None:
            self._first, self._text = answer, excerpt(text)
        self.differ = self.differ or answer != self._first
        self._count += count
        for prompt in prompts:
            if len(self._prompts) < _PROMPTS and prompt not in self._prompts:
                self._prompts.append(prompt)

    def fault(self) -> str:
        """Say how often the one answer comes; "" where there is another, or too little to tell."""
        if self.differ or self._count < _ENOUGH or len(self._prompts) < _PROMPTS:
            return ""
        return f"{self._count:,} times {self._text!r}"


__all__ = ["OneAnswer"]
