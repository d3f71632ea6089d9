"""Random faults against real ranks and a real sidecar: a bounded number here, 200 with `make chaos`.

The series runs as a process of its own: its ranks are forked from it, and this one has threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from chaos_plan import DISK, FAULTS, MOMENTS, TRL, draw

pytestmark = pytest.mark.torch


def _series(file: Path, seconds: float, **settings: str) -> dict[str, Any]:
    script = Path(__file__).with_name("chaos_series.py")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPO_SENTINEL")}
    done = subprocess.run(
        [sys.executable, str(script), str(file)], env={**environment, **settings}, timeout=seconds, check=False,
        capture_output=True, text=True, errors="replace",
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_the_plan_of_200_runs_covers_every_fault_moment_and_rank_and_is_the_same_every_time() -> None:
    cases = draw(200)
    assert cases == draw(200)
    assert cases[:12] == draw(12)
    assert sum(case.trainer == TRL for case in cases) >= 40
    faults = Counter(case.fault for case in cases)
    assert set(faults) == set(FAULTS)
    assert min(faults.values()) >= 20
    assert {case.moment for case in cases} == set(MOMENTS)
    assert {(case.fault, case.rank) for case in cases} >= {(fault, rank) for fault in FAULTS for rank in (0, 1)} - {
        (DISK, 1)  # the first rank saves
    }


def test_a_rank_that_is_killed_leaves_the_right_name_a_bundle_and_no_false_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (run,) = _series(tmp_path / "chaos.json", 240, CHAOS_RUNS="16", CHAOS_ONLY="015-loop-kill")["runs"]
    assert (run["culprit"], run["broken"]) == ("right", [])
    assert run["bundles"] >= 1
    assert run["resume"] == "checkpoint-8"


@pytest.mark.slow
def test_the_first_runs_of_the_series_hold_all_invariants(tmp_path: Path) -> None:
    for name in ("torch", "transformers", "trl"):
        pytest.importorskip(name)
    count = os.environ.get("CHAOS_RUNS", "12")
    told = _series(tmp_path / "chaos.json", 3600, CHAOS_RUNS=count, CHAOS_PARALLEL="2")["summary"]
    assert told["runs"] == int(count)
    assert told["trl_runs"] >= int(count) // 5
    assert (told["broken"], told["wrong_with_confidence"]) == (0, 0)
    assert told["culprit_right"] >= 0.95 * told["culprit_known"]
