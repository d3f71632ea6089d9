"""The other way into W&B: the trainer's own run scrapes /metrics, with the real client and the real end point."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from sentinel_batches import RUN, status
from wandb_stand_in import records

from grpo_sentinel.clock import SystemClock
from grpo_sentinel.sinks import MetricsRenderer
from grpo_sentinel.views import Snapshot
from grpo_sentinel.web.app import build_app
from grpo_sentinel.web.server import WebServer
from grpo_sentinel.web.state import WebState

TRAINER = """
import time, wandb
run = wandb.init(project="p", settings=wandb.Settings(x_stats_sampling_interval=0.5))
for step in range(6):
    run.log({"loss": step}, step=step)
    time.sleep(0.5)
run.finish()
"""


@pytest.mark.slow
def test_the_trainers_run_holds_our_series_as_system_metrics_by_time_with_labels_as_numbers(tmp_path):
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2 as proto

    now = SystemClock().wall_ns()
    ranks = {rank: status(rank, updated_wall_ns=now, values={"policy.loss": 0.5 + rank}) for rank in (0, 1)}
    snapshot = Snapshot(run_id=RUN, node="node-a", wall_ns=now, ranks=ranks)
    renderer = MetricsRenderer()
    state = WebState(
        snapshots=dict, problems=list, act=lambda *_: 0, act_token="t" * 20,
        metrics=lambda accept: renderer.render(accept, [snapshot]),
    )  # fmt: skip
    server = WebServer(build_app(state), "127.0.0.1", 0)
    server.start()
    try:
        environment = {
            **os.environ, "WANDB_API_KEY": "0" * 40, "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true",
            "WANDB_X_STATS_OPEN_METRICS_ENDPOINTS": json.dumps({"sentinel": f"{server.url}/metrics"}),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", TRAINER], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
    finally:
        assert server.stop(10)
    (path,) = tmp_path.rglob("*.wandb")
    found = [proto.Record.FromString(data) for data in records(path.read_bytes())]
    stats = {
        item.key: float(item.value_json)
        for one in found
        if one.WhichOneof("record_type") == "stats"
        for item in one.stats.item
    }
    prefix = "openmetrics.sentinel.grpo_sentinel_policy_loss"
    assert {stats[f"{prefix}.0"], stats[f"{prefix}.1"]} == {0.5, 1.5}  # which rank is which is not said
