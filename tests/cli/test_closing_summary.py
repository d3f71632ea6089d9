"""The last lines of `launch`: what they leave out is counted, with the command that shows it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sinks"))

import sentinel_batches as made

from grpo_sentinel.cli import summary
from grpo_sentinel.clock import ManualClock
from grpo_sentinel.config import Config
from grpo_sentinel.daemon.places import state_dir
from grpo_sentinel.history import HistoryStore, history_path
from grpo_sentinel.records import Severity


@pytest.mark.parametrize(("roots", "warnings", "left_out"), [(1, 0, 0), (2, 3, 3), (9, 0, 4)])
def test_what_is_not_listed_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, roots: int, warnings: int, left_out: int
) -> None:
    config = Config(state_dir=str(tmp_path / "state"))
    monkeypatch.setattr(summary, "run_directory", lambda *_: tmp_path / made.RUN)
    found = [made.finding(finding_id=f"r{i}", rule=f"r{i}") for i in range(roots)]
    follow = [
        made.finding(finding_id=f"w{i}", rule=f"w{i}", root_id="r0", severity=Severity.WARNING) for i in range(warnings)
    ]
    store = HistoryStore(history_path(state_dir(config), "node"), clock=ManualClock())
    store.write(made.batch(findings=(*found, *follow)))
    store.close()
    said: list[str] = []
    summary.write_summary(config, tmp_path, made.RUN, 0, 83, halted=True, say=said.append)
    more = [line for line in said if "more;" in line]
    assert said[0].startswith(f"run {made.RUN} was halted with exit code 83; {roots + warnings} finding")
    assert more == ([f"  and {left_out} more; `grpo-sentinel report {made.RUN}` shows all"] if left_out else [])
