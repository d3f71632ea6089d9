"""A layer that nothing watches is not called well, in any view."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "sinks"))

from sentinel_batches import sample, status

from grpo_sentinel.cli.rendering import print_snapshot
from grpo_sentinel.cli.top.screen import screen
from grpo_sentinel.cli.top.state import State
from grpo_sentinel.cli.top.trend import Trends
from grpo_sentinel.views import Snapshot, layers_seen
from grpo_sentinel.web.bodies import layers

HOST = {"device.memory_used_ratio": 0.5, "device.host_memory_used_ratio": 0.4}
GPU = {"device.gpu_temperature_celsius": 40.0}


@pytest.mark.parametrize(
    ("values", "watched"),
    [(HOST, False), (HOST | {"device.gpu_count": 0.0}, False), (HOST | {"device.gpu_count": 1.0}, True), (GPU, True)],
)
def test_devices_are_well_only_where_a_device_is_read(values: dict[str, float], watched: bool) -> None:
    snapshot = Snapshot(
        run_id="r", node="n", ranks={0: status(0, values={"reward.mean": 0.5})},
        samples={"x": sample(entity="x", values=values)},
    )  # fmt: skip
    out = io.StringIO()
    print_snapshot(snapshot, "here", Console(file=out, width=200, highlight=False, soft_wrap=True))
    top = "\n".join(line.plain for line in screen(snapshot, "here", State(), Trends(), 120, 30))
    page = {one["layer"]: one["state"] for one in layers(snapshot)}
    word = "ok" if watched else "-"
    assert f"device {word} " in out.getvalue()
    assert f"device {word} " in top
    assert page["device"] == ("ok" if watched else "unknown")
    assert "reward ok " in out.getvalue()
    assert "gradient - " in out.getvalue()


def test_a_layer_whose_probe_is_off_is_not_well() -> None:
    values = {"reward.mean": 0.5, "data.samples": 8.0}
    ranks = {0: status(0, values=values), 1: status(1, values=values | {"sentinel.probe_off[reward]": 1.0})}
    assert "reward" not in layers_seen(Snapshot(run_id="r", node="n", ranks=ranks))
    ranks[1] = status(1, values=values | {"sentinel.probe_off[groups]": 1.0})
    assert layers_seen(Snapshot(run_id="r", node="n", ranks=ranks)) >= {"reward"}
    assert "data" not in layers_seen(Snapshot(run_id="r", node="n", ranks=ranks))
