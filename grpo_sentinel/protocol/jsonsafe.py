"""Strict JSON for anything a trainer hands over: never raises, never grows beyond a limit, restores NaN and infinity.

A float that JSON cannot hold is written `{"$float": "nan"}`; a key of the user's that begins with `$` gets a second
one, so nothing a user writes can be mistaken for it. Sequences come back as lists, unknown objects as their text.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

_DEEPEST = 12
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
CUT_KEY = "_cut"


def encode(value: Any) -> bytes:
    """Write `value` as strict JSON in UTF-8, whole."""
    return _dump(_plain(value, 1 << 62, 1 << 62, 0, _Cut(1 << 62)))


def encode_within(body: Mapping[str, Any], limit: int) -> tuple[bytes, bool]:
    """Write `body` in at most `limit` bytes of strict JSON and tell whether it was cut.

    A cut body is still a JSON object: long texts keep their head and their tail (the end of a traceback says what
    was raised), long lists their first entries, and `"_cut": true` marks it.
    """
    text, items = limit, max(8, limit // 2)
    while True:
        cut = _Cut(8 * limit)
        plain = _plain(body, text, items, 0, cut)
        if cut.happened and isinstance(plain, dict):
            plain[CUT_KEY] = True
        data = _dump(plain)
        if len(data) <= limit:
            return data, cut.happened
        if text <= 16 and items <= 1:
            return _dump({CUT_KEY: True}), True
        text, items = max(16, text * 2 // 3), max(1, items * 2 // 3)


def decode(data: bytes) -> Any:
    """Read what `encode` wrote. Raises `ValueError` on anything that is not strict JSON."""
    return _restore(json.loads(data.decode("utf-8"), parse_constant=_no_constant))


class _Cut:
    """Whether anything was left out on the way, and how much may still be visited.

    The budget bounds the work on a huge body: what exhausts it is far above the limit and is tried again, shorter.
    """

    def __init__(self, budget: int) -> None:
        self.happened = False
        self.budget = budget


def _dump(plain: Any) -> bytes:
    # A lone surrogate becomes \udXXX in the text, which inside a JSON string is its own escape.
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def _plain(value: Any, text: int, items: int, depth: int, cut: _Cut) -> Any:
    """Turn `value` into what JSON knows, with texts, sequences and depth bounded."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _shorten(str.__str__(value), text, cut)
    if isinstance(value, numbers.Integral):
        whole = int(value)
        return whole if whole.bit_length() <= 1024 else f"<integer of {whole.bit_length()} bits>"
    if isinstance(value, numbers.Real):
        return _plain_float(value)
    if depth >= _DEEPEST:
        cut.happened = True
        return "…"
    if isinstance(value, Mapping):
        return _plain_mapping(value, text, items, depth, cut)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(entry, text, items, depth + 1, cut) for entry in _first(value, len(value), items, cut)]
    return _shorten(_text_of(value), text, cut)


def _plain_float(value: numbers.Real) -> Any:
    try:
        number = float(value)
    except OverflowError:  # a fraction beyond float64
        return _text_of(value)[:64]
    return number if math.isfinite(number) else {"$float": str(number)}


def _plain_mapping(value: Mapping[Any, Any], text: int, items: int, depth: int, cut: _Cut) -> dict[str, Any]:
    out = {}
    for key, entry in _first(value.items(), len(value), items, cut):
        name = _shorten(key if isinstance(key, str) else _text_of(key), text, cut)
        out["$" + name if name.startswith("$") else name] = _plain(entry, text, items, depth + 1, cut)
    return out


def _first(entries: Iterable[Any], count: int, items: int, cut: _Cut) -> Iterator[Any]:
    if count > items:
        cut.happened = True
    for entry in islice(entries, min(items, count)):
        cut.budget -= 8
        if cut.budget < 0:
            cut.happened = True
            return
        yield entry


def _shorten(value: str, limit: int, cut: _Cut) -> str:
    cut.budget -= min(len(value), limit)
    if len(value) <= limit:
        return value
    cut.happened = True
    head = limit // 3
    return f"{value[:head]}…{value[len(value) - (limit - head) :]}"


def _text_of(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a stranger's __str__ may raise anything
        return f"<{type(value).__name__}>"


def _restore(value: Any) -> Any:
    if isinstance(value, list):
        return [_restore(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and isinstance(value.get("$float"), str) and value["$float"] in _FLOATS:
        return _FLOATS[value["$float"]]
    return {key[1:] if key.startswith("$") else key: _restore(entry) for key, entry in value.items()}


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
