"""What the page is told of findings: chains as every other view has them, and the layers in which they begin."""

from __future__ import annotations

from sentinel_batches import RUN, finding

from grpo_sentinel.records import Severity
from grpo_sentinel.views import Snapshot, chains
from grpo_sentinel.web.bodies import layers, status_body, summary_body

ROOT = finding("skew", finding_id="a", onset_step=10, severity=Severity.WARNING, layer="data", message="half is empty")
BELOW = finding("low", finding_id="b", root_id="a", onset_step=30, severity=Severity.WARNING, layer="reward")
FURTHER = finding("spike", finding_id="c", root_id="b", onset_step=20, severity=Severity.CRITICAL, layer="gradient")
ORPHAN = finding("old", finding_id="d", root_id="gone", onset_step=5, severity=Severity.WARNING, layer="policy",
                 message="the root of this one is over")  # fmt: skip
NOTE = finding("note", finding_id="e", onset_step=1, severity=Severity.NOTE, layer="time")
ALL = (NOTE, ORPHAN, FURTHER, ROOT, BELOW)


def test_summary_and_status_give_the_chains_of_all_views_the_worst_first() -> None:
    snapshot = Snapshot(run_id=RUN, findings=ALL)
    told = summary_body(snapshot, [RUN])["chains"]
    assert told == [
        {"root": "a", "followers": ["c", "b"], "severity": "critical"},
        {"root": "d", "followers": [], "severity": "warning"},
        {"root": "e", "followers": [], "severity": "note"},
    ]
    body = status_body({RUN: snapshot}, RUN)
    assert body is not None
    assert body["chains"] == told
    of_all_views = {root.finding_id: {one.finding_id for one in rest} for root, rest in chains(ALL)}
    assert {one["root"]: set(one["followers"]) for one in told} == of_all_views


def test_a_layer_names_what_begins_in_it_also_where_the_root_is_over() -> None:
    named = {one["layer"]: one["root"] for one in layers(Snapshot(run_id=RUN, findings=ALL))}
    assert named["data"] == "half is empty"
    assert named["policy"] == "the root of this one is over"
    assert (named["reward"], named["gradient"], named["time"]) == ("", "", "")
