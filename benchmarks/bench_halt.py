"""From a broken rule to the trainer: how soon the request is readable there, and what an idle halt desk costs a step.

halt_request_readable_*   from the commit of the record that breaks a rule to the trainer's own `ControlReader` giving
                          the request, each in a run of its own, one real sidecar       promised: p99 below 50 ms
halt_idle_per_step        CPU time of the vote with everything around it but the all-reduce: control file read,
                          ballot, tally, outcome, nothing to do                    promised: at most 20 microseconds
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.bench_daemon import CONFIG, percentile, sidecar, wait_for_claim
from grpo_sentinel.agent.core import Core
from grpo_sentinel.agent.halt import HaltDesk
from grpo_sentinel.agent.handshake import Alone
from grpo_sentinel.protocol import ControlReader, RankWriter, new_identity, run_dir, write_control
from grpo_sentinel.records import Action, ControlWord

REQUESTS, BATCH, BATCHES = 60, 500, 40
MAX_P99_MS, MAX_IDLE_US = 50.0, 20.0
_GOOD = {"gradient.nonfinite_tensors": 0.0, "gradient.norm_preclip": 1.0, "optimizer.nonfinite_weights": 0.0}
_BAD = {"gradient.nonfinite_tensors": 1.0, "gradient.norm_preclip": float("nan"), "optimizer.step_skipped": 1.0}


def main(record: Callable[..., None]) -> None:
    """Measure and hand over the figures. Raises `RuntimeError` when a promise is broken."""
    delays = sorted(readable())
    p99, idle = percentile(delays, 99) * 1e3, idle_us()
    record("halt_request_readable_median", percentile(delays, 50) * 1e3, "ms")
    record("halt_request_readable_p99", p99, "ms", peer="promised at most", peer_value=MAX_P99_MS)
    record("halt_idle_per_step", idle, "µs", peer="promised at most", peer_value=MAX_IDLE_US)
    if p99 > MAX_P99_MS or idle > MAX_IDLE_US:
        raise RuntimeError(f"promise broken: request readable p99 {p99:.1f} ms, idle {idle:.1f} µs a step")


def readable() -> list[float]:
    """Seconds from a push that breaks a bound to the trainer reading the request."""
    delays = []
    with tempfile.TemporaryDirectory() as folder, sidecar(Path(folder), CONFIG, {}):
        for number in range(REQUESTS):
            directory = run_dir(Path(folder) / "rings", f"halt-{number}")
            writer = RankWriter(directory, new_identity(0, 0, 1, directory.name))
            wait_for_claim(directory)
            reader = ControlReader(directory)
            for step, values in enumerate((_GOOD, _GOOD, _GOOD, _BAD, _BAD), 1):
                writer.push(values, step=step)
                time.sleep(0.045 + 0.0007 * number)  # drifts against the sidecar's 30 ms
            writer.push(_BAD, step=6)
            pushed = time.monotonic()
            while not _asked(reader):
                if time.monotonic() - pushed > 5:
                    raise RuntimeError("the third non-finite gradient made no request within 5 s")
                time.sleep(0.0005)
            delays.append(time.monotonic() - pushed)
            reader.close()
            writer.close()
    return delays


def _asked(reader: ControlReader) -> bool:
    word = reader.read()
    return word is not None and word.action >= Action.CHECKPOINT


def idle_us() -> float:
    """CPU microseconds of one idle vote of a rank, its control file there and asking for nothing."""
    with tempfile.TemporaryDirectory() as folder:
        write_control(Path(folder), ControlWord(request_id=3))  # what a withdrawn request leaves
        desk = HaltDesk(ControlReader(Path(folder)), lambda ack: None, where=folder)
        core = Core(rank=0, transport=Alone())
        batches = []
        for _ in range(BATCHES):
            started = time.thread_time_ns()
            for step in range(BATCH):
                word = desk.pending()
                outcome = core.decide(1.25, action=int(word.action) if word is not None else 0, digest=12345)
                desk.agreed(outcome.action, outcome.request_id, step)
                desk.verdict(skipped=outcome.skip)
            batches.append((time.thread_time_ns() - started) / BATCH / 1e3)
    return statistics.median(batches)


if __name__ == "__main__":
    from benchmarks.record import record as store

    main(store)
