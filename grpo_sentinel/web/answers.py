"""What every endpoint needs: strict JSON, a refusal in one sentence, and numbers out of a query."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.history import HistoryReader
from grpo_sentinel.records import Mode


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


def run_of(request: Request, watched: Collection[str], reader: HistoryReader) -> str:
    """Read which run is meant, the first that is watched by default. Raises `Refused` for one that nobody knows."""
    name = request.query_params.get("run") or next(iter(watched), "")
    if name and name not in watched and reader.run(name) is None:
        raise Refused(404, f"run {name!r} is neither watched here nor in the history; /api/v1/runs lists them")
    return name


def mode_of(request: Request) -> Mode:
    """Read which steps are meant. Raises `Refused`: the numbers of another one would mislead."""
    text = request.query_params.get("mode") or "train"
    if text not in (known := [mode.name.lower() for mode in Mode]):
        raise Refused(400, f"mode: expected {' or '.join(known)}, got {text!r}")
    return Mode[text.upper()]


def _whole(name: str, text: str, low: int, high: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise Refused(400, f"{name}: expected a whole number, got {text!r}") from None
    if not low <= value <= high:
        raise Refused(400, f"{name}: expected {low} to {high}, got {value}")
    return value


__all__ = ["Refused", "Strict", "integer", "integers", "mode_of", "run_of"]
