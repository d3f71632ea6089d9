"""What a rank's flight recorder says: which collectives it has not completed, next to its stack.

rank 0: default_pg: 41 completed, 42 begun; not completed: 42 gloo:all_reduce [[7]] Float for 31 s
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_sentinel.protocol.collectives import answer_of, ask

_SECONDS = 2.0
_MOST = 4  # collectives told of one group


def asked(directory: Path, ranks: Sequence[int]) -> dict[int, int]:
    """Ask ranks for their collectives; gives for each that hears it when its answer was last written, 0 for never."""
    before = {rank: _written_ns(answer_of(directory, rank)) for rank in ranks}
    return {rank: before[rank] for rank in ranks if ask(directory, rank)}


def answers(directory: Path, before: Mapping[int, int]) -> str:
    """Wait a moment for the answers and put them into words; "" when nobody was asked."""
    limit = time.monotonic() + _SECONDS
    parts = []
    for rank, old_ns in before.items():
        path = answer_of(directory, rank)
        while _written_ns(path) <= old_ns and time.monotonic() < limit:
            time.sleep(0.02)
        told = "no answer" if _written_ns(path) <= old_ns else told_by(path, time.time_ns())
        parts.append(f"rank {rank}: {told}\n")
    return "\n==== collectives, as torch's flight recorder knows them\n" + "".join(parts) if parts else ""


def told_by(path: Path, now_ns: int) -> str:
    """Put one answer into words."""
    try:
        body = json.loads(path.read_bytes())
        if "left_out" in body:
            return str(body["left_out"])
        entries, groups = body.get("entries") or [], body.get("pg_status") or {}
        said = [_group(number, status, entries, now_ns) for number, status in groups.items()]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"not readable ({type(error).__name__})"
    return "; ".join(said) or "none recorded"


def _group(number: str, status: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], now_ns: int) -> str:
    done, begun = int(status["last_completed_collective"]), int(status["last_enqueued_collective"])
    ours = [one for one in entries if str(one.get("pg_id")) == number and not one.get("is_p2p")]
    name = next((str(one["process_group"][1]) for one in ours), f"group {number}")
    waiting = [one for one in ours if int(one["collective_seq_id"]) > done]
    told = ", ".join(_entry(one, now_ns) for one in waiting[:_MOST])
    return f"{name}: {max(0, done)} completed, {max(0, begun)} begun" + (f"; not completed: {told}" if told else "")


def _entry(one: Mapping[str, Any], now_ns: int) -> str:
    seconds = (now_ns - int(one["time_created_ns"])) / 1e9
    dtypes = "/".join(map(str, one.get("input_dtypes") or ()))
    return f"{one['collective_seq_id']} {one['profiling_name']} {one['input_sizes']} {dtypes} for {seconds:.0f} s"


def _written_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


__all__ = ["answers", "asked", "told_by"]
