"""What every view shows of findings: each root with what follows from it, by one function."""

from __future__ import annotations

from dataclasses import replace

from grpo_sentinel.records import Action, Finding, FindingState, Severity
from grpo_sentinel.views import chains


def finding(name: str, root: str = "") -> Finding:
    return Finding(
        finding_id=name, rule=name, layer="policy", severity=Severity.WARNING, state=FindingState.FIRING,
        action=Action.ALERT, run_id="r", step=1, onset_step=1, ranks=(), message=name, wall_ns=0, root_id=root,
    )  # fmt: skip


def told(*findings: Finding) -> list[tuple[str, list[str]]]:
    return [(root.rule, [one.rule for one in chain]) for root, chain in chains(findings)]


def test_each_root_has_what_follows_from_it_in_the_order_given() -> None:
    assert told(finding("a"), finding("x", "b"), finding("y", "a"), finding("b"), finding("z", "a")) == [
        ("a", ["y", "z"]), ("b", ["x"]),
    ]  # fmt: skip


def test_where_the_root_is_over_what_followed_from_it_stays_together() -> None:
    assert told(finding("x", "gone"), finding("a"), finding("y", "gone")) == [("x", ["y"]), ("a", [])]


def test_a_finding_below_a_follower_is_not_lost_and_a_circle_ends() -> None:
    assert told(finding("a"), finding("b", "a"), finding("c", "b")) == [("a", ["b", "c"])]
    circle = [finding("a", "b"), replace(finding("b"), root_id="a")]
    assert sorted(one for root, chain in told(*circle) for one in (root, *chain)) == ["a", "b"]
