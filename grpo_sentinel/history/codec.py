"""Turn records into bytes and strict JSON, and back, without losing NaN or infinities.

    values   {"policy.loss": 0.1, ...}  ->  layout ("policy.loss", ...) stored once + little-endian float64 block
    objects  frozen dataclass           ->  strict JSON: "NaN", "Infinity", "-Infinity" are strings

Strict, because `json.dumps` writes the literal NaN by default, which no other JSON parser must accept.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from grpo_sentinel.records import (
    Ack,
    Action,
    Finding,
    FindingState,
    HaltState,
    Heartbeat,
    Liveness,
    Phase,
    RankIdentity,
    Severity,
)
from grpo_sentinel.views import Cursor, HaltStatus, RankStatus

MAX_DEPTH = 32
_INT64 = 2**63


def pack_values(values: Iterable[float]) -> bytes:
    """Pack numbers as little-endian float64; NaN and infinities keep their place."""
    numbers = [float(value) for value in values]
    return struct.pack(f"<{len(numbers)}d", *numbers)


def unpack_values(data: bytes) -> tuple[float, ...]:
    """Undo `pack_values`; a torn tail of less than 8 bytes is left out."""
    count = len(data) // 8
    return struct.unpack_from(f"<{count}d", data)


def pack_ids(ids: Iterable[int]) -> bytes:
    """Pack name ids as little-endian u32."""
    numbers = list(ids)
    return struct.pack(f"<{len(numbers)}I", *numbers)


def unpack_ids(data: bytes) -> tuple[int, ...]:
    """Undo `pack_ids`."""
    return struct.unpack_from(f"<{len(data) // 4}I", data)


def int64(value: int) -> int:
    """Fold an integer into what SQLite stores; a u64 counter past 2**63 saturates instead of raising."""
    return max(-_INT64, min(_INT64 - 1, int(value)))


def text(value: object) -> str:
    """Make any text storable: lone surrogates, which UTF-8 cannot hold, become escapes."""
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")


def plain(value: Any, depth: int = 0) -> Any:
    """Turn dataclasses, enums and mappings into what strict JSON holds; never raises on odd input.

    Non-finite floats become "NaN", "Infinity" or "-Infinity"; enums their lower-case name; unknown objects `str(...)`.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, str) else value.name.lower()
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _name_of_nonfinite(value)
    if depth >= MAX_DEPTH:
        return "…"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name), depth + 1) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, depth + 1) for item in value]
    return str(value)


def _name_of_nonfinite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _key(key: object) -> str:
    return key.name.lower() if isinstance(key, enum.Enum) else str(key)


def dumps(value: Any) -> str:
    """Write strict, compact, ASCII JSON of anything `plain` takes."""
    return json.dumps(plain(value), allow_nan=False, separators=(",", ":"))


def number(value: Any) -> float | None:
    """Undo `plain` for one number: None stays None, "NaN" and "Infinity" become floats again."""
    return None if value is None else float(value)


def finding_from(body: Mapping[str, Any]) -> Finding:
    """Rebuild a `Finding` from its JSON object."""
    return Finding(
        **{
            **body,
            "severity": Severity[str(body["severity"]).upper()],
            "state": FindingState(body["state"]),
            "action": Action[str(body["action"]).upper()],
            "ranks": tuple(body["ranks"]),
            "remedies": tuple(body["remedies"]),
            "value": number(body["value"]),
            "limit": number(body["limit"]),
        }
    )


def halt_from(body: Mapping[str, Any]) -> HaltStatus:
    """Rebuild a `HaltStatus` from its JSON object."""
    return HaltStatus(
        **{**body, "state": HaltState[str(body["state"]).upper()], "action": Action[str(body["action"]).upper()]}
    )


def rank_status_body(status: RankStatus) -> str:
    """Write a rank's status without its values (those are in its records)."""
    return dumps(dataclasses.replace(status, values={}))


def rank_status_from(body: Mapping[str, Any], values: Mapping[str, float]) -> RankStatus:
    """Rebuild a `RankStatus` from its JSON object and the newest values found in records."""
    beat, ack = body["heartbeat"], body["acknowledgement"]
    return RankStatus(
        **{
            **body,
            "identity": RankIdentity(**body["identity"]),
            "heartbeat": Heartbeat(**{**beat, "phase": Phase[str(beat["phase"]).upper()]}),
            "liveness": Liveness(body["liveness"]),
            "acknowledgement": None if ack is None else Ack(**{**ack, "state": HaltState[str(ack["state"]).upper()]}),
            "cursor": Cursor(**body["cursor"]),
            "values": values,
        }
    )
