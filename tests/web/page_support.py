"""A page in real Chromium: the browser, a server over a history of our own making, and what the browser complains of."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sentinel_batches import RUN, WALL_NS, batch, finding, record, sample, status

from grpo_sentinel.clock import ManualClock
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.history import HistoryReader, HistoryStore
from grpo_sentinel.records import Action, Severity
from grpo_sentinel.views import Snapshot
from grpo_sentinel.web import WebServer, WebState, build_app

ACT, READ = "act-token-of-the-page", "read-me-1234"
EVIL = "<img src=x onerror=\"document.body.dataset.evil='1'\">"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, a browser to look with")


@contextmanager
def chromium() -> Iterator[Any]:
    """Start Chromium; skips the test that asks for it where Playwright is not installed."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, which drives the browser")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A tab with its complaints: errors of the console and of scripts, and requests to anybody but the sidecar."""

    def __init__(self, browser: Any, url: str, **context: Any) -> None:
        self.url, self.complaints, self.foreign = url, [], []
        settings = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **context}
        self.page = browser.new_context(**settings).new_page()
        self.page.set_default_timeout(30_000)
        self.page.on("console", lambda message: self._console(message))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._request(request.url))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _request(self, url: str) -> None:
        if not url.startswith((self.url, "blob:", "data:")):
            self.foreign.append(url)

    def open(self, read_token: str = "") -> Any:
        """Load the page and wait until chart and heat map are drawn."""
        self.page.goto(f"{self.url}/#token={read_token}" if read_token else self.url)
        self.page.wait_for_selector("#chart[data-points]")
        return self.page

    def close(self) -> None:
        """Close the tab."""
        self.page.context.close()


def overflow(page: Any) -> int:
    """Pixels by which the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def uplot(page: Any, selector: str = "#chart") -> Mapping[str, str]:
    """What a chart says of itself."""
    return dict(page.eval_on_selector(selector, "element => ({...element.dataset})"))


def whole_note(note: Path) -> dict[str, Any] | None:
    """What a daemon says of itself, once all of it is written."""
    try:
        told = json.loads(note.read_text())
    except (OSError, ValueError):
        return None
    return told if told.get("url") else None


def until(look: Any, what: str, seconds: float = 60.0) -> Any:
    """Look again and again until it gives something true; fails after `seconds`."""
    limit = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < limit, what
        time.sleep(0.02)
    return found


class Shown:
    """A sidecar's worth of state: eight ranks over `steps` steps, rank 5 with a NaN gradient from step 300 on."""

    RANKS = 8

    def __init__(self, tmp_path: Path, steps: int = 400) -> None:
        self.asked: list[tuple[str, Action, str]] = []
        self.refusal = ""
        self.file = tmp_path / "history.sqlite"
        root = finding(
            "grad_nonfinite", ranks=(5,), onset_step=300, step=301, message="the gradient of step 300 is not finite",
            signal="gradient.norm_preclip", why="it poisons every weight", remedies=("look at the batch of rank 5",),
        )  # fmt: skip
        follower = finding(
            "reward_low", finding_id="reward_low:5:301", ranks=(5,), onset_step=301, step=305, layer="reward",
            message=f"the reward fell {EVIL}", subject=EVIL, root_id=root.finding_id, severity=Severity.WARNING,
        )  # fmt: skip
        self.findings = (root, follower)
        self._store(steps)
        ranks = {rank: status(rank, last_step=steps, values=self.values(rank, steps)) for rank in range(self.RANKS)}
        self.snapshot = Snapshot(
            run_id=RUN, node="node-a", wall_ns=WALL_NS, ranks=ranks, findings=self.findings,
            samples={"GPU-1": sample(), "GPU-2": sample("GPU-2", labels={"gpu": "1", "uuid": "GPU-2"})},
            abstaining={"kl_high": "policy.kl_k3_nats does not arrive"}, notes=(EVIL,),
            health={"read_lag_seconds_median": 0.02, "read_lag_seconds_max": 0.3, "rss_bytes": 6e7,
                    "cpu_seconds_total": 3.0},
        )  # fmt: skip

    def values(self, rank: int, step: int) -> dict[str, float]:
        bad = rank == 5 and step >= 300
        return {
            "policy.loss": 0.1 + 0.01 * ((step * 7 + rank) % 5),
            "reward.mean": 0.05 if bad else 0.5,
            "gradient.norm_preclip": math.nan if bad else 1.0 + 0.001 * (step % 50),
            "time.step_seconds": 1.2,
            f"reward.func_mean[{EVIL}]": 0.3,
        }

    def _store(self, steps: int) -> None:
        store = HistoryStore(self.file, clock=ManualClock())
        for rank in range(self.RANKS):
            store.write(batch(*(record(step, rank, self.values(rank, step)) for step in range(1, steps + 1))))
        readings = (
            sample(entity, {"device.gpu_utilization_ratio": 0.25 * (minute % 4)}, wall_ns=WALL_NS - minute * 60 * 10**9)
            for entity in ("GPU-1", "GPU-2")
            for minute in range(120)
        )
        store.write(batch(findings=self.findings, samples=tuple(readings)))
        store.close()

    def act(self, run_id: str, action: Action, reason: str) -> int:
        if self.refusal:
            raise SentinelError(self.refusal)
        self.asked.append((run_id, action, reason))
        return 7

    @contextmanager
    def served(self, port: int = 0, **changes: Any) -> Iterator[WebServer]:
        given = {
            "snapshots": lambda: {RUN: self.snapshot},
            "problems": list,
            "act": self.act,
            "act_token": ACT,
            "history": lambda: HistoryReader(self.file),
        }
        server = WebServer(build_app(WebState(**{**given, **changes})), "127.0.0.1", port)
        server.start()
        try:
            yield server
        finally:
            assert server.stop(10)
