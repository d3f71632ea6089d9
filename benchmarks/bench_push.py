"""Push of a 64-signal record beside an offline `wandb.log` of the same values, in one run, with a live reader.

Promise: at most 10 µs median from the public name -> value call, CRC included, and 30 times cheaper than wandb.
The two take turns in blocks, so a slow spell of the machine hits both.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpo_sentinel.protocol import RankWriter, new_identity

SIGNALS, BLOCKS, PUSHES, LOGS = 64, 20, 1000, 50
LIMIT_US, LEAST_RATIO = 10.0, 30.0

READ = """
import sys, time
from pathlib import Path
from grpo_sentinel.protocol import RankReader, Cursor
reader, cursor, bad = RankReader(Path(sys.argv[1])), Cursor(), 0
print("ready", flush=True)
while reader.closed is None:
    batch = reader.poll(cursor)
    cursor, bad = batch.cursor, bad + batch.bad_slots
    time.sleep(0.03)
print(bad, cursor.record, flush=True)
"""
"""Polls as the daemon does; ends with the writer and says how many slots did not check."""


def main(record: Callable[..., None]) -> None:
    """Measure and hand over the figures. Raises `RuntimeError` when a promise is broken."""
    values = {f"gradient.signal_{number}": number / 7 for number in range(SIGNALS)}
    pushes: list[float] = []
    logs: list[float] = []
    with tempfile.TemporaryDirectory() as scratch, _wandb_log(Path(scratch)) as log, _ring() as push:
        for block in range(BLOCKS):
            pushes += [_spent(push, values, block * PUSHES + number) for number in range(PUSHES)]
            if log:
                logs += [_spent(log, values, block * LOGS + number) for number in range(LOGS)]
    push_us = statistics.median(pushes)
    log_us = statistics.median(logs) if logs else None
    peer = "offline wandb.log" if logs else "offline wandb.log: wandb is not installed, nothing to compare with"
    record("push_64_signals", push_us, "µs", peer=peer, peer_value=log_us)
    record("push_64_signals_p99", statistics.quantiles(pushes, n=100)[98], "µs")
    if push_us > LIMIT_US:
        raise RuntimeError(f"a push took {push_us:.2f} µs, promised are {LIMIT_US:g}")
    if log_us is not None and log_us < LEAST_RATIO * push_us:
        raise RuntimeError(f"a push is only {log_us / push_us:.1f} times cheaper than wandb.log, not {LEAST_RATIO:g}")


def _spent(call: Callable[[dict[str, float], int], Any], values: dict[str, float], step: int) -> float:
    """Microseconds of one call."""
    begun = time.perf_counter_ns()
    call(values, step)
    return (time.perf_counter_ns() - begun) / 1e3


@contextmanager
def _ring() -> Iterator[Callable[[dict[str, float], int], Any]]:
    """A segment in shared memory, read by another process meanwhile."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as directory:
        writer = RankWriter(Path(directory), new_identity(0, 0, 1, "bench"))
        reader = subprocess.Popen([sys.executable, "-c", READ, str(writer.path)], stdout=subprocess.PIPE, text=True)
        try:
            assert reader.stdout is not None
            reader.stdout.readline()
            yield lambda values, step: writer.push(values, step=step)
            writer.close()
            bad, reached = reader.communicate(timeout=30)[0].split()
            if int(bad) or not int(reached):
                raise RuntimeError(f"the reader reached record {reached} and met {bad} bad slots")
        finally:
            reader.kill()
            reader.wait(10)


@contextmanager
def _wandb_log(scratch: Path) -> Iterator[Callable[[dict[str, float], int], Any] | None]:
    """`log` of an offline W&B run; None when wandb is not installed."""
    try:
        import wandb
    except ImportError:
        yield None
        return
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(scratch)}
    run = wandb.init(project="bench", dir=str(scratch), mode="offline")
    try:
        yield lambda values, _step: run.log(values)
    finally:
        run.finish()


if __name__ == "__main__":
    from benchmarks.record import record as store

    main(store)
