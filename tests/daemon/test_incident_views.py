"""What the page is given of incidents: from real bundles, thinned without losing a peak, never from a path of a stranger."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from grpo_sentinel.daemon.incident_views import MOST_POINTS, IncidentViews, thin
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.incidents.model import About, Source, State
from grpo_sentinel.incidents.writing import write_bundle
from grpo_sentinel.records import Action, Finding, FindingState, Kind, Mode, Severity, StepRecord

WALL_NS = 1_700_000_000_000_000_000


def finding() -> Finding:
    return Finding(
        finding_id="grad_nonfinite:1:30", rule="grad_nonfinite", layer="gradient", severity=Severity.CRITICAL,
        state=FindingState.FIRING, action=Action.ALERT, run_id="run", step=31, onset_step=30, ranks=(1,),
        signal="gradient.norm_preclip", message="the gradient of step 30 is not finite", wall_ns=WALL_NS,
    )  # fmt: skip


def record(step: int, rank: int) -> StepRecord:
    bad = rank == 1 and step >= 30
    return StepRecord(
        run_id="run", rank=rank, sequence=step, step=step, kind=Kind.STEP, mode=Mode.TRAIN, micro_batch=0, generation=0,
        monotonic_ns=step, wall_ns=WALL_NS + step, values={"gradient.norm_preclip": math.nan if bad else 1.0},
    )  # fmt: skip


def bundle(root: Path, name: str = "abc123", run_id: str = "run", opened: int = WALL_NS) -> Path:
    about = About(
        incident_id=name, run_id=run_id, node="node-a", state=State.OPEN, opened_wall_ns=opened, updated_wall_ns=opened,
        title="the gradient of step 30 is not finite", root_id="grad_nonfinite:1:30", onset_step=30, last_step=50,
    )  # fmt: skip
    source = Source(
        about=about, findings=(finding(),), transitions=(finding(),), events=lambda: iter(()),
        samples=lambda: iter(()), missing={"stacks": "py-spy is not here"},
        records=lambda: iter([record(step, rank) for rank in range(2) for step in range(1, 51)]),
    )  # fmt: skip
    target = root / about.name
    write_bundle(source, target, "off")
    return target


def test_an_incident_is_walked_back_to_its_layer_and_plotted_with_its_broken_values(tmp_path: Path) -> None:
    bundle(tmp_path)
    view = IncidentViews(tmp_path).view("run-abc123")
    assert view["first_wrong"] == "The first layer that was wrong is gradient, at step 30, on rank 1."
    walk = {row[0]: row[2] for row in view["walk"]["rows"]}
    assert "wrong from step 30, rank 1" in walk["gradient"]
    assert walk["reward"] == "not watched"
    (plot,) = view["plots"]
    assert (plot["signal"], plot["ranks"]) == ("gradient.norm_preclip", [0, 1])
    assert plot["lines"][1][28:30] == [[29, 1.0], [30, "NaN"]]
    assert view["missing"] == {"stacks": "py-spy is not here"}
    json.dumps(view, allow_nan=False)


def test_incidents_of_a_run_are_listed_with_the_newest_first_and_others_are_not(tmp_path: Path) -> None:
    bundle(tmp_path, "old")
    bundle(tmp_path, "new", opened=WALL_NS + 10**9)
    bundle(tmp_path, "strange", run_id="other")
    assert [head["name"] for head in IncidentViews(tmp_path).heads("run")] == ["run-new", "run-old"]
    assert IncidentViews(tmp_path / "nothing").heads("run") == []


@pytest.mark.parametrize("name", ["", "..", "../run-abc123", "run-abc123/..", "nothing", "/etc"])
def test_a_name_that_is_no_incident_of_this_folder_is_none(tmp_path: Path, name: str) -> None:
    bundle(tmp_path / "incidents")
    assert IncidentViews(tmp_path / "incidents").view(name) is None


def test_a_bundle_is_read_again_only_when_it_was_written_again(tmp_path: Path) -> None:
    target = bundle(tmp_path)
    views = IncidentViews(tmp_path)
    first = views.view("run-abc123")
    assert views.view("run-abc123") is first
    os.utime(target / "manifest.json", ns=(WALL_NS, WALL_NS))
    assert views.view("run-abc123") is not first


def test_a_damaged_bundle_is_one_sentence(tmp_path: Path) -> None:
    (bundle(tmp_path) / "findings.json").write_text("{")
    with pytest.raises(SentinelError, match="is damaged"):
        IncidentViews(tmp_path).view("run-abc123")


def test_thinning_keeps_peaks_dips_and_what_is_not_finite() -> None:
    line = [(step, 1.0) for step in range(10_000)]
    line[5_001], line[7_003], line[9_001] = (5_001, 9.0), (7_003, -9.0), (9_001, math.inf)
    kept = thin(line)
    assert len(kept) <= MOST_POINTS
    assert {(5_001, 9.0), (7_003, -9.0), (9_001, math.inf)} <= set(kept)
    assert kept == sorted(kept)
    assert thin(line[:100]) == line[:100]
