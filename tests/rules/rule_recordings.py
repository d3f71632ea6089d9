"""Recordings of real runs (two TRL ranks, examples/demo), small enough for the repository: read, replay, make.

    PYTHONPATH=. python tests/rules/rule_recordings.py HISTORY OUT [STEPS]     # from a demo's history.sqlite

One gzip file of JSON: trainer configuration, the names of the signals, one row for every rank and step, events.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_sentinel.records import EventRecord, Finding, Frame, Mode
from grpo_sentinel.rules import Engine, RuleSet

FOLDER = Path(__file__).parent / "runs"
_EXACT = ("optimizer.parameter_digest", "optimizer.weight_norm")  # compared bit by bit


def read(name: str) -> dict[str, Any]:
    """Read one recording by name."""
    recording: dict[str, Any] = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    return recording


def replay(name: str, rules: RuleSet) -> list[Finding]:
    """Play a recording through a new engine; gives all findings in order."""
    recording = read(name)
    engine = Engine(rules, run_id=name)
    engine.configure(recording["context"])
    out: list[Finding] = []
    events = [EventRecord(run_id=name, sequence=0, wall_ns=0, **event) for event in recording["events"]]
    for frame in frames(name, recording):
        for event in [event for event in events if event.step <= frame.step]:
            out += engine.event(event)
            events.remove(event)
        out += engine.frame(frame)
    for event in events:
        out += engine.event(event)
    return out


def frames(name: str, recording: dict[str, Any]) -> Iterator[Frame]:
    """Give the frames of a recording."""
    names = recording["names"]
    for step, wall_ns, rows in recording["frames"]:
        ranks = {
            int(rank): {key: value for key, value in zip(names, row, strict=True) if value is not None}
            for rank, row in rows.items()
        }
        yield Frame(run_id=name, step=step, mode=Mode.TRAIN, wall_ns=wall_ns, ranks=ranks)


def make(history: Path, out: Path, steps: int) -> None:
    """Write a recording from a history; paths of the machine it ran on are left out."""
    from grpo_sentinel.history import HistoryReader
    from grpo_sentinel.history.replay import frames as stored

    with HistoryReader(history) as reader:
        run = reader.runs()[0]
        seen = [frame for frame in stored(reader.records(run.run_id), run.run_id) if frame.step <= steps]
        names = sorted({name for frame in seen for row in frame.ranks.values() for name in row})
        start = seen[0].wall_ns
        rows = [
            [
                frame.step,
                frame.wall_ns - start,
                {r: [_short(n, row.get(n)) for n in names] for r, row in frame.ranks.items()},
            ]
            for frame in seen
        ]
        wanted = ("nonfinite", "skip", "core")
        events = [
            {"rank": event.rank, "step": event.step, "kind": event.kind, "body": dict(event.body)}
            for event in reader.events(run.run_id)
            if event.kind in wanted and event.step <= steps
        ]
        context = {key: value for key, value in (run.context or {}).items() if "dir" not in key and key != "versions"}
    text = json.dumps({"context": context, "names": names, "frames": rows, "events": events})
    out.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _short(name: str, value: float | None) -> float | None:
    return value if value is None or name in _EXACT else float(f"{value:.5g}")


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 10**9)
