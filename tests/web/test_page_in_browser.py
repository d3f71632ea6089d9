"""The page in real Chromium: what it shows, how it is worked, that it asks nobody else and runs nobody else's code."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from page_support import ACT, EVIL, READ, Shown, Tab, needs_chromium, overflow, until, uplot, whole_note
from sentinel_batches import RUN

from grpo_sentinel.records import Action
from grpo_sentinel.views import Snapshot

pytestmark = [needs_chromium, pytest.mark.timeout(240)]


def test_the_page_says_what_is_wrong_where_it_began_and_draws_the_data(browser: Any, shown: Shown) -> None:
    with shown.served() as server:
        tab = Tab(browser, server.url)
        page = tab.open()
        assert page.inner_text("#verdict-title") == "The gradient of step 300 is not finite"
        assert "began in the gradient layer, on rank 5, at step 300" in page.inner_text("#verdict-text")
        assert page.inner_text("#verdict-try") == "Try first: look at the batch of rank 5"
        assert page.get_attribute("#layers .origin", "data-layer") == "gradient"
        assert "look at the batch of rank 5" in page.inner_text("#findings-list")
        assert "the reward fell" in page.inner_text("#findings-list .chain")
        chart = uplot(page)
        assert chart["signal"] == "gradient.norm_preclip", "what is wrong is drawn first"
        assert (chart["first"], chart["last"], chart["lines"], chart["broken"]) == ("1", "400", "8", "101")
        assert chart["marks"] == "2"
        page.wait_for_selector("#heat[data-furthest='5']")
        assert "Rank 5 stands out: gradient.norm_preclip is NaN" in page.inner_text("#heat-says")
        page.click("#chart-more summary")
        page.wait_for_selector("#chart-table td")
        rows = page.inner_text("#chart-table").splitlines()
        assert rows[-1].split("\t") == ["400", *["1"] * 5, "not finite", *["1"] * 2]
        assert page.evaluate("document.body.dataset.evil") is None, "nothing from outside becomes markup"
        assert EVIL in page.inner_text("#overview"), "it is shown as the text that it is"
        assert (tab.complaints, tab.foreign) == ([], [])
        tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_light_and_dark(browser: Any, shown: Shown, scheme: str) -> None:
    with shown.served() as server:
        tab = Tab(browser, server.url, viewport={"width": 390, "height": 844}, color_scheme=scheme)
        page = tab.open()
        for summary in page.query_selector_all("details > summary"):
            summary.click()
        page.wait_for_selector("#ranks-table td")
        assert overflow(page) == 0
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(map(float, re.findall(r"[\d.]+", back)[:3])) / 3
        assert brightness > 200 if scheme == "light" else brightness < 60
        assert page.eval_on_selector("#chart", "e => e.clientWidth") <= 390
        assert (tab.complaints, tab.foreign) == ([], [])
        tab.close()


@pytest.mark.slow
def test_signals_are_found_by_name_or_meaning_and_chosen_with_keys(browser: Any, shown: Shown) -> None:
    with shown.served() as server:
        tab = Tab(browser, server.url)
        page = tab.open()
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "signal"
        page.keyboard.type("wall step")
        page.keyboard.press("Control+a")
        page.keyboard.type("micro-batches loss")
        assert page.inner_text("#signal-list [role=option] b") == "policy.loss"
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_selector("#chart[data-signal='policy.loss'][data-broken='0']")
        assert page.get_attribute("#signal", "aria-expanded") == "false"
        page.fill("#signal", "no such thing")
        assert "none of the 5 signals fits" in page.inner_text("#signal-list")
        page.keyboard.press("Escape")
        page.fill("#signal-ranks", "2, 5-6")
        page.keyboard.press("Enter")
        page.wait_for_selector("#chart[data-lines='3']")
        assert "ranks 2, 5, 6 of 8" in page.inner_text("#chart-note")
        assert tab.complaints == []
        tab.close()


@pytest.mark.slow
def test_a_long_run_is_zoomed_by_asking_for_the_steps_that_are_looked_at(browser: Any, tmp_path: Path) -> None:
    shown = Shown(tmp_path, steps=4000)
    with shown.served() as server:
        tab = Tab(browser, server.url)
        page = tab.open()
        assert int(uplot(page)["points"]) <= 1000, "thinned by the server"
        assert "lowest and highest" in page.inner_text("#chart-note")
        page.evaluate("document.getElementById('chart').scrollIntoView({block: 'center'})")
        box = page.query_selector("#chart .u-over").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.55, box["y"] + 50, steps=4)
        page.mouse.up()
        until(
            lambda: page.evaluate("Number(document.getElementById('chart').dataset.first) > 1500"),
            "the page gets there",
        )
        first, last, points = (int(uplot(page)[name]) for name in ("first", "last", "points"))
        assert 1900 < first < last < 2300
        assert points == last - first + 1, "close enough, every step is drawn"
        page.focus("#chart")
        page.keyboard.press("ArrowLeft")
        until(
            lambda: page.evaluate(f"Number(document.getElementById('chart').dataset.first) < {first}"),
            "the page gets there",
        )
        page.keyboard.press("0")
        page.wait_for_selector("#chart[data-first='0'][data-last='4000']")
        page.select_option("#span", "100")
        page.wait_for_selector("#chart[data-first='3901']")
        assert tab.complaints == []
        tab.close()


@pytest.mark.slow
def test_the_map_of_ranks_is_read_with_pointer_and_keys_and_leads_to_the_chart(browser: Any, shown: Shown) -> None:
    with shown.served() as server:
        tab = Tab(browser, server.url)
        page = tab.open()
        page.wait_for_selector("#heat[data-furthest='5']")
        page.focus("#heat")
        page.keyboard.press("ArrowDown")
        for _ in range(5):
            page.keyboard.press("ArrowRight")
        assert page.inner_text("#heat-cell").startswith("rank 5, ")
        while not page.inner_text("#heat-cell").startswith("rank 5, reward.mean"):
            page.keyboard.press("ArrowDown")
        assert "far from the others" in page.inner_text("#heat-cell") or "below" in page.inner_text("#heat-cell")
        page.keyboard.press("Enter")
        page.wait_for_selector("#chart[data-signal='reward.mean']")
        page.click("text=in one signal, over steps")
        page.wait_for_selector("#heat[data-by='step'][data-rows='8']")
        assert "Rank 5 stands out: reward.mean is 0.05" in page.inner_text("#heat-says")
        assert "Rank 5 stands out" in page.get_attribute("#heat", "aria-label")
        assert tab.complaints == []
        tab.close()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 256])
def test_it_works_for_few_and_for_many_ranks(browser: Any, shown: Shown, ranks: int) -> None:
    one = shown.snapshot.ranks
    many = {rank: one[5 if rank == 200 else rank % 5] for rank in range(ranks)}
    shown.snapshot = Snapshot(run_id=RUN, node="n", wall_ns=shown.snapshot.wall_ns, ranks=many)
    with shown.served() as server:
        tab = Tab(browser, server.url, viewport={"width": 390, "height": 844})
        page = tab.open()
        until(
            lambda: page.evaluate("document.getElementById('heat-says').textContent.length > 10"), "the page gets there"
        )
        says = page.inner_text("#heat-says")
        if ranks == 256:
            assert "Rank 200 stands out" in says
            page.click("text=in one signal, over steps")
            page.wait_for_selector("#heat[data-by='step'][data-rows='256']")
        else:
            page.wait_for_selector(f"#heat[data-by='step'][data-rows='{ranks}']")
            if ranks == 2:
                page.click("text=in every signal, now")
                until(lambda: "this node has 2" in page.inner_text("#heat-says"), "it says why it cannot tell")
        assert page.inner_text("#verdict-title") == "Nothing is wrong in what is watched"
        assert "Not watched: data" in page.inner_text("#verdict-text"), "unknown is not healthy"
        assert overflow(page) == 0
        assert tab.complaints == []
        tab.close()


@pytest.mark.slow
def test_gpus_and_the_sentinels_own_health_are_shown(browser: Any, shown: Shown) -> None:
    problems = ["the sink wandb is hanging: no answer"]
    with shown.served(problems=lambda: problems) as server:
        tab = Tab(browser, server.url)
        page = tab.open()
        table = page.inner_text("#gpus-table").splitlines()
        assert table[0].split("\t")[1:] == ["GPU 0", "GPU 1"]
        assert table[1].split("\t") == ["utilization", "50 %", "50 %"]
        page.click("#gpus-table button[data-signal='device.gpu_utilization_ratio']")
        page.wait_for_selector(
            "#readings[data-lines='2'][data-points='60'], #readings[data-lines='2'][data-points='61']"
        )
        page.select_option("#minutes", "360")
        page.wait_for_selector("#readings[data-points='120']")
        assert page.inner_text("#problems") == problems[0]
        assert "20 ms, at most 300 ms" in page.inner_text("#health")
        page.click("#abstaining-more summary")
        until(lambda: "kl_high" in page.inner_text("#abstaining"), "the rule is named")
        assert "policy.kl_k3_nats does not arrive: 1 rule: kl_high" in page.inner_text("#abstaining")
        page.click("#ranks-more summary")
        until(lambda: "NaN" in page.inner_text("#ranks-table"), "the values are there")
        assert page.query_selector("#ranks-table td.bad")
        problems.clear()
        until(lambda: "It does its work" in page.inner_text("#problems"), "what is well again is said")
        assert tab.complaints == []
        tab.close()


@pytest.mark.slow
def test_everything_is_reached_by_tab_with_a_name_and_a_visible_focus(browser: Any, shown: Shown) -> None:
    with shown.served() as server:
        tab = Tab(browser, server.url)
        page = tab.open()
        tree = page.locator("body").aria_snapshot()
        for name in (
            'heading "Findings',
            'combobox "Signal"',
            'button "Checkpoint and halt …"',
            'img "Heat map',
            "banner",
        ):
            assert name in tree, tree
        unnamed = page.evaluate("""[...document.querySelectorAll('button, a, input, select, summary, [tabindex="0"]')]
            .filter((e) => e.offsetParent && !(e.textContent.trim() || e.getAttribute('aria-label') || (e.labels && e.labels.length)))
            .map((e) => e.outerHTML)""")
        assert unnamed == []
        reached, bare = [], []
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "To the content"
        for _ in range(60):
            page.keyboard.press("Tab")
            at = page.evaluate("""(() => { const e = document.activeElement, s = getComputedStyle(e);
                return [e.id || e.tagName, s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0]; })()""")
            reached.append(at[0])
            if not at[1] and at[0] != "BODY":
                bare.append(at[0])
        for wanted in ("run", "ask-checkpoint", "ask-halt", "heat", "signal", "chart", "whole", "SUMMARY"):
            assert wanted in reached, reached
        assert bare == [], "the focus is seen wherever it is"
        tab.close()


@pytest.mark.slow
def test_single_keys_are_listed_and_can_be_switched_off(browser: Any, shown: Shown) -> None:
    with shown.served() as server:
        tab = Tab(browser, server.url)
        page = tab.open()
        page.keyboard.press("?")
        assert "search the signals" in page.inner_text("#help")
        page.keyboard.press("Escape")
        page.wait_for_selector("#help", state="hidden")
        page.keyboard.press("n")
        assert "not finite" in page.evaluate("document.activeElement.textContent")
        page.keyboard.press("5")
        assert page.evaluate("document.activeElement.id") == "incidents"
        page.keyboard.press("h")
        assert page.is_visible("#act-dialog")
        assert "all ranks exit" in page.inner_text("#act-means")
        page.keyboard.press("Escape")
        page.wait_for_selector("#act-dialog", state="hidden")
        assert shown.asked == []
        page.click("#help-open")
        page.uncheck("#keys-on")
        page.keyboard.press("Escape")
        page.wait_for_selector("#help", state="hidden")
        page.keyboard.press("h")
        assert not page.is_visible("#act-dialog")
        page.click("#theme")
        page.click("#theme")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        until(
            lambda: page.evaluate("getComputedStyle(document.body).backgroundColor === 'rgb(17, 22, 27)'"),
            "the page gets there",
        )
        assert tab.complaints == []
        tab.close()


@pytest.mark.slow
def test_acting_needs_the_token_says_what_happened_and_keeps_no_token(browser: Any, shown: Shown) -> None:
    with shown.served() as server:
        tab = Tab(browser, server.url)
        page = tab.open()
        page.click("#ask-checkpoint")
        page.fill("#act-token", "wrong")
        page.click("#act-go")
        page.wait_for_selector("text=Nothing was asked: acting needs the act token")
        shown.refusal = "halting is off: rank 1 has no core"
        page.fill("#act-token", ACT)
        page.click("#act-go")
        page.wait_for_selector("text=Nothing was asked: halting is off: rank 1 has no core")
        shown.refusal = ""
        page.fill("#act-reason", "seen enough")
        page.click("#act-go")
        page.wait_for_selector("#act-dialog", state="hidden")
        assert shown.asked == [(RUN, Action.CHECKPOINT, "seen enough")]
        stored = page.evaluate(
            "JSON.stringify([{...localStorage}, {...sessionStorage}, document.documentElement.outerHTML])"
        )
        assert ACT not in stored
        assert all("status of 401" in text or "status of 409" in text for text in tab.complaints)
        tab.close()


@pytest.mark.slow
def test_a_read_token_is_asked_for_and_opens_the_page(browser: Any, shown: Shown) -> None:
    with shown.served(read_token=READ) as server:
        tab = Tab(browser, server.url)
        tab.page.goto(server.url)
        tab.page.wait_for_selector("#login", state="visible")
        assert not tab.page.is_visible("#main")
        tab.page.fill("#read-token", READ)
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("#chart[data-points]")
        assert tab.page.is_visible("#main")
        tab.page.goto(f"{server.url}/#token={READ}")
        tab.page.wait_for_selector("#chart[data-points]")
        assert "token" not in tab.page.url
        tab.close()


@pytest.mark.slow
def test_a_lost_sidecar_is_said_and_found_again(browser: Any, shown: Shown) -> None:
    with shown.served() as server:
        port = server.port
        tab = Tab(browser, server.url)
        page = tab.open()
        assert page.inner_text("#link") == "live"
    page.wait_for_selector("#stale", state="visible")
    assert page.inner_text("#link") == "not connected"
    assert "What you see is" in page.inner_text("#stale")
    shown.snapshot = Snapshot(run_id=RUN, node="node-b", wall_ns=shown.snapshot.wall_ns, ranks=shown.snapshot.ranks)
    with shown.served(port):
        page.wait_for_selector("#stale", state="hidden")
        assert page.inner_text("#link") == "live"
        assert page.inner_text("#node") == "node node-b"
        tab.close()


@pytest.mark.slow
def test_a_run_that_is_not_watched_any_more_is_read_from_the_history(browser: Any, shown: Shown) -> None:
    other = Snapshot(run_id="other", wall_ns=shown.snapshot.wall_ns)
    with shown.served(snapshots=lambda: {"other": other}) as server:
        tab = Tab(browser, server.url)
        page = tab.page
        page.goto(server.url)
        until(lambda: "No rank has been seen yet" in page.inner_text("#verdict-title"), "the watched run is shown")
        page.wait_for_selector(f"#run optgroup option[value='{RUN}']", state="attached")
        page.select_option("#run", RUN)
        page.wait_for_selector("#chart[data-last='400']")
        assert page.inner_text("#verdict-title") == "The gradient of step 300 is not finite"
        assert "not watched now" in page.inner_text("#notes")
        assert page.inner_text("#ranks-title") == "Ranks: 8 unknown", "nobody looks, so nobody is called alive"
        assert page.is_disabled("#ask-halt")
        page.wait_for_selector("#heat[data-furthest='5']")
        page.select_option("#run", "other")
        until(lambda: "No rank has been seen yet" in page.inner_text("#verdict-title"), "and back")
        assert tab.complaints == []
        tab.close()


@pytest.mark.slow
def test_a_real_run_is_read_and_halted_from_the_page(browser: Any, started: Any, tmp_path: Path) -> None:
    state, trainer = tmp_path / "state", Path(__file__).with_name("many_ranks.py")
    config = tmp_path / "sentinel.yaml"
    body = {"http": {"port": 0, "read_token": READ}, "state_dir": str(state), "launch": {"linger_seconds": 0.5}}
    config.write_text(json.dumps(body))
    run = started.python(
        "-m", "grpo_sentinel.cli", "launch", "--config", config, "--run-id", "looked-at", "--", sys.executable, trainer,
        "--output-dir", tmp_path / "out", "--interval", "0.05", "--ranks", "4",
    )  # fmt: skip
    note = until(lambda: next(iter(tmp_path.rglob("daemon.json")), None), "the daemon says where it is")
    told = until(lambda: whole_note(note), "the note is whole")
    tab = Tab(browser, told["url"])
    page = tab.open(READ)
    until(lambda: page.evaluate("Number(document.getElementById('chart').dataset.last) > 20"), "the page gets there")
    assert page.inner_text("#ranks-title") == "Ranks: 4 alive"
    page.click("#ask-halt")
    page.fill("#act-token", told["act_token"])
    page.fill("#act-reason", "asked by a test")
    page.click("#act-go")
    page.wait_for_selector("#act-dialog", state="hidden")
    assert run.wait(60) == 83
    assert list((tmp_path / "out").glob("checkpoint-*/trainer_state.json"))
    tab.close()


@pytest.mark.slow
def test_the_incident_of_a_real_run_is_walked_backwards_on_the_page(browser: Any, started: Any, tmp_path: Path) -> None:
    config = tmp_path / "sentinel.yaml"
    body = {"http": {"port": 0, "read_token": READ}, "state_dir": str(tmp_path / "state"), "halting": {"dry_run": True}}
    config.write_text(json.dumps(body))
    started.python(
        "-m", "grpo_sentinel.cli", "launch", "--config", config, "--run-id", "bad", "--", sys.executable,
        Path(__file__).with_name("many_ranks.py"), "--output-dir", tmp_path / "out", "--interval", "0.05", "--ranks", "4",
        "--odd", "2", "--bad-from", "30",
    )  # fmt: skip
    note = until(lambda: next(iter(tmp_path.rglob("daemon.json")), None), "the daemon says where it is")
    tab = Tab(browser, until(lambda: whole_note(note), "the note is whole")["url"])
    page = tab.open(READ)
    page.wait_for_selector("#incidents-list details", timeout=60_000)
    page.click("#incidents-list summary")
    page.wait_for_selector("#incidents .uplot")
    view = page.inner_text("#incidents")
    assert "The first layer that was wrong is gradient, at step 30, on rank 2." in view
    assert re.search(r"wrong from step 30, rank 2 \(gradient\.", view)
    assert "not watched" in view
    assert int(uplot(page, "#incidents .plots .plot")["lines"]) == 4
    assert "gradient layer, on rank 2, at step 30" in page.inner_text("#verdict-text")
    page.click("#walk-more summary")
    page.wait_for_selector("#walk td.bad")
    assert "Wrong first: gradient, since step 30" in page.inner_text("#walk-says")
    walk = {line.split("\t")[0]: line for line in page.inner_text("#walk").splitlines() if "could judge" in line}
    assert "wrong" in walk["gradient"]
    assert "0 of" in walk["memory"]
    assert "not judged" in page.inner_text("#layers [data-layer=memory]"), "what no rule judges is not called well"
    assert (tab.complaints, tab.foreign) == ([], [])
    tab.close()
