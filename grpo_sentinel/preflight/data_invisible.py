"""Characters in a text that nobody sees and a tokenizer does: zero-width, byte order marks, overrides of direction.

Many have a right use, and there they are passed by: joiners in emoji and in Persian and Indic words, zero-width spaces
in scripts that write no spaces (Thai, Lao, Tibetan, Burmese, Khmer), embeddings and isolates beside text from right to
left, tags in the flags of England, Scotland and Wales. Source: Unicode 15, chapter 23, and Annex 9.
"""

from __future__ import annotations

import re

_NO_SPACES = "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"
_INVISIBLE = re.compile(
    f"(?<![{_NO_SPACES}])\u200b(?![{_NO_SPACES}])|[\ufeff\u2060\u202d\u202e]"
    "|(?<=[\x20-\x7e])[\u200c\u200d](?=[\x20-\x7e])"
    "|(?<![\U0001f3f4\U000e0020-\U000e007f])[\U000e0020-\U000e007f]"
)
_DIRECTION = re.compile("[\u202a-\u202c\u2066-\u2069]")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_NAMES = {"\u200b": "zero-width space", "\ufeff": "byte order mark", "\u202d": "left-to-right override",
          "\u202e": "right-to-left override"}  # fmt: skip


def invisible(text: str) -> tuple[int, str]:
    """Find the first such character; gives its place and name, or -1 and ""."""
    found = _INVISIBLE.search(text)
    if found is None and (found := _DIRECTION.search(text)) and _RIGHT_TO_LEFT.search(text):
        found = None
    if found is None:
        return -1, ""
    return found.start(), _NAMES.get(found[0]) or f"U+{ord(found[0]):04X}"


__all__ = ["invisible"]
