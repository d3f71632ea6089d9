"""What every sink that ships must do, whichever it is."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from sentinel_batches import RUN, batch, event, finding, record, sample
from stand_in import serving

from grpo_sentinel.clock import ManualClock
from grpo_sentinel.config import QueueConfig, SinksConfig
from grpo_sentinel.records import Action, HaltState
from grpo_sentinel.sinks import BUILT_IN, FanOut, SinkContext, SinkState, child_process, load_factory
from grpo_sentinel.sinks.base import enabled
from grpo_sentinel.views import HaltStatus, SinkBatch


@pytest.fixture(params=BUILT_IN)
def make(request, tmp_path, monkeypatch):
    if request.param == "notify":
        pytest.importorskip("apprise")
    with serving() as server:
        config = SinksConfig.model_validate({"alertmanager": {"url": server.url}})
        monkeypatch.setenv("GRPO_SENTINEL_WEBHOOK_URL", server.url)
        monkeypatch.setenv("GRPO_SENTINEL_NOTIFY_URLS", server.url.replace("http://", "json://"))
        fake = Path(__file__).with_name("fake_tracker.py")
        monkeypatch.setattr(child_process, "COMMAND", (sys.executable, str(fake), str(tmp_path / "taken"), "well"))
        context = SinkContext(run_id=RUN, node="node-a", state_dir=tmp_path, clock=ManualClock(), config=config)
        yield lambda: load_factory(request.param)(context)


BATCHES = {
    "empty": SinkBatch(run_id=RUN, node="node-a", wall_ns=0),
    "records": batch(record(1), record(1, rank=1)),
    "not finite": batch(record(1, values={"a": math.nan, "b": math.inf, "c": -math.inf})),
    "unknown names": batch(record(1, values={"no layer at all": 1.0, "x[y]": 2.0, "reward.func_mean[a\nb\"c\\]": 3.0})),
    "surrogates": batch(record(1, values={"x[\ud800]": 1.0}), events=(event(1, body={"text": "\udcff"}),)),
    "no values": batch(record(1, values={})),
    "huge numbers": batch(record(2**63 - 1, sequence=2**64 - 1)),
    "everything": batch(
        record(1), events=(event(1),), findings=(finding(value=math.nan),), samples=(sample(),),
        halt=HaltStatus(request_id=1, state=HaltState.REQUESTED, action=Action.HALT_NOW),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHES)
def test_it_takes_every_shape_of_batch(make, name):
    sink = make()
    sink.write(BATCHES[name])
    sink.write(BATCHES[name])
    sink.close()


def test_it_closes_twice_and_without_a_single_batch(make):
    sink = make()
    sink.close()
    sink.close()


def test_it_can_be_made_again_after_a_close(make):
    for step in (1, 2):
        sink = make()
        sink.write(batch(record(step)))
        sink.close()


def test_behind_the_fan_out_it_takes_a_flood_and_drops_nothing_uncounted(make):
    fan_out = FanOut({"sink": make}, QueueConfig(size=10_000))
    for step in range(1, 2001):
        fan_out.publish(batch(record(step)))
    report = fan_out.close(60)["sink"]
    assert report.state is SinkState.CLOSED
    assert report.written + sum(report.dropped.values()) == 2000
    assert report.errors == 0


def test_only_history_and_metrics_are_on_unless_others_are_asked_for():
    assert enabled(SinksConfig()) == ["history", "prometheus"]
    assert enabled(SinksConfig.model_validate({name: {"enabled": True} for name in BUILT_IN})) == list(BUILT_IN)
