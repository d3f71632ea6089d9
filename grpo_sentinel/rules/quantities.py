"""Numbers as a person reads them."""

from __future__ import annotations

import math

_PREFIXES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def quantity(value: float | None, unit: str = "") -> str:
    """Write a number for a person: bytes with a prefix, seconds with s, everything else to four digits."""
    if value is None:
        return "?"
    if not math.isfinite(value):
        return "NaN" if value != value else ("-infinity" if value < 0 else "infinity")
    if unit == "bytes":
        for size, prefix in _PREFIXES:
            if abs(value) >= size:
                return f"{value / size:.3g} {prefix}"
        return f"{value:.0f} B"
    text = f"{value:.0f}" if value == round(value) and abs(value) < 1e6 else f"{value:.4g}"
    return f"{text} s" if unit == "seconds" else text


def percentage(share: float | None) -> str:
    """Write a share of 1 as a percentage."""
    if share is None or not math.isfinite(share):
        return quantity(share)
    return f"{100 * share:.3g} %"
