"""Take secrets, host names of the network and paths out of a text that leaves the house."""

from __future__ import annotations

import re

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i)\b(authorization:\s*bearer|bearer)\s+\S+"), r"\1 [secret]"),
    (
        re.compile(r"(?i)\b([\w-]*(?:token|secret|passw(?:or)?d|api[_-]?key)[\w-]*)\s*[=:]\s*['\"]?[^\s'\",}]+"),
        r"\1=[secret]",
    ),
    (re.compile(r"\b(?:hf|sk|ghp|gho|xox[abp]|AKIA)[_-]?[A-Za-z0-9_-]{16,}\b"), "[secret]"),
    (re.compile(r"\b[0-9a-f]{40}\b"), "[secret]"),
    (re.compile(r"([a-z][a-z0-9+.-]*://)[^\s/@:]+:[^\s/@]+@"), r"\1[secret]@"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "[address]"),
    (re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+"), "[mail]"),
    (re.compile(r"(?<![\w.])/(?:[\w.@+-]+/)+([\w.@+-]*)"), r"…/\1"),
)


def redact(text: str) -> str:
    """Replace tokens, passwords, addresses and the directories of paths; file names stay."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
