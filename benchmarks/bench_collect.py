"""CPU cost of collecting: 8 ranks push 10 records of 64 signals a second each; the daemon looks every 30 ms.

The ranks push from a process of their own, so only the reader's time is counted.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from grpo_sentinel.clock import SystemClock
from grpo_sentinel.collectors.host import HostCollector
from grpo_sentinel.collectors.ranks import RankCollector
from grpo_sentinel.config import HostConfig

RANKS, RECORDS_PER_SECOND, SIGNALS = 8, 10, 64
SECONDS, POLL_SECONDS = 6.0, 0.03

PUSH = f"""
import sys, time
from pathlib import Path
from grpo_sentinel.protocol import RankWriter, new_identity
writers = [RankWriter(Path(sys.argv[1]), new_identity(rank, rank, {RANKS}, "bench")) for rank in range({RANKS})]
values = {{f"policy.signal_{{number}}": number / 7 for number in range({SIGNALS})}}
print("ready", flush=True)
step, due = 0, time.monotonic()
while True:
    step += 1
    for writer in writers:
        writer.push(values, step=step)
    due += 1 / {RECORDS_PER_SECOND}
    time.sleep(max(0.0, due - time.monotonic()))
"""


def main(record: Callable[..., None]) -> None:
    """Measure and hand the figures to `record(name, value, unit)`."""
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        run.mkdir(mode=0o700)
        pusher = subprocess.Popen([sys.executable, "-c", PUSH, str(run)], stdout=subprocess.PIPE)
        try:
            assert pusher.stdout is not None
            pusher.stdout.readline()
            share, records, frames = _collect(run)
        finally:
            pusher.kill()
            pusher.communicate(timeout=10)
    record("collect_ranks_cpu", share, "share of a core")
    record("collect_ranks_cpu_per_record", share * SECONDS / records * 1e6, "µs")
    record("collect_ranks_frames", frames / SECONDS, "1/s")
    record("collect_host_reading", _host_reading() * 1e6, "µs")


def _collect(run: Path) -> tuple[float, int, int]:
    """Poll for a while; returns the share of a core, and the records and frames that came."""
    collector = RankCollector(run, SystemClock())
    collector.poll()
    records = frames = 0
    begun, used = time.monotonic(), time.process_time()
    while time.monotonic() < begun + SECONDS:
        batch = collector.poll()
        records += len(batch.records)
        frames += len(batch.frames)
        time.sleep(POLL_SECONDS)
    share = (time.process_time() - used) / (time.monotonic() - begun)
    collector.close()
    expected = RANKS * RECORDS_PER_SECOND * SECONDS
    if not 0.8 * expected <= records <= 1.2 * expected:
        raise RuntimeError(f"expected about {expected:.0f} records, got {records}: the host was too busy to measure")
    return share, records, frames


def _host_reading() -> float:
    """Median CPU seconds of one reading of the host."""
    collector = HostCollector(HostConfig(interval_seconds=1e-6), [Path("/")], SystemClock(), ring=Path("/tmp"))
    spent = []
    for _ in range(50):
        used = time.process_time()
        collector.poll(1.0)
        spent.append(time.process_time() - used)
    return statistics.median(spent)


if __name__ == "__main__":
    main(lambda name, value, unit: print(f"{name:32} {value:12.4g} {unit}"))
