"""Rows that repeat earlier ones: told by hashes, in bounded memory, and when that is no fault."""

from __future__ import annotations

from typing import Any

MOST_REMEMBERED = 2_000_000  # hashes of rows, about 200 MB; beyond that repeats are no longer sought
_POOL = 2.0  # repeats for each distinct row from which on they are drawn again and again, and meant
_SPACES = b" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f"  # what str.split() takes for white space
_ANSWER_BITS = 8


def text_hash(text: str) -> int:
    """Hash a text so that case and white space do not matter; 61 bits, good for this process only."""
    if text.isascii():  # the hash of bytes is that of the same text
        return hash(text.encode().lower().translate(None, _SPACES))
    return hash("".join(text.lower().split()))


def row_key(prompt: int, response: str, answer: Any) -> int:
    """Join the hash of a prompt, its response, and some bits of its answer: enough to see most that differ."""
    sample = hash((prompt, response)) if response else prompt  # a prompt with several responses is a group
    return sample << _ANSWER_BITS | text_hash(str(answer)) & (1 << _ANSWER_BITS) - 1


class Repeats:
    """Samples so far, with the first answer of each."""

    def __init__(self) -> None:
        self._answers: dict[int, int] = {}
        self.count = 0
        self.forgetful = False  # more rows than it remembers

    def code(self, key: int, faulty: bool) -> str:
        """Remember a row; gives the fault that it has as a repeat, "" when it is the first."""
        sample, answer = key >> _ANSWER_BITS, key & (1 << _ANSWER_BITS) - 1
        first = self._answers.get(sample)
        if first is not None:
            self.count += first == answer
            return "duplicate" if first == answer else "conflicting-answer"
        if faulty:
            return ""  # a clean copy drops it: a good row with the same prompt must not go too
        if len(self._answers) < MOST_REMEMBERED:
            self._answers[sample] = answer
        else:
            self.forgetful = True
        return ""

    def note(self, rows: int, tolerated: float) -> str:
        """Say why the duplicates are no fault: few of all rows, or drawn from a small pool; "" when they are one."""
        distinct = len(self._answers)
        if self.count > _POOL * distinct:
            return (
                f"{self.count:,} of {rows:,} rows repeat an earlier one, {rows / max(1, distinct):.1f} of each on "
                f"average: prompts drawn again and again from a pool of {distinct:,}, as is usual with few prompts"
            )
        if self.count <= tolerated * rows:
            return (
                f"{self.count:,} of {rows:,} rows {'repeat' if self.count > 1 else 'repeats'} an earlier one, no more "
                f"than --repeats {tolerated:g} allows: prompts weigh by how often they come"
            )
        return ""


__all__ = ["MOST_REMEMBERED", "Repeats", "row_key", "text_hash"]
