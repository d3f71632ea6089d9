"""Take secrets, host names of the network and paths out of a text that leaves the house."""

from __future__ import annotations

import re

from grpo_sentinel.scrub import REMOVED, scrub

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i)\b([\w-]*token[\w-]*)\s*[=:]\s*['\"]?[^\s'\",}]+"), rf"\1={REMOVED}"),
    (re.compile(r"\b[0-9a-f]{40}\b"), REMOVED),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "[address]"),
    (re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+"), "[mail]"),
    (re.compile(r"\b(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{0,4}\b|\bfe80::[0-9a-fA-F:]+"), "[address]"),
    (re.compile(r"(?<![\w.])~?/(?:[\w.@+-]+/)+([\w.@+-]*)"), r"…/\1"),
    (re.compile(r"\b[A-Za-z]:\\(?:[\w.@+ -]+\\)+([\w.@+-]*)"), r"…\\\1"),
)


def redact(text: str) -> str:
    """Replace tokens, passwords, addresses and the directories of paths; file names stay."""
    text = scrub(text)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
