"""What different users see on the page: of runs that are over, quiet, tiny, broken throughout, or not there at all."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from page_support import EVIL, READ, Shown, Tab, needs_chromium, overflow, until, whole_note
from sentinel_batches import RUN, WALL_NS, finding

from grpo_sentinel.records import Action, HaltState, Liveness
from grpo_sentinel.views import HaltStatus, Snapshot

pytestmark = [needs_chromium, pytest.mark.timeout(240)]
HALTED = HaltStatus(
    request_id=1, state=HaltState.DONE, action=Action.CHECKPOINT_AND_HALT, requested_by="nonfinite_updates",
    reason="3 updates were skipped", step=400, detail="/out/checkpoint-400", pinned_checkpoint="/kept/checkpoint-290",
)  # fmt: skip


class Kept:
    """Incidents of a run, the newest first."""

    def __init__(self, *told: tuple[int, str]) -> None:
        self._heads = [
            {"name": f"x-{step}", "incident_id": str(step), "title": title, "state": "closed", "onset_step": step,
             "last_step": step + 5, "opened_wall_ns": WALL_NS + step * 10**9}
            for step, title in told
        ]  # fmt: skip

    def heads(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        return self._heads if run_id == RUN else []

    def view(self, name: str) -> None:
        return None


def text(page: Any, part: str) -> str:
    return str(page.inner_text(f"#{part}"))


def left(shown: Shown, liveness: Liveness, detail: str | None = None, ranks: int = 8, **changes: Any) -> Snapshot:
    known = {
        rank: replace(status, liveness=liveness, closed_detail=detail)
        for rank, status in shown.snapshot.ranks.items()
        if rank < ranks
    }
    return replace(shown.snapshot, ranks=known, **{"notes": (), **changes})


def test_what_is_well_now_does_not_hide_what_was_wrong_before(browser: Any, shown: Shown) -> None:
    shown.snapshot = left(shown, Liveness.ALIVE, ranks=1, findings=())
    incidents = Kept((300, "the gradient of step 300 is not finite"), (20, f"the reward fell {EVIL}"))
    problems: list[str] = []
    with shown.served(incidents=incidents, problems=lambda: problems) as server:
        tab = Tab(browser, server.url)
        page = tab.open()
        until(lambda: text(page, "verdict-past"), "the incidents are told")
        assert text(page, "verdict-title") == "Nothing is wrong now in what is watched"
        said = "This run had 2 incidents, the last at step 300: the gradient of step 300 is not finite"
        assert text(page, "verdict-past") == said
        assert "ok" not in page.get_attribute("#overview", "class").split()
        until(lambda: text(page, "heat-says"), "the map is read")
        assert "ank" not in text(page, "heat-says").replace("reward", ""), "one rank is compared with no other"
        assert not page.is_visible("#heat-choice")
        problems.append("the loop has not turned for 40 s")
        until(lambda: "the sentinel itself has trouble" in text(page, "verdict-title"), "its trouble is told on top")
        assert text(page, "trouble") == problems[0]
        assert page.evaluate("document.body.dataset.evil") is None
        assert (tab.complaints, tab.foreign) == ([], [])
        tab.close()


def test_a_run_that_was_halted_says_how_it_ended_and_where_to_resume(browser: Any, shown: Shown) -> None:
    shown.snapshot = left(shown, Liveness.CLOSED, "halted", halt=HALTED)
    with shown.served() as server:
        tab = Tab(browser, server.url)
        page = tab.open()
        assert text(page, "verdict-title") == "The gradient of step 300 is not finite"
        assert text(page, "verdict-end") == (
            "The run ended at step 400: halted. Checkpoint-and-halt, asked by nonfinite_updates (3 updates were "
            "skipped). Saved: /out/checkpoint-400. Kept from before the onset: /kept/checkpoint-290. The checkpoint to "
            f"resume from: grpo-sentinel resume-point {RUN}"
        )
        shown.snapshot = left(shown, Liveness.DEAD, findings=())
        until(lambda: "died without a word" in text(page, "verdict-title"), "a crash is told")
        assert f"resume-point {RUN}" in text(page, "verdict-end")
        shown.snapshot = left(shown, Liveness.CLOSED, "finished", findings=())
        until(lambda: text(page, "verdict-title") == "The run has ended", "an end in order is told")
        assert text(page, "verdict-end") == "The run ended at step 400: finished."
        shown.snapshot = left(shown, Liveness.ALIVE, findings=())
        until(lambda: not text(page, "verdict-end"), "a run that goes on has no end")
        assert (tab.complaints, tab.foreign) == ([], [])
        tab.close()


def test_a_finding_below_a_follower_stands_in_the_chain_of_its_root(browser: Any, shown: Shown) -> None:
    root, follower = shown.findings
    further = finding(
        "late", finding_id="late", root_id=follower.finding_id, onset_step=310, message="and the loss too"
    )
    shown.snapshot = replace(shown.snapshot, findings=(root, follower, further))
    with shown.served() as server:
        tab = Tab(browser, server.url)
        page = tab.open()
        assert "and the loss too" in text(page, "findings-list")
        assert len(page.query_selector_all("#findings-list > article")) == 1
        assert "2 findings follow from it" in text(page, "verdict-text")
        tab.close()


@pytest.mark.slow
def test_without_any_run_the_page_says_so_and_shows_no_empty_frames(browser: Any, shown: Shown) -> None:
    with shown.served(snapshots=dict) as server:
        tab = Tab(browser, server.url)
        tab.page.goto(server.url)
        until(lambda: text(tab.page, "verdict-title") == "No rank has been seen yet", "it waits")
        assert not any(tab.page.is_visible(f"#{one}") for one in ("heat", "ranks", "signals", "incidents", "devices"))
        assert text(tab.page, "nav").split() == ["Overview", "Sentinel"]
        assert tab.page.evaluate("document.documentElement.scrollHeight") <= 900
        tab.close()


@pytest.mark.slow
def test_without_scripts_the_page_says_what_shows_the_same(browser: Any, shown: Shown) -> None:
    with shown.served() as server:
        tab = Tab(browser, server.url, java_script_enabled=False)
        tab.page.goto(server.url)
        assert "grpo-sentinel top" in tab.page.inner_text("body")
        assert not tab.page.is_visible("#main")
        tab.close()


@pytest.mark.slow
def test_a_run_of_one_step_and_one_of_nothing_but_nan_are_said_plainly(browser: Any, tmp_path: Path) -> None:
    shown = Shown(tmp_path, steps=1)
    shown.snapshot = left(shown, Liveness.ALIVE, findings=())
    with shown.served() as server:
        tab = Tab(browser, server.url)
        page = tab.open()
        assert text(page, "chart-note").startswith("Step 1, ranks 0-7")
        names = ("policy.loss", "reward.mean")
        broken = {
            rank: replace(one, values=dict.fromkeys(names, math.nan)) for rank, one in shown.snapshot.ranks.items()
        }
        shown.snapshot = replace(shown.snapshot, ranks=broken)
        page.reload()
        until(lambda: "Not finite on any rank" in text(page, "heat-says"), "no rank is called odd where all are")
        assert tab.complaints == []
        tab.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_320_pixels_nothing_is_cut_and_every_word_stands_out_from_its_ground(
    browser: Any, shown: Shown, scheme: str
) -> None:
    long = "base_model.model.layers.17.self_attn.q_proj.lora_A.default.weight" * 4
    root, follower = shown.findings
    shown.snapshot = left(
        shown, Liveness.CLOSED, f"halted {long}", halt=replace(HALTED, detail=f"/{long}"), run_id="r" + "u" * 200 + "n",
        findings=(replace(root, subject=long, message=long), follower), notes=(long,),
    )  # fmt: skip
    with shown.served(problems=lambda: [long], incidents=Kept((3, long))) as server:
        tab = Tab(browser, server.url, viewport={"width": 320, "height": 640}, color_scheme=scheme)
        tab.page.goto(server.url)
        until(lambda: long in text(tab.page, "verdict-end"), "the run is shown")
        assert overflow(tab.page) == 0
        assert tab.page.evaluate(FAINT) == []
        tab.close()


@pytest.mark.slow
def test_a_real_run_that_a_rule_halts_says_so_on_the_page(browser: Any, started: Any, tmp_path: Path) -> None:
    config = tmp_path / "sentinel.yaml"
    body = {
        "http": {"port": 0, "read_token": READ},
        "state_dir": str(tmp_path / "state"),
        "launch": {"linger_seconds": 60},
    }
    config.write_text(json.dumps(body))
    started.python(
        "-m", "grpo_sentinel.cli", "launch", "--config", config, "--run-id", "gone", "--", sys.executable,
        Path(__file__).with_name("many_ranks.py"), "--output-dir", tmp_path / "out", "--interval", "0.05", "--ranks", "2",
        "--odd", "1", "--bad-from", "20",
    )  # fmt: skip
    note = until(lambda: next(iter(tmp_path.rglob("daemon.json")), None), "the daemon says where it is")
    tab = Tab(browser, until(lambda: whole_note(note), "the note is whole")["url"])
    tab.open(READ)
    until(lambda: text(tab.page, "verdict-end"), "the end is told")
    said = text(tab.page, "verdict-end")
    assert "halted" in said
    assert "checkpoint-" in said
    assert "grpo-sentinel resume-point gone" in said
    tab.close()


# Words whose contrast with what is behind them is below that of WCAG AA (4.5), without the ones that are switched off.
FAINT = """(() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => { for (; e; e = e.parentElement) { const c = numbers(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0.5) return c; } return [255, 255, 255]; };
  const out = [];
  for (const e of document.querySelectorAll("main *, header *, nav *")) {
    if (!e.checkVisibility() || e.closest(":disabled, canvas, .uplot") || ![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const [a, b] = [light(numbers(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) out.push(`${((a + 0.05) / (b + 0.05)).toFixed(2)} ${e.id || e.className} ${e.textContent.slice(0, 40)}`);
  }
  return out;
})()"""
