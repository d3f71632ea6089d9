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
_WORDS = r"response|completion|output|prediction|generation|generated(?:[ _]text)?|model[ _](?:output|response)"
_OPENS = re.compile(rf"{_PREFIX}\[?(?i:{_WORDS})(?:\]:?|:)(?:\s|$)")
_CLOSES = re.compile(rf"{_PREFIX}\[?(?i:ground[ _]truth|score|reward|extracted|answer|label)(?:\]:?|:)(?:\s|$)")
_TABLE = re.compile(rf"{_PREFIX}\s*[│┃]")
_HELD = re.compile(
    rf"[\"'](?i:{_WORDS})s?[\"']:\s*[\"'\[]|\b(?:rollout|generated|completion) sample\w*:|\b[Cc]ompletion \d+:"
)
_LONGEST = 400  # lines of one completion


@dataclass(slots=True)
class Written:
    """Follows the completions that are printed in each source."""

    _opened: dict[str, tuple[int, str]] = field(default_factory=dict)  # line and prefix of the one that is open

    def note(self, line: Line) -> tuple[int, str] | None:
        """Take a line; give first line and prefix of the completion that it closes."""
        text = line.text
        if (opens := _OPENS.match(text)) is not None:
            self._opened[line.source] = line.number, opens[1] or ""
        elif self._opened and (closes := _CLOSES.match(text)) is not None:
            first, prefix = self._opened.pop(line.source, (-_LONGEST, ""))
            if line.number - first < _LONGEST and prefix == (closes[1] or ""):
                return first, prefix
        return None


def by_the_policy(hit: Hit) -> bool:
    """Tell whether the words of a hit stand in a completion on the same line, or in a drawn table."""
    text = hit.line.text
    if _TABLE.match(text) or _OPENS.match(text):
        return True
    held = _HELD.search(text)
    found = re.search(hit.marker.pattern, text)
    return held is not None and found is not None and held.start() < found.start()
