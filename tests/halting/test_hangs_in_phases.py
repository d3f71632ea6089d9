"""A hang in every phase of a step, by that phase's own clock: a long evaluation is none, as short a generation is."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_support import Started, directory_of, until

from grpo_sentinel.daemon.claim import read_note
from grpo_sentinel.history import HistoryReader, history_path
from grpo_sentinel.protocol import RankReader, list_segments
from grpo_sentinel.records import Finding, Severity

PHASES = (
    "weight_sync",
    "generate",
    "reward",
    "checkpoint",
    "evaluation",
    "forward",
    "backward",
    "logprobs",
    "optimizer",
)


@pytest.fixture
def started() -> Iterator[Started]:
    with Started() as processes:
        yield processes


def closed(run: str) -> bool:
    (path,) = list_segments(directory_of(run))
    reader = RankReader(path)
    try:
        return reader.closed is not None
    finally:
        reader.close()


@pytest.mark.slow
def test_a_hang_is_told_in_every_phase_and_a_phase_that_is_always_long_is_none(
    started: Started, tmp_path: Path
) -> None:
    config = tmp_path / "sentinel.yaml"
    body = {
        "http": {"port": 0}, "collectors": {"nvml": {"enabled": False}, "host": {"enabled": False}},
        "incidents": {"enabled": False},
        "rules": {"override": {"rank_silent": {"parameters": {"floor_seconds": 3.0, "first_seconds": 30.0}}}},
    }  # fmt: skip
    config.write_text(json.dumps(body))
    with (tmp_path / "daemon.log").open("a") as log:
        started.python("-m", "grpo_sentinel.cli", "run", "--config", config, stderr=log)
    for phase in PHASES:
        started.trainer(f"hangs-{phase}", "--phase", phase, "--phase-seconds", 0.05, "--hang-at", 12)
    # typical 2 s, so a hang from 10 s on: 7 s are long for a generation above, and not for this evaluation
    started.trainer(
        "long", "--phase", "evaluation", "--phase-seconds", 2, "--hang-at", 5, "--hang-seconds", 7, "--steps", 7
    )
    started.trainer("first", "--phase", "compile", "--hang-at", 1, "--hang-seconds", 12, "--steps", 3)
    until(lambda: read_note(directory_of("first")) is not None, 60, "all runs are watched")
    path = history_path(tmp_path / "state" / "grpo-sentinel", socket.gethostname())

    def silent(run: str) -> list[Finding]:
        if not path.exists():
            return []
        with HistoryReader(path) as reader:
            known = {one.run_id for one in reader.runs()}
            return [one for one in reader.findings(run) if one.rule == "rank_silent"] if run in known else []

    began = time.monotonic()
    for phase in PHASES:
        (found, *_) = until(lambda phase=phase: silent(f"hangs-{phase}"), 40, f"a hang in {phase}")  # type: ignore[misc]
        assert found.severity is Severity.CRITICAL
        assert found.ranks == (0,)
        assert phase in found.message.replace("-", "_"), found.message
        assert found.step == 12
    assert time.monotonic() - began < 40
    for run in ("long", "first"):
        until(lambda run=run: closed(run), 60, f"the end of {run}")  # type: ignore[misc]
        assert silent(run) == []
