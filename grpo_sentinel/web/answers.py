"""What every endpoint needs: strict JSON, a refusal in one sentence, and numbers out of a query."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from grpo_sentinel.errors import SentinelError


class Refused(SentinelError):
    """A request that cannot be answered: HTTP status and one sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Strict(JSONResponse):
    """JSON without NaN; see `web.bodies`."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def integer(request: Request, name: str, default: int, low: int, high: int) -> int:
    """Read a whole number of the query. Raises `Refused` when it is none or out of bounds."""
    text = request.query_params.get(name)
    return default if text in (None, "") else _whole(name, str(text), low, high)


def integers(request: Request, name: str, most: int, low: int, high: int) -> list[int]:
    """Read whole numbers with commas between them, [] when there are none. Raises `Refused` like `integer`."""
    parts = [part for part in request.query_params.get(name, "").split(",") if part]
    if len(parts) > most:
        raise Refused(400, f"{name}: expected at most {most}, got {len(parts)}")
    return [_whole(name, part, low, high) for part in parts]


def _whole(name: str, text: str, low: int, high: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise Refused(400, f"{name}: expected a whole number, got {text!r}") from None
    if not low <= value <= high:
        raise Refused(400, f"{name}: expected {low} to {high}, got {value}")
    return value


__all__ = ["Refused", "Strict", "integer", "integers"]
