"""Texts that the policy wrote: completions that a trainer prints are no evidence, whatever words stand in them.

A line is the policy's where it opens or holds a completion, or stands in a drawn table. What stands on several lines
is known to be the policy's only when the print closes it (`[ground_truth]`, `Extracted:`): a log may end in a crash
instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from grpo_sentinel.history.logs.lines import Line
from grpo_sentinel.history.logs.markers import Hit

_PREFIX = r"(\([^()]{1,80}\)\s+|\[rank\d+\]:\s?)?"
_WORDS = r"response|completion|prediction|generation|generated(?:[ _]text)?|model[ _](?:output|response)"
_ASKS = r"prompt|question|user"
_OPENS = re.compile(rf"{_PREFIX}\[?(?:(?P<asks>(?i:{_ASKS}))|(?i:{_WORDS}))(?:\]:?|:)(?:\s|$)")
_CLOSES = re.compile(rf"{_PREFIX}\[?(?i:ground[ _]truth|score|reward|extracted|answer|label)(?:\]:?|:)(?:\s|$)")
_TABLE = re.compile(rf"{_PREFIX}\s*[│┃]")
_HELD = re.compile(
    rf"[\"'](?i:{_WORDS}|{_ASKS}|output|content|text|answer|solution)s?[\"']:\s*[\"'\[]"
    r"|\b(?:rollout|generated|completion) sample\w*:|\b[Cc]ompletions?(?: \d+)?:\s"
    r"|<\|(?:im_start|assistant|start_header_id)\|>|<start_of_turn>|<think>"
)
_LONGEST = 400  # lines of one completion


@dataclass(slots=True)
class Written:
    """Follows the prompts and completions that are printed in each source."""

    _opened: dict[str, tuple[int, str, bool]] = field(
        default_factory=dict
    )  # of the open one: line, prefix, is it asked

    def note(self, line: Line) -> tuple[int, str] | None:
        """Take a line; give first line and prefix of what it closes: a prompt by its answer, that by a score."""
        opens = _OPENS.match(line.text)
        if opens is None and not self._opened:
            return None
        first, prefix, asked = self._opened.get(line.source, (-_LONGEST, "", False))
        closes = opens or _CLOSES.match(line.text)
        if closes is None:
            return None
        if opens is not None:
            self._opened[line.source] = line.number, opens[1] or "", opens["asks"] is not None
        else:
            self._opened.pop(line.source, None)
        fits = opens is None or (asked and opens["asks"] is None)
        return (first, prefix) if fits and line.number - first < _LONGEST and prefix == (closes[1] or "") else None


def by_the_policy(hit: Hit) -> bool:
    """Tell whether the words of a hit stand in a completion on the same line, or in a drawn table."""
    text = hit.line.text
    if _TABLE.match(text) or _OPENS.match(text):
        return True
    held = _HELD.search(text)
    found = re.search(hit.marker.pattern, text)
    return held is not None and found is not None and held.start() < found.start()
