"""`grpo-sentinel ingest`: a run without an agent, watched through its log."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import past_runs
import pytest

from grpo_sentinel.cli import main
from grpo_sentinel.cli.log_watch import CLOSE_NS, LogWatch
from grpo_sentinel.clock import ManualClock
from grpo_sentinel.history import HistoryReader
from grpo_sentinel.history.logs.lines import Line
from grpo_sentinel.records import Finding
from grpo_sentinel.rules import Engine, load_rules
from grpo_sentinel.views import SinkBatch

BAD = "{'loss': 0.0, 'grad_norm': nan, 'reward': 0.5, 'reward_std': 0.3}"


def row(step: int) -> str:
    return f"step {step}: {{'train/loss': 0.01, 'train/grad_norm': 0.{4 + step % 3}, 'reward': 0.{5 + step % 3}}}"


def watching() -> tuple[LogWatch, ManualClock, list[SinkBatch]]:
    clock, batches = ManualClock(), []
    return LogWatch("log", Engine(load_rules(), run_id="log"), clock, batches.append), clock, batches


def feed(watch: LogWatch, *texts: str) -> list[Finding]:
    return [finding for number, text in enumerate(texts, 1) for finding in watch.take(Line("log", number, text))]


def test_findings_go_to_stdout_and_to_the_history_and_replay_finds_them_again(tmp_path: Path, own_state: Path, capsys) -> None:
    log = past_runs.text(tmp_path, broken=True)
    assert main(["ingest", str(log), "--until-end", "--run-id", "night"]) == 1
    out = capsys.readouterr().out
    assert "step 12: warning, gradient" in out
    with HistoryReader(next(own_state.glob("*.sqlite"))) as reader:
        assert [run.run_id for run in reader.runs()] == ["night"]
        assert [finding.rule for finding in reader.findings("night") if finding.severity > 0] == ["grad_nonfinite"]
        assert sum(1 for _ in reader.records("night")) == past_runs.STEPS


def test_a_healthy_log_ends_with_exit_code_0_and_json_is_one_object_a_line(tmp_path: Path, capsys) -> None:
    assert main(["ingest", str(past_runs.text(tmp_path / "a", broken=False)), "--until-end", "--no-history"]) == 0
    capsys.readouterr()
    assert main(["ingest", str(past_runs.text(tmp_path / "b", broken=True)), "--until-end", "--json", "--no-history"]) == 1
    assert all(json.loads(line)["rule"] for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("content", [b"", b"no metrics here\n", b"\x00\xff\x1f" * 1000, "{'loss': 0.1, 'step': 1}\n".encode("utf-16")])
def test_a_log_without_a_step_that_can_be_read_is_not_called_healthy(content: bytes, tmp_path: Path, capsys) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(content)
    assert main(["ingest", str(log), "--until-end", "--no-history"]) == 2
    assert "train.log: nothing was judged" in capsys.readouterr().err


def test_a_broken_rule_is_said_and_left_out_and_the_log_is_watched_by_the_others(tmp_path: Path, capsys) -> None:
    rules, settings = tmp_path / "mine.yaml", tmp_path / "sentinel.yaml"
    rules.write_text("rules:\n  - {name: mine, severity: note, detect: {kind: bund}, message: m, why: w, remedies: [r]}\n")
    settings.write_text("rules: {override: {no_such_rule: {severity: note}}}\n")
    log = str(past_runs.text(tmp_path, broken=True))
    options = ["--until-end", "--no-history", "--rules", str(rules), "--config", str(settings)]
    assert main(["ingest", log, *options]) == 1
    said = capsys.readouterr()
    assert "step 12: warning, gradient" in said.out
    assert "mine.yaml line 2" in said.err
    assert "there is no rule named 'no_such_rule'" in said.err


def test_without_history_nothing_is_kept(tmp_path: Path, own_state: Path, capsys) -> None:
    main(["ingest", str(past_runs.text(tmp_path, broken=True)), "--until-end", "--no-history"])
    capsys.readouterr()
    assert list(own_state.glob("*.sqlite")) == []


def test_a_step_is_judged_when_the_next_begins_or_its_rows_rest() -> None:
    watch, clock, _ = watching()
    assert feed(watch, row(1), row(2)) == []
    assert watch.steps == 1
    watch.idle()
    assert watch.steps == 1
    clock.advance(CLOSE_NS / 1e9)
    watch.idle()
    assert watch.steps == 2


def test_a_log_that_stops_growing_is_silence_only_after_it_was_followed_live() -> None:
    watch, clock, _ = watching()
    feed(watch, *(row(step) for step in range(1, 40)))  # found there at the start: no pace of its own
    clock.advance(3600)
    assert watch.idle() == []
    for step in range(40, 50):
        clock.advance(20)
        feed(watch, row(step))
        assert watch.idle() == []
    clock.advance(600)
    assert any(finding.rule in ("rank_silent", "silence", "phase_silent") or "silen" in finding.rule for finding in watch.idle())


def test_a_long_log_is_handed_on_in_pieces() -> None:
    watch, _, batches = watching()
    feed(watch, *(row(step) for step in range(1, 1400)))
    watch.finish()
    assert max(len(batch.records) for batch in batches) <= 501
    assert sum(len(batch.records) for batch in batches) == 1399


def test_a_growing_log_is_followed_until_ctrl_c(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(row(1) + "\n")
    command = [sys.executable, "-m", "grpo_sentinel.cli", "ingest", str(log), "--no-history"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seen: list[str] = []
    told = threading.Event()

    def read() -> None:
        for line in process.stdout:
            seen.append(line)
            told.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        with log.open("a") as file:
            for step in range(2, 6):
                file.write(row(step) + "\n")
            file.write(row(6).replace("0.4", "nan") + "\n")
        assert told.wait(60), process.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 1
    finally:
        process.kill()
        process.wait(10)
        reader.join(10)
    assert "is not finite" in seen[0]
