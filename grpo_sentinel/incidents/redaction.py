"""What must not lie around in a bundle: secrets never, texts and token ids of samples as the configuration says."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from grpo_sentinel.history.codec import plain
from grpo_sentinel.records import EventRecord

Samples = Literal["off", "hashed", "full"]
REMOVED = "(removed)"
_SECRET_KEY = re.compile(
    r"token(?!s|i[sz]|_?id)|passw|secret|api_?key|credential|authori[sz]ation|private_?key|webhook", re.IGNORECASE
)
_USER_INFO = re.compile(r"([a-z][a-z0-9+.-]*://)[^/@\s]+@", re.IGNORECASE)
_SAMPLE_KINDS = {"sample", "capture"}
_PLAIN_KEYS = {  # structure, not content
    "kind", "rule", "finding_id", "function", "signal", "dtype", "where", "field", "fault", "path", "paths", "device",
    "role", "_cut", "what", "reason",
}  # fmt: skip


def without_secrets(value: Any, key: str = "") -> Any:
    """Copy a tree of settings with secret values and the user part of addresses removed."""
    if isinstance(value, Mapping):
        return {str(name): without_secrets(item, str(name)) for name, item in value.items()}
    if key and value and _SECRET_KEY.search(key) and not isinstance(value, bool):
        return REMOVED
    if isinstance(value, (list, tuple)):
        return [without_secrets(item) for item in value]
    return _USER_INFO.sub(rf"\1{REMOVED}@", value) if isinstance(value, str) else value


def event_for(event: EventRecord, samples: Samples) -> EventRecord | None:
    """Give an event as it may be kept; None when it must be left out."""
    if event.kind == "config":
        return replace(event, body=without_secrets(event.body))
    if event.kind not in _SAMPLE_KINDS or samples == "full":
        return event
    if samples == "off":
        return None
    return replace(event, body=_hashed(event.body))


def _hashed(value: Any, key: str = "") -> Any:
    """Replace texts and lists of numbers by their SHA-256 and length: enough to find them in one's own data."""
    if isinstance(value, Mapping):
        return {str(name): _hashed(item, str(name)) for name, item in value.items()}
    if key in _PLAIN_KEYS:
        return value
    if isinstance(value, str):
        return {"sha256": hashlib.sha256(value.encode("utf-8", "backslashreplace")).hexdigest(), "length": len(value)}
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, (str, Mapping)) for item in value):
            return [_hashed(item) for item in value]
        text = json.dumps(plain(value), separators=(",", ":"))
        return {"sha256": hashlib.sha256(text.encode()).hexdigest(), "length": len(value)}
    return value


def scrubbed(value: Any, scrub: Callable[[str], str]) -> Any:
    """Pass every text of a tree through `scrub`; keys stay."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, Mapping):
        return {key: scrubbed(item, scrub) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrubbed(item, scrub) for item in value]
    return value


__all__ = ["REMOVED", "Samples", "event_for", "scrubbed", "without_secrets"]
