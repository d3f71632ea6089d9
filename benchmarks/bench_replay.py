"""Replay: step records of 50 signals through all rules, from history and other sources; memory; where time goes.

The figure for a million records is a slice, multiplied: the cost per record is constant (`bench_rules` shows it). Say
`python -m benchmarks.bench_replay --records 1000000` for a whole one.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import healthy
from benchmarks.record import record as store
from grpo_sentinel.cli.replaying import play
from grpo_sentinel.config import HistoryConfig
from grpo_sentinel.history import HistoryStore
from grpo_sentinel.history.sources import open_path
from grpo_sentinel.records import Frame, Kind, Mode, StepRecord
from grpo_sentinel.rules import load_rules
from grpo_sentinel.views import SinkBatch

Record = Callable[..., None]
SIGNALS = 50
SLICE = 20_000
_BLOCK = 500


def main(record: Record = store, records: int = SLICE) -> None:
    """Measure a slice and store the figures."""
    with tempfile.TemporaryDirectory(prefix="grpo-sentinel-bench-") as place:
        folder = Path(place)
        _measure(record, records, folder)


def _measure(record: Record, records: int, folder: Path) -> None:
    history = folder / "history.sqlite"
    _write_history(history, records)
    rules = load_rules()
    (source,) = open_path(history)
    before = _peak_mib()
    started, cpu = time.perf_counter(), time.process_time()
    outcome = play(source, rules)
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    assert outcome.frames == records, outcome.frames
    name = "replay_million_records_s"
    if records < 1_000_000:
        name += "_extrapolated"
    record(name, cpu / records * 1e6, "s", peer=f"limit 300 s, {records} records, {SIGNALS} signals", peer_value=300.0)
    record("replay_million_records_wall_s" if records >= 1_000_000 else "replay_slice_wall_s", wall, "s")
    record("replay_wall_over_cpu", wall / cpu, "", peer="1 on a machine that is free")
    record("replay_memory_growth_mib", _peak_mib() - before, "MiB", peer=f"over {records} records")
    small = folder / "rows.jsonl"
    rows = list(_rows(4000))
    small.write_text("".join(json.dumps({"step": step, **row}) + "\n" for step, row in rows))
    names = list(rows[0][1])
    table = folder / "rows.csv"
    lines = [",".join(["step", *names]), *(",".join([str(s), *(str(r.get(n, "")) for n in names)]) for s, r in rows)]
    table.write_text("\n".join(lines))
    for path in (small, table):
        started_cpu = time.process_time()
        (source,) = open_path(path)
        for _ in source.items(_no_progress()):
            pass
        record(f"replay_read_{path.suffix[1:]}_us", (time.process_time() - started_cpu) / len(rows) * 1e6, "us")
    if records <= SLICE:
        _profile(history, records)


def _no_progress():
    from grpo_sentinel.history.sources import Progress

    return Progress()


def _rows(steps: int) -> Iterator[tuple[int, dict[str, float]]]:
    """Rows of SIGNALS signals spread over all layers, from a healthy run that is played again and again."""
    frames = list(healthy.run("gaussian", 1000))
    names = _chosen(frames[1])
    rows = [{name: frame.ranks[0][name] for name in names if name in frame.ranks[0]} for frame in frames[1:]]
    for step in range(1, steps + 1):
        yield step, rows[step % len(rows)]


def _chosen(frame: Frame) -> list[str]:
    layers: dict[str, list[str]] = {}
    for name in frame.ranks[0]:
        layers.setdefault(name.partition(".")[0], []).append(name)
    out: list[str] = []
    while len(out) < SIGNALS:
        for names in layers.values():
            if names and len(out) < SIGNALS:
                out.append(names.pop(0))
    return out


def _write_history(path: Path, records: int) -> None:
    history = HistoryStore(path, HistoryConfig(flush_seconds=0.2, max_bytes=20_000_000_000))
    block: list[StepRecord] = []
    for step, row in _rows(records):
        wall_ns = time.time_ns()
        block.append(
            StepRecord(
                run_id="bench",
                rank=0,
                sequence=step,
                step=step,
                kind=Kind.STEP,
                mode=Mode.TRAIN,
                micro_batch=0,
                generation=0,
                monotonic_ns=wall_ns,
                wall_ns=wall_ns,
                values=row,
            )
        )
        if len(block) == _BLOCK or step == records:
            history.write(SinkBatch(run_id="bench", node="bench", wall_ns=wall_ns, records=tuple(block)))
            history.flush()
            block = []
    history.close()


def _profile(history: Path, records: int) -> None:
    """Print where the time goes, by module."""
    (source,) = open_path(history)
    profile = cProfile.Profile()
    profile.runcall(play, source, load_rules())
    spent: Counter[str] = Counter()
    for (name, _, function), (_, _, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        spent["built-in " + function if name == "~" else Path(name).stem] += own
    total = sum(spent.values())
    shares = ", ".join(f"{name} {100 * own / total:.0f} %" for name, own in spent.most_common(12))
    print(f"time by module under the profiler: {shares}")


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(records=int(sys.argv[sys.argv.index("--records") + 1]) if "--records" in sys.argv else SLICE)
