"""`top` on a real terminal of 80 columns (tmux), over a real run: what it shows, keys, a halt, and a terminal put back."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_support import HERE, Started, cli, until

from grpo_sentinel.cli.top.state import Ask, State, View, press
from grpo_sentinel.records import Action
from grpo_sentinel.reporting.sparkline import sparkline, thinned

FAKE = HERE / "fake_trainer.py"
needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux, a terminal to look at")


class Tmux:
    """A tmux server of its own with one window of 80 by 24."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "tmux"
        self._call("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "sh")

    def _call(self, *arguments: str) -> str:
        command = ["tmux", "-u", "-S", str(self._socket), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout

    def keys(self, *keys: str) -> None:
        self._call("send-keys", *keys)

    def type(self, text: str) -> None:
        self._call("send-keys", "-l", text)
        self._call("send-keys", "Enter")

    def shows(self, what: str, seconds: float = 30) -> str:
        limit = time.monotonic() + seconds
        while what not in (text := self.text()):
            assert time.monotonic() < limit, f"{what!r} never came; the screen shows:\n{text}"
            time.sleep(0.05)
        return text

    def text(self) -> str:
        return self._call("capture-pane", "-p")

    def close(self) -> None:
        self._call("kill-server")


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tmux]:
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
    made = Tmux(tmp_path)
    yield made
    made.close()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sentinel.yaml"
    body = {"http": {"port": 0}, "state_dir": str(tmp_path / "state"), "launch": {"linger_seconds": 0.5}}
    path.write_text(json.dumps(body))
    return path


@needs_tmux
def test_a_run_is_watched_and_halted_with_keys_and_the_terminal_is_put_back(
    terminal: Tmux, config: Path, tmp_path: Path, started: Started
) -> None:
    trainer = (sys.executable, FAKE, "--interval", "0.05", "--output-dir", tmp_path / "out", "--save-steps", 5)
    run = started.python(
        "-m", "grpo_sentinel.cli", "launch", "--config", config, "--run-id", "looked-at", "--", *trainer
    )
    until(lambda: list(tmp_path.rglob("*.ring")), 30, "the run has a ring")
    terminal.type("echo before")
    terminal.type(f"{sys.executable} -m grpo_sentinel.cli top --interval 0.2 --config {config}")
    terminal.shows("grad norm")
    text = terminal.shows("gradient ok")  # unknown until the sidecar has written
    assert "looked-at  step" in text
    assert "nothing is wrong in what is watched" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    terminal.keys("?")
    terminal.shows("leave; the run goes on")
    terminal.keys("d")
    terminal.shows("disk_free_bytes")
    terminal.keys("h")
    terminal.shows("ask the run for checkpoint-and-halt?")
    terminal.keys("n")
    terminal.shows("not asked")
    assert run.poll() is None, "no is no"
    terminal.keys("h", "y")
    terminal.shows("checkpoint-and-halt by user: done")
    assert run.wait(30) == 83
    terminal.keys("q")
    terminal.shows("echo before")  # the shell reads the keyboard again, not `top`
    terminal.type("echo after $((40+2))")
    assert "echo before" in terminal.shows("after 42"), "the screen of before is back, and keys are echoed again"


@needs_tmux
def test_a_finding_is_shown_with_what_to_try(terminal: Tmux, config: Path, tmp_path: Path, started: Started) -> None:
    trainer = (sys.executable, FAKE, "--output-dir", tmp_path / "out", "--save-steps", 5, "--bad-from", 30)
    run = started.python("-m", "grpo_sentinel.cli", "launch", "--config", config, "--run-id", "bad", "--", *trainer)
    assert run.wait(60) == 83
    terminal.type(f"{sys.executable} -m grpo_sentinel.cli top bad --config {config}")
    assert text_before(terminal.shows("gradient CRIT"), "data ok").startswith("WARN gradient rank 0 step 30: ")
    terminal.keys("f")
    text = terminal.shows("try: ")
    assert "WARN gradient rank 0 step 30" in text
    assert text.index("WARN gradient") < text.index("└ CRIT gradient")


def text_before(screen: str, what: str) -> str:
    """The line above the one that begins with a text."""
    lines = screen.splitlines()
    return lines[next(at for at, line in enumerate(lines) if line.startswith(what)) - 1]


def test_without_a_terminal_it_says_what_to_use_instead(config: Path) -> None:
    done = cli("top", "--config", config, timeout=60)
    assert done.returncode == 2
    assert "use `grpo-sentinel status`" in done.stderr


def test_keys_change_the_view_and_only_y_makes_a_request() -> None:
    state, ask = press(State(), "tab", 3)
    assert (state.view, ask) == (View.FINDINGS, Ask.NOTHING)
    for key in ("j", "j", "j", "down"):
        state, _ = press(state, key, 3)
    assert state.line == 2, "the selection stays in the list"
    asked, ask = press(state, "c", 3)
    assert (asked.question, ask) == (Action.CHECKPOINT, Ask.NOTHING)
    assert press(asked, "y", 3)[1] is Ask.REQUEST
    for key in ("n", "q", "escape", "c"):
        refused, ask = press(asked, key, 3)
        assert (refused.question, ask) == (None, Ask.NOTHING)


def test_a_sparkline_shows_peaks_and_what_is_not_finite() -> None:
    assert sparkline([0, 1, 7]) == "▁▂█"
    assert sparkline([1, math.nan, 2, math.inf]) == "▁!█!"
    assert sparkline([5, 5]) == "▄▄"
    assert sparkline([math.nan]) == "!"
    assert sparkline([-1e308, 1e308]) == "▄▄"


def test_a_spike_and_a_value_that_is_not_finite_stay_when_a_line_is_thinned() -> None:
    line = [1.0 + 0.01 * (step % 3) for step in range(1000)]
    line[500], line[700] = 9.0, math.nan
    found = thinned(line, 40)
    assert len(found) == 40
    assert found.count(9.0) == 1
    assert sum(map(math.isnan, found)) == 1
    assert thinned([math.nan] * 100, 10) != []
    assert thinned([1.0, 2.0], 10) == [1.0, 2.0]
