"""A tracker's process may hang, die, refuse, flood and linger: the sidecar waits for nothing and counts what is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from bad_sinks import eventually
from sentinel_batches import batch, finding, record

from grpo_sentinel.clock import ManualClock, SystemClock
from grpo_sentinel.sinks import child_process
from grpo_sentinel.sinks.child import plain_text
from grpo_sentinel.sinks.child_process import ChildSink
from grpo_sentinel.sinks.child_spool import Spool

FAKE = Path(__file__).with_name("fake_tracker.py")
LOST = ("spool_full", "poison", "rejected", "closing")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("grpo_sentinel.sinks.notify_sender.FIRST_BACKOFF_SECONDS", 0.02)
    monkeypatch.setattr("grpo_sentinel.sinks.notify_sender.MAX_BACKOFF_SECONDS", 0.1)


@pytest.fixture
def taken(tmp_path):
    path = tmp_path / "taken"
    path.touch()
    return path


@pytest.fixture
def make(taken):
    made = []

    def make_one(mode, **changes):
        command = [sys.executable, str(FAKE), str(taken), mode]
        made.append(ChildSink("fake", {}, changes.pop("clock", SystemClock()), command=command, **changes))
        return made[-1]

    yield make_one
    for sink in made:
        sink.close()


def lost(sink):
    return {reason: sink.health()[f"lost_total[reason={reason}]"] for reason in LOST}


def until(sink, condition, what):
    def ticked():
        sink.tick()
        return condition()

    eventually(ticked, what, 60)


def test_lines_arrive_in_order_and_are_acknowledged(make, taken):
    sink = make("well")
    for step in range(1, 101):
        sink.write(batch(record(step)))
    sink.write(batch(findings=(finding(),)))
    until(sink, lambda: sink.health()["lines_total"] == 101, "all lines were done")
    sink.close()
    assert taken.read_text().splitlines() == [*(f"metrics {step}" for step in range(1, 101)), "finding 13", "closed"]
    assert sink.health()["spool_bytes"] == 0
    assert sum(lost(sink).values()) == 0


def test_closing_hands_over_what_waits_even_when_the_child_has_only_just_begun(make, taken):
    sink = make("well", exit_seconds=30)
    for step in range(1, 51):
        sink.write(batch(record(step)))
    sink.close()
    assert taken.read_text().splitlines()[-2:] == ["metrics 50", "closed"]
    assert sum(lost(sink).values()) == 0


def test_a_child_that_hangs_costs_no_time_and_bounded_memory_and_is_killed_at_the_end(make):
    sink = make("hang", spool_bytes=65536, exit_seconds=1)
    sink.write(batch(record(1)))
    until(sink, lambda: sink._ready, "it began")
    slowest = 0.0
    for step in range(2, 3001):
        began = time.monotonic()
        sink.write(batch(record(step)))
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < 1
    assert sink.health()["spool_bytes"] <= 65536 + 1000
    pid, waiting = sink._process.pid, len(sink._spool)
    began = time.monotonic()
    sink.close()
    assert time.monotonic() - began < 5
    assert not psutil.pid_exists(pid)
    assert lost(sink) == {"spool_full": 3000 - waiting, "poison": 0, "rejected": 0, "closing": waiting}


def test_a_child_that_hangs_too_long_is_started_anew(make):
    clock = ManualClock()
    sink = make("hang", clock=clock, exit_seconds=0.2)
    sink.write(batch(record(1)))
    until(sink, lambda: sink._spool.flying == 1, "it has the line")
    first = sink._process.pid
    clock.advance(child_process.HANG_SECONDS + 1)
    sink.tick()
    assert "no sign" in sink.problem()
    assert not psutil.pid_exists(first)
    clock.advance(100)
    until(sink, lambda: sink._spool.flying == 1, "its successor has the line")
    assert sink.health()["starts_total"] == 2


def test_a_child_that_dies_again_and_again_gets_every_line_in_the_end(make, taken):
    sink = make("dies every fifth")
    for step in range(1, 13):
        sink.write(batch(record(step)))
    until(sink, lambda: sink.health()["lines_total"] == 12, "all lines were done")
    steps = [int(line.split()[1]) for line in taken.read_text().splitlines()]
    assert sorted(set(steps)) == list(range(1, 13))
    assert sink.health()["deaths_total"] == 2
    assert sum(lost(sink).values()) == 0


def test_a_child_that_is_killed_is_replaced(make, taken):
    sink = make("well")
    sink.write(batch(record(1)))
    until(sink, lambda: sink.health()["lines_total"] == 1, "the first line was done")
    os.kill(sink._process.pid, signal.SIGKILL)
    until(sink, lambda: sink._process is None, "its death was noticed")
    assert "ended with -9" in sink.problem()
    sink.write(batch(record(2)))
    until(sink, lambda: sink.health()["lines_total"] == 2, "its successor took the next")
    assert sink.problem() == ""


def test_a_line_that_ends_the_child_every_time_is_given_up_and_counted(make, taken):
    sink = make("poison")
    for step in range(1, 6):
        sink.write(batch(record(step)))
    until(sink, lambda: sink.health()["lines_total"] == 4, "the others were done")
    assert [line for line in taken.read_text().splitlines() if line != "metrics 3"] == [
        "metrics 1", "metrics 2", "metrics 4", "metrics 5",
    ]  # fmt: skip
    assert lost(sink)["poison"] == 1


def test_a_tracker_that_is_down_is_named_without_its_credentials_and_nothing_is_lost(make, taken):
    sink = make("down at first")
    sink.write(batch(record(1)))
    until(sink, lambda: sink.problem(), "it said so")
    assert sink.problem() == "http://(removed)@host refused"
    until(sink, lambda: sink.health()["lines_total"] == 1, "it came back")
    assert sink.problem() == ""


def test_a_tracker_that_stays_down_bounds_the_exit(make):
    sink = make("down", exit_seconds=1)
    sink.write(batch(record(1)))
    until(sink, lambda: sink.problem(), "it said so")
    began = time.monotonic()
    sink.close()
    assert time.monotonic() - began < 5
    assert lost(sink)["closing"] == 1


def test_a_child_that_hangs_at_the_end_bounds_the_exit_and_what_was_done_is_done(make):
    sink = make("hangs at the end", exit_seconds=1)
    sink.write(batch(record(1)))
    until(sink, lambda: sink.health()["lines_total"] == 1, "the line was done")
    began = time.monotonic()
    sink.close()
    assert time.monotonic() - began < 5
    assert lost(sink)["closing"] == 0


def test_a_child_that_floods_its_outputs_blocks_nobody(make):
    sink = make("noise")
    for step in range(1, 6):
        sink.write(batch(record(step)))
    until(sink, lambda: sink.health()["lines_total"] == 5, "all lines were done")
    assert len(sink._stderr) <= child_process.MAX_STDERR


def test_a_client_that_is_not_installed_is_named_with_the_remedy_and_lines_wait(make):
    sink = make("cannot be loaded", exit_seconds=1)
    sink.write(batch(record(1)))
    until(sink, lambda: sink.health()["deaths_total"] >= 4, "it was tried again")
    assert sink.problem().endswith("pip install '.[fake]'")
    assert lost(sink) == dict.fromkeys(LOST, 0)


def test_a_program_that_is_not_there_is_said(taken):
    sink = ChildSink("fake", {}, SystemClock(), command=["/nothing/of/that/name"])
    sink.write(batch(record(1)))
    assert "cannot be started" in sink.problem()
    sink.close()


def test_what_a_child_started_goes_with_it(make, taken):
    sink = make("leaves a child")
    sink.write(batch(record(1)))
    until(sink, lambda: sink.health()["lines_total"] == 1, "the line was done")
    pid = int(Path(f"{taken}.pid").read_text())
    assert psutil.pid_exists(pid)
    sink.close()
    eventually(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", "it has gone")


@pytest.mark.parametrize("mode", ["well", "hangs at the end", "down"])
def test_a_child_does_not_outlive_a_killed_parent(taken, mode):
    program = f"""
import sys, time
from pathlib import Path
from sentinel_batches import batch, record
from grpo_sentinel.clock import SystemClock
from grpo_sentinel.sinks.child_process import ChildSink
sink = ChildSink("fake", {{}}, SystemClock(), exit_seconds=1, command={[sys.executable, str(FAKE), str(taken), mode]!r})
sink.write(batch(record(1)))
while not sink.health()["lines_total"] and not sink.problem():
    sink.tick()
    time.sleep(0.01)
print(sink._process.pid, flush=True)
time.sleep(3600)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FAKE.parent), *sys.path])}
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment)
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait(30)
    parent.stdout.close()
    eventually(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", "the child has gone")


def test_only_the_first_rank_is_sent_when_asked_so(make, taken):
    sink = make("well", ranks="first")
    sink.write(batch(record(1, rank=1), cursors={0: None}))
    sink.write(batch(record(2, rank=0), record(2, rank=1)))
    until(sink, lambda: sink.health()["lines_total"] == 1, "one line was done")
    assert taken.read_text() == "metrics 2\n"


def test_a_spool_drops_the_oldest_that_wait_and_keeps_what_flies():
    spool = Spool(30)
    for letter in "abc":
        spool.next_number()
        spool.add(letter.encode() * 10)
    assert spool.take() == b"a" * 10
    spool.next_number()
    spool.add(b"d" * 10)
    assert (spool.lost["spool_full"], spool.size) == (1, 30)
    spool.back()
    assert [spool.take()[:1] for _ in range(3)] == [b"a", b"c", b"d"]
    assert spool.done(3)
    assert (spool.flying, spool.size) == (1, 10)


def test_credentials_in_a_url_do_not_get_into_a_text():
    assert (
        plain_text("failed: https://user:pass@host/api and http://h/x")
        == "failed: https://(removed)@host/api and http://h/x"
    )
