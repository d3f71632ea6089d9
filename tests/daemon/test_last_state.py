"""The last that is handed on of a run is that its ranks have left."""

from __future__ import annotations

import time
from pathlib import Path

from grpo_sentinel.clock import ManualClock
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.daemon import Daemon
from grpo_sentinel.protocol import RankWriter, new_identity, run_dir
from grpo_sentinel.records import Liveness

RUN = "left"


def test_ranks_that_leave_between_two_looks_are_not_shown_as_alive_for_ever(tmp_path: Path) -> None:
    clock = ManualClock(wall_ns=time.time_ns(), monotonic_ns=10**12)
    body = {
        "state_dir": str(tmp_path / "state"), "http": {"enabled": False},
        "collectors": {"nvml": {"enabled": False}, "host": {"enabled": False}},
    }  # fmt: skip
    daemon = Daemon(Config.model_validate(body), roots=[tmp_path], run_id=RUN, clock=clock)
    writer = RankWriter(run_dir(tmp_path, RUN), new_identity(0, 0, 1, RUN))
    writer.push({"policy.loss": 0.1}, step=1)
    try:
        for seconds in (0.0, 0.15, 0.06):  # the collector judges who lives at 0 and at 0.21 s
            clock.advance(seconds)
            daemon.turn()
        writer.push({"policy.loss": 0.1}, step=2)
        writer.close("halted")
        clock.advance(0.1)
        daemon.turn()  # hands on the last record before the next look
        for _ in range(20):
            clock.advance(0.25)
            daemon.turn()
        (shown,) = daemon.snapshots()[RUN].ranks.values()
        assert (shown.liveness, shown.closed_detail, shown.last_step) == (Liveness.CLOSED, "halted", 2)
    finally:
        daemon.close()
