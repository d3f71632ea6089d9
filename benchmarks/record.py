"""Merges figures into build/bench.json: `{name: {value, unit, peer, peer_value, ratio}}`."""

from __future__ import annotations

import json
import os
from pathlib import Path

BENCH_JSON = Path(__file__).resolve().parents[1] / "build" / "bench.json"


def record(
    name: str,
    value: float,
    unit: str,
    *,
    peer: str = "",
    peer_value: float | None = None,
    ratio: float | None = None,
    path: Path = BENCH_JSON,
) -> None:
    """Store one figure, replacing the one of the same name, and print it.

    `peer` names what it is compared with, `peer_value` is that one's value in the same unit; `ratio` is
    `peer_value / value` when not given.
    """
    if ratio is None and peer_value is not None and value:
        ratio = peer_value / value
    figures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    figures[name] = {"value": value, "unit": unit, "peer": peer, "peer_value": peer_value, "ratio": ratio}
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.new")
    draft.write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    draft.replace(path)
    against = f"   {peer}: {peer_value:.6g} {unit}, {ratio:.4g} times" if peer_value is not None and ratio else ""
    print(f"{name:36} {value:12.6g} {unit}{against}" + (f"   {peer}" if peer and not against else ""), flush=True)
