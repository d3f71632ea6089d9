"""Take secrets, host names of the network and paths out of a text that leaves the house."""

from __future__ import annotations

import re

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i)\b(authorization:\s*bearer|bearer)\s+\S+"), r"\1 [secret]"),
    (
        re.compile(r"(?i)\b([\w-]*(?:token|secret|passw(?:or)?d|api[_-]?key)[\w-]*)\s*[=:]\s*['\"]?[^\s'\",}]+"),
        r"\1=[secret]",
    ),
    (
        re.compile(r"\b(?:hf|sk|ghp|gho|ghs|github_pat|glpat|npm|xox[abp]|AKIA|ASIA|AIza)[_-]?[A-Za-z0-9_-]{16,}"),
        "[secret]",
    ),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"), "[secret]"),  # a JSON web token
    (re.compile(r"(?i)(--?(?:\w+-)*(?:token|password|secret|api-key))\s+\S+"), r"\1 [secret]"),
    (re.compile(r"\b[0-9a-f]{40}\b"), "[secret]"),
    (re.compile(r"([a-z][a-z0-9+.-]*://)[^\s/@:]+:[^\s/@]+@"), r"\1[secret]@"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "[address]"),
    (re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+"), "[mail]"),
    (re.compile(r"\b(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{0,4}\b|\bfe80::[0-9a-fA-F:]+"), "[address]"),
    (re.compile(r"(?<![\w.])~?/(?:[\w.@+-]+/)+([\w.@+-]*)"), r"…/\1"),
    (re.compile(r"\b[A-Za-z]:\\(?:[\w.@+ -]+\\)+([\w.@+-]*)"), r"…\\\1"),
)


def redact(text: str) -> str:
    """Replace tokens, passwords, addresses and the directories of paths; file names stay."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
