"""Take secrets, host names of the network and paths out of a text that leaves the house."""

from __future__ import annotations

import re

from grpo_sentinel.scrub import REMOVED, scrub

_HEX = r"[0-9a-fA-F]{1,4}"
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*"), REMOVED),
    (
        re.compile(r"(?i)\b([\w-]*(?:token|secret|passw(?:or)?d|[_-]key|apikey))(\s*[=:]\s*)(['\"])[^'\"]+\3"),
        rf"\1\2{REMOVED}",
    ),
    (re.compile(r"(?i)\b([\w-]*token[\w-]*)\s*[=:]\s*['\"]?(?![\d.]+\b)[^\s'\",}]+"), rf"\1={REMOVED}"),
    (re.compile(r"\b[0-9a-f]{40}\b"), REMOVED),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "[address]"),
    (re.compile(r"(?<=://)(?!\[)[^\s/:'\"`]+(?::\d+)?"), "[host]"),
    (
        re.compile(r"(?i)\b(user(?:name)?|host(?:name)?)(\s*=\s*)(?!(?:None|null|True|False)\b)['\"]?[^\s'\",;})]+"),
        r"\1\2[removed]",
    ),
    (re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+"), "[mail]"),
    (
        re.compile(
            rf"\b(?:{_HEX}:){{4,7}}(?:{_HEX})?\b|\b(?:{_HEX}:){{2,6}}(?::{_HEX}){{1,6}}\b"
            r"|\b(?:fe80|f[cd][0-9a-f]{2}|2[0-9a-f]{3})::[0-9a-fA-F:]+"
        ),
        "[address]",
    ),
    (
        re.compile(r"(?i)\b(?:[a-z0-9-]+\.)+(?:internal|localdomain|local|corp|lan|intra|cluster)(?:\.[a-z0-9-]+)*\b"),
        "[host]",
    ),
    (re.compile(r"(?<![\w.])~?/(?:[\w.@+-]+(?: [\w.@+-]+)?/)+([\w.@+-]*)"), r"…/\1"),
    (re.compile(r"(?<![\w/])(?:\.{1,2}/)*(?:home|Users)/(?:[\w.@+-]+/)+([\w.@+-]*)"), r"…/\1"),
    (re.compile(r"(?:\b[A-Za-z]:|\\)\\(?:[\w.@+ -]+\\)+([\w.@+-]*)"), r"…\\\1"),
)


def redact(text: str) -> str:
    """Replace tokens, passwords, addresses and the directories of paths; file names stay."""
    text = scrub(text)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
