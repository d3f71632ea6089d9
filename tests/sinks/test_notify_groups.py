"""Findings are told by their first cause, once a group, no more often than asked, and never about what is not grave."""

from __future__ import annotations

from dataclasses import replace

from sentinel_batches import RUN, WALL_NS, batch, finding

from grpo_sentinel.records import FindingState, Severity
from grpo_sentinel.sinks.notify import quiet
from grpo_sentinel.sinks.notify_groups import MAX_GROUPS, Groups
from grpo_sentinel.views import SinkBatch, Snapshot

SECOND = 10**9
ROOT = finding("nan_reward", finding_id="root", layer="reward", onset_step=10)
CHILD = finding("nan_loss", finding_id="child", layer="policy", onset_step=11, root_id="root")
GRAND = finding("nan_gradient", finding_id="grand", onset_step=11, root_id="root")


def shows(*findings, at=0.0, run_id=RUN):
    """A batch whose snapshot says that exactly these fire."""
    now = WALL_NS + round(at * SECOND)
    snapshot = Snapshot(run_id=run_id, node="node-a", wall_ns=now, findings=findings)
    return SinkBatch(run_id=run_id, node="node-a", wall_ns=now, snapshot=snapshot)


def groups(**changes):
    return Groups(**{"wait_seconds": 1, "interval_seconds": 30, "at_least": Severity.WARNING, **changes})


def due(made, at):
    now = WALL_NS + round(at * SECOND)
    told = made.due(now)
    for notification in told:
        made.sent(notification, now)
    return [([one.finding_id for one in note.findings], note.firing) for note in told]


def test_consequences_stand_under_their_root_in_one_message():
    made = groups()
    made.update(shows(CHILD, at=0))  # the consequence may be seen first
    made.update(shows(ROOT, CHILD, GRAND, at=0.5))
    assert due(made, 0.9) == []
    assert due(made, 1.0) == [(["root", "child", "grand"], True)]
    assert due(made, 100) == []  # nothing new


def test_news_of_a_group_waits_for_its_interval():
    made = groups()
    made.update(shows(ROOT))
    assert len(due(made, 1)) == 1
    made.update(shows(ROOT, CHILD, at=2))
    assert due(made, 30.9) == []
    assert due(made, 31) == [(["root", "child"], True)]


def test_a_group_resolves_when_nothing_of_it_fires_and_is_then_forgotten():
    made = groups()
    made.update(shows(ROOT, CHILD))
    due(made, 1)
    made.update(shows(CHILD, at=40))
    assert due(made, 40) == []  # one of two has gone: told with the rest
    made.update(shows(at=41))
    assert due(made, 41) == [(["root", "child"], False)]
    assert (len(made), made._where) == (0, {})


def test_a_transition_counts_though_the_snapshot_does_not_show_it():
    made = groups()
    made.update(batch(findings=(ROOT,)))
    assert due(made, 2) == [(["root"], True)]
    made.update(batch(findings=(replace(ROOT, state=FindingState.RESOLVED),)))
    assert due(made, 40) == [(["root"], False)]


def test_what_is_not_grave_enough_is_not_told():
    made = groups(at_least=Severity.CRITICAL)
    made.update(shows(replace(ROOT, severity=Severity.WARNING), CHILD))
    assert due(made, 1) == [(["child"], True)]


def test_two_causes_and_two_runs_are_two_messages():
    made = groups()
    made.update(shows(ROOT, finding(finding_id="other")))
    made.update(shows(replace(ROOT, run_id="b"), run_id="b"))
    assert len(due(made, 1)) == 3
    made.update(shows(run_id="b", at=50))
    assert due(made, 50) == [(["root"], False)]  # of run b alone


def test_a_finding_that_was_told_stays_where_it_was_told():
    made = groups()
    made.update(shows(replace(CHILD, root_id="")))
    due(made, 1)
    made.update(shows(CHILD, ROOT, at=2))  # a root is found afterwards
    assert due(made, 3) == [(["root"], True)]
    made.update(shows(at=50))
    assert sorted(due(made, 50)) == [(["child"], False), (["root"], False)]


def test_in_quiet_hours_only_critical_findings_are_told_and_the_rest_later():
    made = groups(quiet=lambda now: now < WALL_NS + 100 * SECOND)
    made.update(shows(ROOT, finding(finding_id="mild", severity=Severity.WARNING)))
    assert due(made, 1) == [(["root"], True)]
    assert due(made, 100) == [(["mild"], True)]


def test_quiet_hours_may_span_midnight():
    is_quiet = quiet("22:30-07:00")
    at = lambda hour, minute: (20_000 * 1440 + hour * 60 + minute) * 60 * SECOND  # noqa: E731
    assert [is_quiet(at(*t)) for t in ((22, 29), (22, 30), (0, 0), (6, 59), (7, 0))] == [False, True, True, True, False]
    assert [quiet("12:00-13:00")(at(*t)) for t in ((11, 59), (12, 0), (13, 0))] == [False, True, False]
    assert not quiet(None)(at(3, 0))


def test_groups_are_bounded_and_what_was_not_told_counts_as_lost():
    made = groups()
    for number in range(MAX_GROUPS + 7):
        made.update(batch(findings=(finding(finding_id=str(number)),), snapshot=Snapshot()))
    assert (len(made), made.lost) == (MAX_GROUPS, 7)
