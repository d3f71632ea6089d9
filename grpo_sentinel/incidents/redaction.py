"""What must not lie around in a bundle: secrets never, texts and token ids of samples as the configuration says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from grpo_sentinel.history.codec import plain
from grpo_sentinel.records import EventRecord
from grpo_sentinel.scrub import SAMPLE_KINDS, clean

Samples = Literal["off", "hashed", "full"]
_PLAIN_KEYS = {  # structure, not content
    "kind", "rule", "finding_id", "function", "signal", "dtype", "where", "field", "fault", "path", "paths", "device",
    "role", "_cut", "what", "reason",
}  # fmt: skip


def event_for(event: EventRecord, samples: Samples) -> EventRecord | None:
    """Give an event as it may be kept; None when it must be left out."""
    if event.kind not in SAMPLE_KINDS:
        return clean(event)
    if samples == "full":
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


__all__ = ["Samples", "event_for"]
