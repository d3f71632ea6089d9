"""The report of a run: true to the history, the same in HTML and Markdown, self-contained, bounded however long the run."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from run_support import HERE, cli
from sentinel_batches import RUN, batch, finding, record

from grpo_sentinel.clock import ManualClock
from grpo_sentinel.errors import HistoryError
from grpo_sentinel.history import HistoryReader, HistoryStore
from grpo_sentinel.records import Severity
from grpo_sentinel.reporting.gather import gather
from grpo_sentinel.reporting.html import html
from grpo_sentinel.reporting.markdown import markdown


class Parts(HTMLParser):
    """Tags and the attributes that load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [f"{name}={value}" for name, value in attrs if name in ("src", "href")]


@pytest.fixture(scope="module")
def halted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real launch that a rule halted; gives its configuration."""
    home = tmp_path_factory.mktemp("halted")
    config = home / "sentinel.yaml"
    body = {
        "http": {"port": 0}, "state_dir": str(home / "state"), "ring_dir": str(home), "launch": {"linger_seconds": 0.5},
        "collectors": {"nvml": {"enabled": False}},
    }  # fmt: skip
    config.write_text(json.dumps(body))
    trainer = (sys.executable, HERE / "fake_trainer.py", "--output-dir", home / "out", "--save-steps", 5)
    done = cli(
        "launch", "--config", config, "--run-id", "halted", "--", *trainer, "--bad-from", 50,
        timeout=60, env={"GRPO_SENTINEL_DIR": str(home)},
    )  # fmt: skip
    assert done.returncode == 83, done.stderr
    return config


def test_the_newest_run_becomes_a_page_that_tells_what_broke_and_needs_nothing_else(halted: Path, tmp_path: Path):
    page = tmp_path / "run.html"
    done = cli("report", "--config", halted, "-o", page, timeout=60)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    parts = Parts(text)
    assert "wrong first in the gradient layer, from step 50" in text
    assert "checkpoint-and-halt by nonfinite_updates: done" in text
    assert "svg" in parts.tags
    assert "script" not in parts.tags
    assert not parts.loads
    assert 'class="n"' in text, "NaN is drawn, not left out"
    assert "/incidents/halted-" in text


def test_markdown_goes_to_stdout_and_says_the_same(halted: Path):
    done = cli("report", "halted", "--config", halted, "-o", "-", timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# Run halted\n")
    assert "wrong first in the gradient layer, from step 50" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("| gradient.norm")]
    *_, broken, blocks, _ = row.split("|")
    assert int(broken) >= 3, "non-finite values are counted"
    assert re.search("[▁▂▃▄▅▆▇█]+×+", blocks), "and drawn"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent"], "there is no run absent"),
        (["halted", "--signal", "no.such"], "recorded no signal no.such"),
        (["halted", "-o", "/nowhere/at/all.html"], "choose another place"),
        (["halted", "--history", "/nowhere.sqlite"], "/nowhere.sqlite"),
    ],
)
def test_what_cannot_be_reported_is_said_in_a_sentence(halted: Path, arguments: list[str], said: str):
    done = cli("report", *arguments, "--config", halted, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def stored(path: Path, *batches) -> HistoryReader:
    store = HistoryStore(path, clock=ManualClock())
    for item in batches:
        store.write(item)
    store.close()
    return HistoryReader(path)


def test_a_long_run_is_thinned_and_its_one_spike_is_still_drawn(tmp_path: Path):
    records = [record(step, values={"reward.mean": 9.0 if step == 3777 else 0.5}) for step in range(1, 8001)]
    with stored(tmp_path / "h.sqlite", batch(*records)) as reader:
        (plot,) = gather(reader, RUN).plots
    assert len(plot.lines[0]) <= 1200
    assert max(value for _, value in plot.lines[0]) == 9.0


def test_texts_from_outside_stay_text(tmp_path: Path):
    evil = "<script>alert(1)</script> | `x` [a](http://b)"
    records = [record(1, values={"reward.mean": math.nan})]
    wrong = finding(message=evil, signal="reward.mean", severity=Severity.CRITICAL)
    with stored(tmp_path / "h.sqlite", batch(*records, findings=[wrong])) as reader:
        report = gather(reader, RUN)
    parts = Parts(html(report))
    assert "script" not in parts.tags
    assert not parts.loads
    assert "<script" not in markdown(report)
    assert "[a](" not in markdown(report)


def test_findings_choose_what_is_drawn_and_mark_their_onset(tmp_path: Path):
    records = [record(step, values={"reward.mean": 0.5, "data.zebra": 1.0}) for step in range(1, 9)]
    wrong = finding(signal="data.zebra", severity=Severity.WARNING, onset_step=4)
    with stored(tmp_path / "h.sqlite", batch(*records, findings=[wrong])) as reader:
        report = gather(reader, RUN, signals=["reward.mean"])
        with pytest.raises(HistoryError, match="recorded no signal nope"):
            gather(reader, RUN, signals=["nope"])
    marks = {plot.signal: [step for step, _ in plot.marks] for plot in report.plots}
    assert marks == {"data.zebra": [wrong.onset_step], "reward.mean": []}


def test_a_directory_whose_name_is_no_text_does_not_keep_the_report_from_being_written(tmp_path: Path) -> None:
    history = tmp_path / "history.sqlite"
    store = HistoryStore(history, clock=ManualClock())
    made = batch(record(1))
    store.write(replace(made, snapshot=replace(made.snapshot, context={"output_dir": "/data/r\udce9sultats"})))
    store.close()
    for name, shown in (("run.html", r"/data/r\udce9sultats"), ("run.md", "/data/r?sultats")):
        done = cli("report", RUN, "--history", history, "-o", tmp_path / name, timeout=60)
        assert done.returncode == 0, done.stderr
        assert shown in (tmp_path / name).read_text()
    assert cli("report", RUN, "--history", history, "-o", "-", timeout=60).returncode == 0
