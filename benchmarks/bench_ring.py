"""What else the ring costs: in the trainer a phase stamp, a look at the control file, an event; in the daemon a poll.

Promise: polling 8 ranks with 10 records of 64 signals a second takes well under the daemon's tenth of a core.
CPU time, so that other processes on the machine count little.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from grpo_sentinel.protocol import ControlReader, Cursor, RankReader, RankWriter, new_identity, write_control
from grpo_sentinel.records import ControlWord, Phase

RANKS, RECORDS_PER_SECOND, POLLS_PER_SECOND, SECONDS = 8, 10, 33, 10
EVENT = {"type": "ValueError", "message": "loss is nan", "traceback": "  File 'train.py', line 1, in step\n" * 20}


def main(record: Callable[..., None]) -> None:
    """Measure and hand over the figures."""
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory)
        writers = [RankWriter(run, new_identity(rank, rank, RANKS, "bench")) for rank in range(RANKS)]
        readers = [RankReader(writer.path) for writer in writers]
        write_control(run, ControlWord(request_id=1))
        control = ControlReader(run)
        record("ring_phase", _each(lambda: writers[0].phase(Phase.FORWARD, 1)), "µs")
        record("ring_event", _each(lambda: writers[0].event("exception", EVENT, step=1)), "µs")
        record("ring_control_read", _each(control.read), "µs")
        record("ring_liveness", _each(readers[0].liveness), "µs")
        share, per_record = _poll(writers, readers)
        record("ring_poll_8_ranks_cpu", share, "share of a core")
        record("ring_poll_cpu_per_record", per_record, "µs")
        for one in (*readers, *writers, control):
            one.close()
    if share > 0.05:
        raise RuntimeError(f"polling 8 ranks takes {share:.1%} of a core, promised are 5 %")


def _each(call: Callable[[], object], repeats: int = 2000) -> float:
    """Median microseconds of one call."""
    spent = []
    for _ in range(repeats):
        begun = time.perf_counter_ns()
        call()
        spent.append(time.perf_counter_ns() - begun)
    return statistics.median(spent) / 1e3


def _poll(writers: list[RankWriter], readers: list[RankReader]) -> tuple[float, float]:
    """CPU time of `SECONDS` seconds of the daemon's polling, played without waiting; (share of a core, µs a record)."""
    values = {f"policy.signal_{number}": number / 7 for number in range(64)}
    cursors = [Cursor()] * len(readers)
    spent = records = 0
    for turn in range(POLLS_PER_SECOND * SECONDS):
        if turn * RECORDS_PER_SECOND // POLLS_PER_SECOND != (turn - 1) * RECORDS_PER_SECOND // POLLS_PER_SECOND:
            for writer in writers:
                writer.push(values, step=turn + 1)
        begun = time.process_time_ns()
        for number, reader in enumerate(readers):
            batch = reader.poll(cursors[number])
            cursors[number] = batch.cursor
            records += len(batch.records)
            reader.heartbeat()
            reader.liveness()
        spent += time.process_time_ns() - begun
    if records != RANKS * RECORDS_PER_SECOND * SECONDS:
        raise RuntimeError(f"{records} records came out")
    return spent / 1e9 / SECONDS, spent / 1e3 / records


if __name__ == "__main__":
    from benchmarks.record import record as store

    main(store)
