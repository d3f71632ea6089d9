"""Prompts of an evaluation set, by hashes: as a whole, and by the last question alone.

Training data often carries a system prompt that the evaluation's does not, so the wholes differ where the question is
the same. A question is not taken for one where it says little: a short last turn of several ("go on"), or words under
which many different prompts of the evaluation end ("Summarise this.").
"""

from __future__ import annotations

from dataclasses import dataclass, field

from grpo_sentinel.preflight.data_repeats import text_hash
from grpo_sentinel.preflight.data_shapes import Messages, joined, question_of

OTHERWISE = "the same question under other turns or another system prompt"
_MOST_PROMPTS = 3  # that a question may end; beyond that it is an instruction


@dataclass(slots=True)
class Evaluated:
    """Hashes of the prompts that must not be trained on."""

    prompts: set[int] = field(default_factory=set)
    lost: int = 0  # rows that cannot be read, or have no prompt
    _questions: dict[int, int] = field(default_factory=dict)  # with the number of prompts that end in it

    def add(self, messages: Messages) -> None:
        """Take one prompt of the evaluation set."""
        whole = text_hash(joined(messages))
        if whole in self.prompts:
            return
        self.prompts.add(whole)
        if question := question_of(messages):
            key = text_hash(question)
            self._questions[key] = self._questions.get(key, 0) + 1

    def holds(self, whole: int, messages: Messages) -> str | None:
        """Tell whether a prompt is in it: "" as it is, `OTHERWISE` by its question, None not at all."""
        if whole in self.prompts:
            return ""
        if not self.prompts or not (question := question_of(messages)):
            return None
        return OTHERWISE if 1 <= self._questions.get(text_hash(question), 0) <= _MOST_PROMPTS else None


__all__ = ["OTHERWISE", "Evaluated"]
