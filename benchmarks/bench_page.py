"""The page over a week and over four weeks of history: 8 ranks, a step every 5 s; opening it and every query it makes.

The week (968,000 records of ten signals) is written once, about a minute, and kept in build/page_week.sqlite for the
next time. The four weeks are that week four times, without its rollups: a writer folds them again, as it does with an
older file. A third file holds fewer steps of as many signals as a run has. The server is the real one; the page is
opened in Chromium where that and Playwright are installed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import random
import shutil
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

from benchmarks.record import BENCH_JSON
from grpo_sentinel.clock import ManualClock
from grpo_sentinel.history import HistoryReader, HistoryStore
from grpo_sentinel.records import Heartbeat, Kind, Liveness, Mode, Phase, RankIdentity, StepRecord
from grpo_sentinel.views import RankStatus, SinkBatch, Snapshot
from grpo_sentinel.web import WebServer, WebState, build_app

RUN, RANKS, STEPS, STEP_NS = "week", 8, 120_960, 5_000_000_000
CHUNK = 600
WEEKS = 4
WIDE_STEPS = 6000
ROUNDS, OPENINGS = 5, 9
LIMIT_QUERY_MS, LIMIT_OPEN_MS = 100.0, 1000.0
LIMIT_GROWTH = 2.0  # the levels of the history are 8 apart, so that a query may read more of one length than of another
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage")  # fmt: skip
START_NS = 1_700_000_000_000_000_000
# The browser's own clock from the navigation on: a driver that polls for an element may look half a second late.
WHEN_DRAWN = """
const drawn = () => { document.documentElement.dataset.drawnAfter = performance.now(); };
new MutationObserver((_, watch) => {
  const chart = document.querySelector("#chart[data-points]"), heat = document.querySelector("#heat[data-rows]");
  if (!chart || !heat || heat.dataset.rows === "0") return;
  watch.disconnect();
  requestAnimationFrame(() => requestAnimationFrame(drawn));
}).observe(document, { subtree: true, childList: true, attributes: true });
"""


def values(rank: int, step: int, noise: random.Random) -> dict[str, float]:
    """Ten signals; rank 5 spikes once, rank 3 has a NaN once: a week later both must still be seen."""
    spike = rank == 5 and step == 70_001
    return {
        "policy.loss": 0.1 + 0.02 * noise.random(),
        "policy.entropy_nats": 1.5 - step * 1e-5 + 0.01 * noise.random(),
        "policy.kl_k3_nats": 0.01 + step * 1e-7 + 0.002 * noise.random(),
        "reward.mean": 0.3 + step * 2e-6 + 0.02 * noise.random(),
        "reward.std": 0.2 + 0.01 * noise.random(),
        "gradient.norm_preclip": math.nan if rank == 3 and step == 40_000 else 1.0 + 0.1 * noise.random(),
        "optimizer.learning_rate": 1e-6,
        "data.completion_length_mean": 200 + 10 * noise.random(),
        "memory.rss_bytes": 4e9 + 1e3 * step,
        "time.step_seconds": 60.0 if spike else 5.0 + 0.1 * noise.random(),
    }


def status(rank: int, last_step: int = STEPS) -> RankStatus:
    """A rank at the end of the run."""
    now = START_NS + last_step * STEP_NS
    identity = RankIdentity(
        run_id=RUN, rank=rank, local_rank=rank, world_size=RANKS, host="node-a", pid=rank, pid_start_ticks=1,
        pid_namespace=1, boot_id="b", created_wall_ns=START_NS,
    )  # fmt: skip
    beat = Heartbeat(step=last_step, phase=Phase.FORWARD, phase_since_wall_ns=now, updated_wall_ns=now)
    return RankStatus(
        identity=identity, heartbeat=beat, liveness=Liveness.ALIVE, last_step=last_step, updated_wall_ns=now,
        values=values(rank, last_step, random.Random(rank)),
    )  # fmt: skip


def week(path: Path) -> Path:
    """Write the history unless it is there; through the real store, in commits as the daemon makes them."""
    if path.exists():
        return path
    draft = path.with_suffix(".draft")
    for suffix in ("", "-wal", "-shm"):
        Path(f"{draft}{suffix}").unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    store, noise = HistoryStore(draft, clock=ManualClock(wall_ns=START_NS)), random.Random(1)
    ranks = {rank: status(rank) for rank in range(RANKS)}
    for first in range(1, STEPS + 1, CHUNK):
        records = tuple(
            StepRecord(
                run_id=RUN, rank=rank, sequence=step, step=step, kind=Kind.STEP, mode=Mode.TRAIN, micro_batch=0,
                generation=0, monotonic_ns=step * STEP_NS, wall_ns=START_NS + step * STEP_NS,
                values=values(rank, step, noise),
            )
            for step in range(first, min(first + CHUNK, STEPS + 1)) for rank in range(RANKS)
        )  # fmt: skip
        wall = records[-1].wall_ns
        snapshot = Snapshot(run_id=RUN, node="node-a", wall_ns=wall, ranks=ranks)
        store.write(SinkBatch(run_id=RUN, node="node-a", wall_ns=wall, records=records, snapshot=snapshot))
        store.flush()
    store.close()
    draft.rename(path)
    return path


def four_weeks(path: Path, one: Path) -> Path:
    """Make the history of four weeks of one, unless it is there; its rollups are left to the next writer."""
    if path.exists():
        return path
    draft = path.with_suffix(".draft")
    for suffix in ("", "-wal", "-shm"):
        Path(f"{draft}{suffix}").unlink(missing_ok=True)
    shutil.copyfile(one, draft)
    _repeat(draft)
    draft.rename(path)
    return path


def rolled_up(path: Path, steps: int) -> float:
    """Let a writer fold what is missing, as after an upgrade; gives the CPU milliseconds of the longest commit."""
    clock = ManualClock(wall_ns=START_NS + steps * STEP_NS)
    store = HistoryStore(path, clock=clock)
    ranks = {rank: status(rank, steps) for rank in range(RANKS)}
    snapshot = Snapshot(run_id=RUN, node="node-a", wall_ns=clock.wall_ns(), ranks=ranks)
    store.write(SinkBatch(run_id=RUN, node="node-a", wall_ns=clock.wall_ns(), snapshot=snapshot))
    worst, commits = 0.0, -1.0
    while commits != (commits := store.health()["commits_total"]):
        begun = time.thread_time()
        clock.advance(2)
        store.tick()
        worst = max(worst, time.thread_time() - begun)
    store.close()
    return worst * 1e3


def wide(path: Path) -> Path:
    """Write some thousand steps of a hundred signals, unless they are there: what every record of them costs."""
    if path.exists():
        return path
    draft, noise = path.with_suffix(".draft"), random.Random(2)
    for suffix in ("", "-wal", "-shm"):
        Path(f"{draft}{suffix}").unlink(missing_ok=True)
    names = ["time.step_seconds", *(f"reward.func_mean[{number}]" for number in range(99))]
    store = HistoryStore(draft, clock=ManualClock(wall_ns=START_NS))
    for first in range(1, WIDE_STEPS, CHUNK):
        records = tuple(
            StepRecord(
                run_id=RUN, rank=rank, sequence=step, step=step, kind=Kind.STEP, mode=Mode.TRAIN, micro_batch=0,
                generation=0, monotonic_ns=step * STEP_NS, wall_ns=START_NS + step * STEP_NS,
                values={name: noise.random() for name in names},
            )
            for step in range(first, first + CHUNK) for rank in range(RANKS)
        )  # fmt: skip
        snapshot = Snapshot(run_id=RUN, node="node-a", ranks={rank: status(rank, first) for rank in range(RANKS)})
        store.write(SinkBatch(run_id=RUN, node="node-a", wall_ns=START_NS, records=records, snapshot=snapshot))
        store.flush()
    store.close()
    draft.rename(path)
    return path


def _repeat(path: Path) -> None:
    columns = "kind, mode, micro_batch, generation, layout, data"
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("BEGIN")
    for turn in range(1, WEEKS):
        raw.execute(
            f"INSERT INTO records (run, rank, step, sequence, wall_ns, monotonic_ns, {columns})"
            f" SELECT run, rank, step + ?, sequence + ?, wall_ns + ?, monotonic_ns + ?, {columns}"
            " FROM records WHERE step <= ? ORDER BY id",
            (turn * STEPS, turn * STEPS, turn * STEPS * STEP_NS, turn * STEPS * STEP_NS, STEPS),
        )
    raw.execute("DELETE FROM rollups WHERE bucket > 0")
    raw.execute("COMMIT")
    raw.close()


@contextlib.contextmanager
def served(path: Path) -> Iterator[WebServer]:
    """Serve the history with the real server, as the daemon does."""
    with HistoryReader(path) as reader:
        snapshot = reader.latest(RUN)
    state = WebState(
        snapshots=lambda: {RUN: snapshot}, problems=list, act=lambda *_: 0, act_token="bench",
        history=lambda: HistoryReader(path),
    )  # fmt: skip
    server = WebServer(build_app(state), "127.0.0.1", 0)
    server.start()
    try:
        yield server
    finally:
        server.stop(10)


def queries() -> dict[str, str]:
    """What the page asks, over the whole run and zoomed in; the worst windows are those on either side of rollups."""
    windows = {
        "whole": {}, "day": {"since": 60_000, "until": 77_280}, "5000 steps": {"since": 60_000, "until": 65_000},
        "3100 steps": {"since": 60_000, "until": 63_100}, "100 steps": {"since": 70_000, "until": 70_100},
    }  # fmt: skip
    out = {"signals": "signals?run=week", "findings": "findings?run=week&all=latest", "heat now": "heat?by=signal"}
    for name, window in windows.items():
        asked = {"run": RUN, "signal": "time.step_seconds", **window}
        out[f"8 series, {name}"] = f"series?{urlencode({**asked, 'ranks': '0,1,2,3,4,5,6,7', 'max_points': 400})}"
        out[f"heat, {name}"] = f"heat?{urlencode({**asked, 'by': 'step', 'columns': 160})}"
    return out


def measure(server: WebServer, path: str) -> tuple[float, float, bytes]:
    """Give the median wall and CPU milliseconds of a query (this process serves), and its answer."""
    walls, cpus, body = [], [], b""
    for _ in range(ROUNDS):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        started, cpu = time.perf_counter(), time.process_time()
        connection.request("GET", f"/api/v1/{path}")
        answer = connection.getresponse()
        body = answer.read()
        walls.append((time.perf_counter() - started) * 1e3)
        cpus.append((time.process_time() - cpu) * 1e3)
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body[:200]!r}")
    return statistics.median(walls), min(cpus), body


def opened(url: str) -> list[float] | None:
    """Milliseconds from asking for the page until verdict, chart and heat map are drawn; None without a browser."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    times = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        for _ in range(OPENINGS):
            page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
            page.add_init_script(WHEN_DRAWN)
            page.goto(url, wait_until="commit")
            page.wait_for_selector("html[data-drawn-after]")
            times.append(float(page.get_attribute("html", "data-drawn-after") or "inf"))
            page.context.close()
        browser.close()
    return times


def main(record: Callable[..., None]) -> None:
    """Measure, record, and hold the promises: every query under 100 ms however long the run, open in under a second."""
    started = time.perf_counter()
    one = week(BENCH_JSON.parent / "page_week.sqlite")
    record("page_week_write", time.perf_counter() - started, "s", peer="0 when it was there already")
    record("page_week_bytes", float(one.stat().st_size), "bytes")
    rolled_up(one, STEPS)
    worst_week = looked_at(record, one, "page_week")
    four = BENCH_JSON.parent / "page_four_weeks.sqlite"
    made = not four.exists()
    folding = rolled_up(four_weeks(four, one), WEEKS * STEPS)
    if made:
        record("page_fold_commit", folding, "ms", peer="CPU of the longest commit that folds what a file lacks")
    worst_four = looked_at(record, four, "page_four_weeks")
    with served(wide(BENCH_JSON.parent / "page_wide.sqlite")) as server:
        asked = {"run": RUN, "signal": "time.step_seconds", "since": 2000, "until": 5100, "max_points": 400}
        wall, cpu, _ = measure(server, f"series?{urlencode({**asked, 'ranks': '0,1,2,3,4,5,6,7'})}")
        record(
            "page_wide_query_cpu", cpu, "ms", peer=f"3100 steps of 8 ranks, 100 signals a record; {wall:.0f} ms wall"
        )
        if cpu > LIMIT_QUERY_MS:
            raise RuntimeError(f"3100 steps of 100 signals cost {cpu:.0f} ms, promised are {LIMIT_QUERY_MS:g} ms")
    growth = {name: worst_four[name] / worst_week[name] for name in worst_four if "whole" in name}
    record("page_query_growth", max(growth.values()), "times", peer="whole run, four weeks against one, CPU")
    record("page_query_growth_worst", max(worst_four.values()) / max(worst_week.values()), "times", peer="worst query")
    if max(worst_four.values()) / max(worst_week.values()) > LIMIT_GROWTH:
        raise RuntimeError(f"the worst query of four weeks costs more than {LIMIT_GROWTH:g} times that of one week")


def looked_at(record: Callable[..., None], path: Path, name: str) -> dict[str, float]:
    """Measure every query of the page on one file, and the page itself; gives processor milliseconds by query."""
    with served(path) as server:
        figures = {asked: measure(server, query) for asked, query in queries().items()}
        spike = json.loads(figures["8 series, whole"][2])["series"][5]
        if max(value for value in spike["high"] if isinstance(value, float)) != 60.0 or len(spike["steps"]) > 400:
            raise RuntimeError("the one slow step of the week is not in the thinned series")
        for asked, (wall, cpu, body) in figures.items():
            print(f"   {asked:24} {wall:7.1f} ms, at least {cpu:6.1f} ms CPU, {len(body):8,} bytes", flush=True)
        worst = max(figures, key=lambda asked: figures[asked][1])
        record(f"{name}_query_worst_cpu", figures[worst][1], "ms", peer=worst)
        record(f"{name}_query_worst", max(wall for wall, _, _ in figures.values()), "ms", peer="median of 5, wall")
        times = opened(server.url)
    if times is not None:
        record(f"{name}_open", min(times), "ms", peer=f"best of {OPENINGS} in Chromium, cold profile")
        record(f"{name}_open_median", statistics.median(times), "ms")
    # the lowest of several: what else runs on the machine only ever adds to it
    if figures[worst][1] > LIMIT_QUERY_MS:
        raise RuntimeError(f"{worst} costs {figures[worst][1]:.0f} ms, promised are {LIMIT_QUERY_MS:g} ms")
    if times is not None and min(times) > LIMIT_OPEN_MS:
        text = f"the page takes {min(times):.0f} ms to open, promised are {LIMIT_OPEN_MS:g} ms"
        if os.getloadavg()[0] < (os.cpu_count() or 1):
            raise RuntimeError(text)
        print(f"   not judged: {text}, but {os.getloadavg()[0]:.0f} processes want {os.cpu_count()} cores", flush=True)
    return {asked: cpu for asked, (_, cpu, _) in figures.items()}
