"""The fan-out never waits for a sink, keeps sinks apart, loses in a counted way, and always ends."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from bad_sinks import BadAtTheEdges, Failing, Gated, Good, eventually
from sentinel_batches import batch, record

from grpo_sentinel.clock import ManualClock
from grpo_sentinel.config import QueueConfig
from grpo_sentinel.sinks import FanOut, SinkState
from grpo_sentinel.sinks import worker as worker_module


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch):
    monkeypatch.setattr(worker_module, "MAX_BACKOFF_SECONDS", 0.05)
    monkeypatch.setattr(worker_module, "TICK_SECONDS", 0.02)


def steps(sink: Good) -> list[int]:
    return [b.records[0].step for b in sink.batches]


def test_every_batch_reaches_every_sink_in_order_on_a_thread_of_its_own():
    one, two = [], []
    fan_out = FanOut({"one": lambda: one.append(Good()) or one[0], "two": lambda: two.append(Good()) or two[0]})
    for step in range(1, 101):
        fan_out.publish(batch(record(step)))
    report = fan_out.close(10)
    assert steps(one[0]) == steps(two[0]) == list(range(1, 101))
    assert (one[0].threads, two[0].threads) == ({"sink-one"}, {"sink-two"})
    assert one[0].closed
    assert (report["one"].written, report["one"].state, report["one"].own) == (100, SinkState.CLOSED, {"kept": 100.0})


def test_a_hanging_sink_is_named_and_costs_the_others_nothing():
    stuck, good, clock = Gated(), Good(), ManualClock()
    fan_out = FanOut({"stuck": lambda: stuck, "good": lambda: good}, QueueConfig(size=10, timeout_seconds=5), clock)
    fan_out.publish(batch(record(0)))
    assert stuck.entered.wait(20)
    assert fan_out.report()["stuck"].state is SinkState.RUNNING
    clock.advance(6)
    assert fan_out.report()["stuck"].state is SinkState.HANGING
    assert fan_out.health()["sink_hanging[sink=stuck]"] == 1
    assert fan_out.report()["stuck"].lag_seconds == pytest.approx(6)
    for step in range(1, 51):
        fan_out.publish(batch(record(step)))
        eventually(lambda step=step: len(good.batches) == step + 1, "the good sink got it")
    report = fan_out.report()["stuck"]
    assert dict(report.dropped) == {"queue_full": 0, "failed": 0, "timeout": 40, "closing": 0}
    stuck.gate.set()  # it comes back: what was kept is the newest
    eventually(lambda: len(stuck.batches) == 11, "the rest was written")
    assert steps(stuck) == [0, *range(41, 51)]
    assert fan_out.report()["stuck"].state is SinkState.RUNNING
    fan_out.close(10)


def test_closing_is_bounded_by_its_limit_when_a_sink_hangs():
    stuck, good = Gated(), Good()
    fan_out = FanOut({"stuck": lambda: stuck, "good": lambda: good})
    for step in range(5):
        fan_out.publish(batch(record(step)))
    assert stuck.entered.wait(20)
    started = time.monotonic()
    report = fan_out.close(0.3)
    assert time.monotonic() - started < 5
    assert good.closed
    assert report["good"].written == 5
    assert report["stuck"].dropped["timeout"] == 5  # the one in its hands and the four behind it
    stuck.gate.set()


def test_a_process_with_a_hanging_sink_exits():
    program = """
import threading
from grpo_sentinel.sinks import FanOut
from grpo_sentinel.views import SinkBatch
entered = threading.Event()
class Stuck:
    def write(self, batch):
        entered.set()
        threading.Event().wait()
    def close(self): pass
fan_out = FanOut({"stuck": Stuck})
fan_out.publish(SinkBatch(run_id="r", node="n", wall_ns=1))
assert entered.wait(20)
fan_out.close(0.2)
print("left", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr


def test_flooding_keeps_the_newest_batches_and_never_waits():
    slow = Gated()
    fan_out = FanOut({"slow": lambda: slow}, QueueConfig(size=100))
    fan_out.publish(batch(record(0)))
    assert slow.entered.wait(20)
    started = time.monotonic()
    for step in range(1, 20_001):
        fan_out.publish(batch(record(step)))
    assert time.monotonic() - started < 20  # makes 20,000 batches as well; a wait per batch would take minutes
    report = fan_out.report()["slow"]
    assert (report.queued, report.dropped["queue_full"]) == (100, 19_900)
    slow.gate.set()
    fan_out.close(20)
    assert steps(slow) == [0, *range(19_901, 20_001)]


def test_a_write_that_fails_now_and_then_is_tried_again_and_nothing_is_lost():
    flaky = Failing(failures=3)
    fan_out = FanOut({"flaky": lambda: flaky}, QueueConfig(retries=3))
    for step in range(1, 6):
        fan_out.publish(batch(record(step)))
    report = fan_out.close(10)["flaky"]
    assert steps(flaky) == [1, 2, 3, 4, 5]
    assert (report.errors, report.written, report.error) == (3, 5, "OSError: no room")
    assert sum(report.dropped.values()) == 0


def test_a_sink_that_keeps_failing_is_closed_and_made_anew_by_its_factory():
    made: list[Failing] = []

    def make() -> Failing:
        made.append(Failing(failures=0 if len(made) >= 2 else float("inf")))
        return made[-1]

    fan_out = FanOut({"broken": make}, QueueConfig(retries=1))
    for step in range(1, 11):
        fan_out.publish(batch(record(step)))
    eventually(lambda: fan_out.report()["broken"].written == 6, "the third sink took the rest")
    report = fan_out.close(10)["broken"]
    assert steps(made[2]) == [5, 6, 7, 8, 9, 10]
    assert made[0].closed
    assert made[1].closed
    assert (report.dropped["failed"], report.restarts) == (4, 2)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, MemoryError, GeneratorExit])
def test_a_sink_cannot_end_its_thread_with_any_exception(error):
    dying = Failing(failures=2, error=error)
    fan_out = FanOut({"dying": lambda: dying}, QueueConfig(retries=3))
    fan_out.publish(batch(record(1)))
    report = fan_out.close(10)["dying"]
    assert steps(dying) == [1]
    assert report.errors == 2


def test_a_sink_that_cannot_be_made_is_tried_again_and_gets_what_waited():
    tries: list[Good] = []

    def make() -> Good:
        tries.append(Good())
        if len(tries) < 4:
            raise OSError("the disk is not there yet")
        return tries[-1]

    fan_out = FanOut({"late": make}, QueueConfig(size=5))
    for step in range(1, 4):
        fan_out.publish(batch(record(step)))
    eventually(lambda: fan_out.report()["late"].written == 3, "it was made in the end")
    assert fan_out.close(10)["late"].errors == 3
    assert steps(tries[-1]) == [1, 2, 3]


def test_what_does_not_fit_while_a_sink_is_down_counts_as_failed():
    def make() -> Good:
        raise OSError("never")

    fan_out = FanOut({"down": make}, QueueConfig(size=5))
    eventually(lambda: fan_out.report()["down"].state is SinkState.FAILED, "it failed")
    for step in range(1, 21):
        fan_out.publish(batch(record(step)))
    report = fan_out.close(0.1)["down"]
    assert report.dropped["failed"] == 15
    assert report.dropped["closing"] == 5
    assert report.error == "OSError: never"


def test_trouble_in_close_tick_and_health_is_counted_and_goes_no_further():
    bad = BadAtTheEdges()
    fan_out = FanOut({"bad": lambda: bad})
    fan_out.publish(batch(record(1)))
    eventually(lambda: fan_out.report()["bad"].errors >= 2, "tick and health raised")
    report = fan_out.close(10)["bad"]
    assert report.written == 1
    assert report.state is SinkState.CLOSED


def test_tick_is_called_while_no_batch_comes():
    ticked = threading.Event()

    class Ticking(Good):
        def tick(self) -> None:
            ticked.set()

    fan_out = FanOut({"ticking": Ticking})
    assert ticked.wait(20)
    fan_out.close(10)


def test_health_is_flat_and_complete():
    fan_out = FanOut({"one": Good})
    fan_out.publish(batch(record(1)))
    eventually(lambda: fan_out.health().get("sink_one_kept") == 1, "its own figures are shown")
    assert set(fan_out.health()) == {
        "sink_written_total[sink=one]", "sink_errors_total[sink=one]", "sink_restarts_total[sink=one]",
        "sink_queued_batches[sink=one]", "sink_lag_seconds[sink=one]", "sink_up[sink=one]", "sink_hanging[sink=one]",
        "sink_dropped_total[sink=one,reason=queue_full]", "sink_dropped_total[sink=one,reason=failed]",
        "sink_dropped_total[sink=one,reason=timeout]", "sink_dropped_total[sink=one,reason=closing]", "sink_one_kept",
    }  # fmt: skip
    fan_out.close(10)
    fan_out.publish(batch(record(2)))  # after the end: nothing, and no error
    assert fan_out.report()["one"].written == 1


def test_a_name_that_nobody_offers_is_refused_with_the_known_ones():
    from grpo_sentinel.errors import ConfigError
    from grpo_sentinel.sinks import load_factory

    with pytest.raises(ConfigError, match=r"no sink named 'nothing'; known are .*history, .*prometheus"):
        load_factory("nothing")


def test_a_sink_from_another_package_is_found_by_its_entry_point(tmp_path, monkeypatch):
    from grpo_sentinel.sinks import load_factory

    info = tmp_path / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[grpo_sentinel.sinks]\nelsewhere = elsewhere_sink:make\nlost = no_such_module:x\n"
    )
    (tmp_path / "elsewhere_sink.py").write_text("def make(context):\n    return ('made', context)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_factory("elsewhere")("context") == ("made", "context")
    with pytest.raises(Exception, match="the sink 'lost' cannot be loaded"):
        load_factory("lost")


def test_importing_the_fan_out_loads_no_web_server_and_no_torch():
    program = (
        "import sys, grpo_sentinel.sinks; print([m for m in ('torch', 'starlette', 'uvicorn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
    assert Path(worker_module.__file__).exists()


def test_a_sink_that_says_what_is_wrong_is_shown_as_degraded_until_it_is_well():
    class Cut(Good):
        wrong = "the server refuses"

        def problem(self) -> str:
            return self.wrong

    cut = Cut()
    fan_out = FanOut({"cut": lambda: cut})
    eventually(lambda: fan_out.report()["cut"].state is SinkState.DEGRADED, "it said so")
    assert fan_out.report()["cut"].error == "the server refuses"
    assert fan_out.health()["sink_up[sink=cut]"] == 0
    cut.wrong = ""
    eventually(lambda: fan_out.report()["cut"].state is SinkState.RUNNING, "it is well again")
    fan_out.close(10)
