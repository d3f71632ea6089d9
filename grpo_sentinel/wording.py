"""Words that go with numbers."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Give a count with its noun: "1 file", "1,024 files"; `noun` is the singular of one that takes an s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def visible(text: str) -> str:
    """Give a text from outside without control characters, which a terminal would obey: each becomes a "?"."""
    return "".join(one if one.isprintable() else "?" for one in text)


__all__ = ["counted", "visible"]
