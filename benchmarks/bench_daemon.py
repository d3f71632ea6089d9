"""The whole sidecar at work: 8 ranks push 10 records of 64 signals a second each, with all rules, history and page on.

daemon_cpu             share of one core, from /proc/<pid>/stat, after it has settled     promised: below 0.10
daemon_rss             resident memory at the end                                         promised: below 80 MiB
daemon_request_*       from the commit of a record that breaks a rule to the control file promised: p99 below 50 ms
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_sentinel.daemon.claim import read_note
from grpo_sentinel.protocol import RankWriter, new_identity, run_dir

RANKS, RECORDS_PER_SECOND, SIGNALS = 8, 10, 64
SETTLE_SECONDS, SECONDS = 8.0, 20.0
REQUESTS = 60
MAX_CPU, MAX_RSS_MIB, MAX_P99_MS = 0.10, 80.0, 50.0
CONFIG = "http: {port: 0}\ncollectors: {nvml: {enabled: false}}\nhalting: {cooldown_seconds: 0, max_requests: 100000}\n"

PUSH = f"""
import itertools, random, sys, time
from pathlib import Path
from grpo_sentinel.catalog import SIGNALS
from grpo_sentinel.protocol import RankWriter, new_identity, run_dir
directory = run_dir(Path(sys.argv[1]), "bench")
writers = [RankWriter(directory, new_identity(rank, rank, {RANKS}, "bench")) for rank in range({RANKS})]
names = [name for name, one in SIGNALS.items() if one.layer in ("data", "reward", "policy", "gradient", "optimizer")
         and not one.dimension and one.kind == "gauge" and one.unit not in ("count", "flag")][:{SIGNALS}]
print("ready", flush=True)
step, due, noise = 0, time.monotonic(), random.Random(0)
while True:
    step += 1
    values = {{name: 0.5 + 0.01 * noise.random() for name in names}}
    for writer in writers:
        writer.push(values, step=step)
    due += 1 / {RECORDS_PER_SECOND}
    time.sleep(max(0.0, due - time.monotonic()))
"""


def main(record: Callable[..., None]) -> None:
    """Measure and hand the figures to `record(name, value, unit)`; raises when a promise is broken."""
    cpu, rss_mib, delays = measured(CONFIG, {})
    record("daemon_cpu", cpu, "share of a core", peer="promised at most", peer_value=MAX_CPU)
    record("daemon_rss", rss_mib, "MiB", peer="promised at most", peer_value=MAX_RSS_MIB)
    p99 = percentile(delays, 99) * 1e3
    record("daemon_request_median", percentile(delays, 50) * 1e3, "ms")
    record("daemon_request_p99", p99, "ms", peer="promised at most", peer_value=MAX_P99_MS)
    if cpu > MAX_CPU or rss_mib > MAX_RSS_MIB or p99 > MAX_P99_MS:
        raise RuntimeError(f"promise broken: {cpu:.3f} of a core, {rss_mib:.0f} MiB, request p99 {p99:.0f} ms")


def percentile(ordered: list[float], share: int) -> float:
    """Pick a percentile of sorted numbers."""
    return ordered[min(len(ordered) - 1, len(ordered) * share // 100)]


def measured(config: str, environment: dict[str, str]) -> tuple[float, float, list[float]]:
    """Share of a core, resident MiB, and sorted seconds from record to request, of a sidecar under load."""
    with tempfile.TemporaryDirectory() as folder, sidecar(Path(folder), config, environment) as pid:
        rings = Path(folder) / "rings"
        pusher = subprocess.Popen([sys.executable, "-c", PUSH, str(rings)], stdout=subprocess.PIPE)
        try:
            assert pusher.stdout is not None
            pusher.stdout.readline()
            wait_for_claim(run_dir(rings, "bench"))
            time.sleep(SETTLE_SECONDS)
            cpu, rss_mib = _usage(pid)
        finally:
            pusher.kill()
            pusher.communicate(timeout=10)
        delays = sorted(_delays(rings))
    return cpu, rss_mib, delays


@contextmanager
def sidecar(folder: Path, settings: str, more: dict[str, str]) -> Iterator[int]:
    """Run the sidecar as a user would, with directories of its own."""
    (folder / "rings").mkdir()
    config = folder / "sentinel.yaml"
    config.write_text(settings)
    own = {"GRPO_SENTINEL_DIR": str(folder / "rings"), "XDG_STATE_HOME": str(folder / "state")}
    environment = {**os.environ, **more, **own}
    process = subprocess.Popen(
        [sys.executable, "-m", "grpo_sentinel.cli", "run", "--config", str(config)],
        env=environment, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def wait_for_claim(directory: Path) -> None:
    limit = time.monotonic() + 30
    while read_note(directory) is None:
        if time.monotonic() > limit:
            raise RuntimeError("the daemon did not take up the run within 30 s")
        time.sleep(0.002)


def _usage(pid: int) -> tuple[float, float]:
    """Share of a core over SECONDS, and resident MiB, as the kernel counts them."""
    begun, used = time.monotonic(), _cpu_seconds(pid)
    time.sleep(SECONDS)
    share = (_cpu_seconds(pid) - used) / (time.monotonic() - begun)
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return share, pages * os.sysconf("SC_PAGESIZE") / 2**20


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _delays(rings: Path) -> list[float]:
    """Seconds from a push that breaks a bound to the control file, each in a run of its own."""
    good = {"gradient.nonfinite_tensors": 0.0, "gradient.norm_preclip": 1.0, "optimizer.nonfinite_weights": 0.0}
    bad = {"gradient.nonfinite_tensors": 1.0, "gradient.norm_preclip": float("nan"), "optimizer.step_skipped": 1.0}
    delays = []
    for number in range(REQUESTS):
        directory = run_dir(rings, f"quick-{number}")
        writer = RankWriter(directory, new_identity(0, 0, 1, directory.name))
        wait_for_claim(directory)
        step = 0
        for values in (good, good, good, bad, bad):
            step += 1
            writer.push(values, step=step)
            time.sleep(0.045 + 0.0007 * number)  # drifts against the daemon's 30 ms
        control = directory / "control"
        writer.push(bad, step=step + 1)
        pushed = time.monotonic()
        while not control.exists():
            if time.monotonic() - pushed > 5:
                raise RuntimeError("the third non-finite gradient made no request within 5 s")
            time.sleep(0.0005)
        delays.append(time.monotonic() - pushed)
        writer.close()
    return delays


if __name__ == "__main__":
    from benchmarks.record import record as store

    main(store)
